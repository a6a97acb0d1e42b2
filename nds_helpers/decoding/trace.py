"""The trace: one record a round, and the metrics that come from it."""
import math
from collections import Counter
from dataclasses import asdict, dataclass, field

import torch


@dataclass
class Round:
    """What one round drafted, verified and committed.

    Attributes:
        k: drafted tokens that were asked for.
        guesses: the drafted tokens, a list of ids.
        accepted: how many of them were committed.
        kind: of the last committed token: "corrected", "bonus", or "ended"
            where an accepted token ended the text.
        tokens: the committed tokens, a list of ids.
        p, q: probabilities of the guesses under target and draft, lists.
        drafting, verifying, synchronising: seconds spent in each.
        bytes_sent: bytes that this rank sent to others.
    """

    k: int
    guesses: list
    accepted: int
    kind: str
    tokens: list
    p: list
    q: list
    drafting: float = 0.0
    verifying: float = 0.0
    synchronising: float = 0.0
    bytes_sent: int = 0

    @property
    def drafted(self):
        """Number of drafted tokens."""
        return len(self.guesses)

    @property
    def counted(self):
        """Guesses that count: none behind an end token."""
        return self.accepted if self.kind == "ended" else self.drafted


class Trace(list):
    """A list of rounds, with the metrics of the whole run; a slice is one too."""

    def __getitem__(self, i):
        found = super().__getitem__(i)
        return Trace(found) if isinstance(i, slice) else found

    def __add__(self, other):
        return Trace(super().__add__(other))

    def to_frame(self):
        """One row a round, as a pandas DataFrame."""
        import pandas  # a slow import that only tables need

        rows = [asdict(r) | {"drafted": r.drafted, "committed": len(r.tokens)}
                for r in self]
        return pandas.DataFrame(rows)

    def summary(self):
        """Metrics of the run, each named for what it is.

        Returns:
            dict: rounds, committed, drafted, accepted; acceptance_rate
            (alpha-hat: accepted / (accepted + rounds with a rejection));
            accepted_per_drafted; committed_per_round; seconds, and
            tokens_per_second. A rate of nothing is nan.
        """
        kinds = Counter(r.kind for r in self)
        committed = sum(len(r.tokens) for r in self)
        drafted = sum(r.counted for r in self)
        accepted = sum(r.accepted for r in self)
        seconds = sum(r.drafting + r.verifying + r.synchronising for r in self)
        return {
            "rounds": len(self),
            "committed": committed,
            "drafted": drafted,
            "accepted": accepted,
            "acceptance_rate": ratio(accepted, accepted + kinds["corrected"]),
            "accepted_per_drafted": ratio(accepted, drafted),
            "committed_per_round": ratio(committed, len(self)),
            "seconds": seconds,
            "tokens_per_second": ratio(committed, seconds),
        }

    def by_position(self):
        """Acceptance at each position of the block, given that it was reached.

        Returns:
            list of (accepted, reached) counts, position 1 first. A position is
            reached when everything before it was accepted.
        """
        reached, accepted = Counter(), Counter()
        for r in self:
            accepted.update(range(r.accepted))
            reached.update(range(min(r.accepted + 1, r.counted)))
        return [(accepted[i], reached[i]) for i in sorted(reached)]


@dataclass
class Result:
    """What a generation returns.

    Attributes:
        tokens: LongTensor[n], the new tokens only, end token included.
        trace: Trace, one record a round.
    """

    tokens: torch.Tensor
    trace: Trace = field(repr=False)


def collect(rounds):
    """Runs a generation to its end: an iterator of rounds -> Result."""
    trace = Trace(rounds)
    tokens = [token for r in trace for token in r.tokens]
    return Result(torch.tensor(tokens, dtype=torch.long), trace)


def ratio(part, whole):
    """part / whole, nan where there is nothing to divide by."""
    return part / whole if whole else math.nan
