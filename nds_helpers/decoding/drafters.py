"""Drafters: whatever proposes the next few tokens cheaply."""
import math
from dataclasses import dataclass

import torch

from .request import check_cache, device_of, roll_back
from .sampling import draw, probabilities, uniforms


@dataclass
class Draft:
    """A proposal of k tokens.

    Attributes:
        tokens: LongTensor[k].
        probs: FloatTensor[k, V], row i the distribution that token i was drawn
            from; None where every token was certain (a point mass).
    """

    tokens: torch.Tensor
    probs: torch.Tensor | None = None


class ModelDrafter:
    """A small language model that guesses for a large one.

    Its cache follows the sequence on its own: before each proposal it keeps the
    longest prefix that it has already seen, and feeds what is missing together
    with the last token, in one forward. An id that the model doesn't know (its
    vocabulary is smaller) is fed as its last one: a poor guess, never a crash.
    """

    def __init__(self, model):
        self.model = model
        self.device = device_of(model)
        self.limit = getattr(model, "max_length", None) or math.inf
        self.reset()

    def reset(self):
        """Forgets the text; the next proposal starts afresh."""
        self.cache, self.room, self.fed = None, 0, []

    @torch.inference_mode()
    def propose(self, sequence, k, sampling, generator):
        """Draws up to k tokens, one forward each.

        Args:
            sequence: LongTensor[n], everything committed so far.
            k: at most so many tokens.
            sampling: Sampling, the same that the target uses.
            generator: torch.Generator; one uniform a token is taken.

        Returns:
            Draft; fewer than k tokens where the draft's own context ends.
        """
        ids = sequence.tolist()
        k = min(k, self.limit - len(ids) + 1)
        if k <= 0:
            return Draft(sequence[:0])
        feed = self._missing(ids, len(ids) + k - 1)
        u = uniforms(k, generator).tolist()
        rows, tokens = [], []
        for i in range(k):
            logits = self.model.forward(feed, self.cache)[-1:]
            rows.append(probabilities(logits, sampling))
            tokens.append(self.choose(rows[-1][0], u[i]))
            feed = torch.tensor(tokens[-1:], device=self.device)
        self.fed = ids + tokens[:-1]  # the last guess was fed to nobody
        return Draft(torch.tensor(tokens).to(sequence.device),
                     torch.cat(rows).to(sequence.device))

    def choose(self, row, u):
        """The token that the uniform number u draws from a row, FloatTensor[V]."""
        return draw(row, u)

    def _missing(self, ids, room):
        """Rolls the cache back to what still holds; returns the tokens to feed."""
        if room > self.room:
            self._grow(room, ids[:-1])
        known = common_prefix(self.fed, ids[:-1])
        roll_back(self.cache, known)
        self.fed = ids[:known]  # true even if the next forward fails
        return self._known_to_model(ids[known:])

    def _grow(self, room, ids):
        """A longer cache, filled afresh: doubling makes this rare."""
        room = min(max(2 * room, 256), self.limit)
        self.cache, self.room, self.fed = self.model.new_cache(room), room, []
        check_cache(self.cache)
        if ids and hasattr(self.model, "prefill"):  # no logits for a whole prompt
            self.model.prefill(self._known_to_model(ids), self.cache)
            self.fed = ids

    def _known_to_model(self, ids):
        last = self.model.vocab_size - 1
        return torch.tensor(ids, device=self.device).clamp(max=last)


def common_prefix(a, b):
    """Length of the longest common prefix of two lists."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:  # the usual case, at the speed of C
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])


class NGramDrafter:
    """Looks the last few tokens up in the text so far and copies what followed.

    Prompt look-up decoding: no second model, no cost, good where the output
    repeats the prompt. Each token is a point mass.
    """

    def __init__(self, longest=3, shortest=1):
        if not 1 <= shortest <= longest:
            raise ValueError("n-gram lengths need 1 <= shortest <= longest, not "
                             f"{shortest} and {longest}.")
        self.longest, self.shortest = longest, shortest

    def reset(self):
        """Nothing is kept between proposals."""

    def propose(self, sequence, k, sampling, generator):
        """The k tokens that followed the latest earlier match of the longest n-gram.

        Args:
            sequence: LongTensor[n].
            k: at most so many tokens.
            sampling, generator: not used; a copy has no chance in it.

        Returns:
            Draft of 0 to k tokens, without probs.
        """
        n = len(sequence)
        for size in range(min(self.longest, n - 1), self.shortest - 1, -1):
            windows = sequence[:-1].unfold(0, size, 1)  # [n - size, size]
            hits = (windows == sequence[n - size:]).all(1).nonzero()
            if len(hits) and k:
                start = int(hits[-1]) + size
                return Draft(sequence[start:start + k].clone())
        return Draft(sequence[:0])


class EitherDrafter:
    """Asks one drafter, and a second one only where the first is silent.

    A look-up that is nearly free in front of a draft model: what repeats is copied,
    the rest is guessed.
    """

    def __init__(self, first, second):
        self.first, self.second = first, second

    def reset(self):
        """Both forget the text."""
        self.first.reset()
        self.second.reset()

    def propose(self, sequence, k, sampling, generator):
        """The first one's Draft, or the second one's where that holds no token."""
        draft = self.first.propose(sequence, k, sampling, generator)
        if len(draft.tokens):
            return draft
        return self.second.propose(sequence, k, sampling, generator)
