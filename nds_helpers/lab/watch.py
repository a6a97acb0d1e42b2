"""What a rank notes while it decodes: when it drafted, when its target worked.

Ranks import this module, so nothing in it may import matplotlib.
"""
import time
from typing import NamedTuple

from ..decoding import ModelDrafter, Sampling, Trace
from ..distributed import rounds_on_ranks
from ..models import load_pair
from ..parallel import shard_model

TARGET = ("hidden", "local_logits")  # what a round runs of a sharded target
DRAFTER = ("propose",)


class Mark(NamedTuple):
    """A stretch of one rank's time that belongs to a phase.

    Attributes:
        phase: "draft" or "compute".
        began, ended: time.perf_counter().
    """

    phase: str
    began: float
    ended: float


class Watched:
    """Passes everything on to a model or a drafter, and notes when it works.

    Args:
        thing: the model or drafter.
        phase: what its work is called.
        methods: names of the methods that are this work.
        marks: list that each call of one of them adds a Mark to.
    """

    def __init__(self, thing, phase, methods, marks):
        self.thing, self.phase, self.methods, self.marks = thing, phase, methods, marks

    def __getattr__(self, name):
        found = getattr(self.thing, name)
        return self.noting(found) if name in self.methods else found

    def noting(self, method):
        """The same method, noted."""
        def noted(*args, **kwargs):
            began = time.perf_counter()
            result = method(*args, **kwargs)
            self.marks.append(Mark(self.phase, began, time.perf_counter()))
            return result

        return noted


class Noted(NamedTuple):
    """One generation as one rank saw it, from the end of its first round on.

    The first round isn't in it: it reads the prompt and warms up.

    Attributes:
        tokens: list of ids, all of them.
        trace: Trace of the other rounds.
        began, ended: time.perf_counter() at the end of the first and the last round.
        calls: list of Call, the collectives in between.
        marks: list of Mark.
    """

    tokens: list
    trace: Trace
    began: float
    ended: float
    calls: list
    marks: list

    @property
    def seconds(self):
        """Seconds a token."""
        return (self.ended - self.began) / self.trace.summary()["committed"]


def load(me, name="tiny"):
    """Puts what `decode` needs into me.state: the target's shard, the draft twice."""
    pair = load_pair(name)
    me.state.update(target=shard_model(pair.target, me.group), draft=pair.draft,
                    draft_shard=shard_model(pair.draft, me.group))


def drafter_on(me, placement):
    """This rank's drafter, None where another rank drafts for it.

    Args:
        me: Rank, with the state that `load` left.
        placement: "rank 0", "every rank" or "sharded".
    """
    if placement == "sharded":
        return ModelDrafter(me.state["draft_shard"])
    if placement == "every rank" or me.rank == 0:
        return ModelDrafter(me.state["draft"])
    return None


def decode(me, prompt, k, temperature, placement, max_new_tokens, seed):
    """Speculation on this rank and the others, watched.

    Args:
        me: Rank; a fresh one is loaded first.
        prompt: LongTensor[T].
        k: drafted tokens a round; 0 is plain decoding.
        temperature, max_new_tokens, seed: as in `speculative_on_ranks`.
        placement: where the draft runs, as in `drafter_on`.

    Returns:
        Noted.
    """
    if "target" not in me.state:
        load(me)
    marks, ends, rounds = [], [], Trace()
    target = Watched(me.state["target"], "compute", TARGET, marks)
    drafter = drafter_on(me, placement)
    if drafter is not None:
        drafter = Watched(drafter, "draft", DRAFTER, marks)
    me.group.calls.clear()
    for r in rounds_on_ranks(me, target, drafter, prompt, k=k, seed=seed,
                             sampling=Sampling(temperature),
                             max_new_tokens=max_new_tokens):
        rounds.append(r)
        ends.append(time.perf_counter())
    later = [call for call in me.group.calls if call.started >= ends[0]]
    return Noted([token for r in rounds for token in r.tokens], rounds[1:], ends[0],
                 ends[-1], later, [m for m in marks if m.began >= ends[0]])
