"""What a rank notes while it decodes: when it drafted, when its target worked.

Ranks import this module, so nothing in it may import matplotlib.
"""
import time
from typing import NamedTuple

from ..decoding import ModelDrafter, Sampling, Trace
from ..distributed import ShardedDrafter, rounds_on_ranks
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
        calls: dict, name of a group -> list of Call, the collectives in between:
            "all" for all ranks, "team" for those that hold the target where a rank
            is left to the draft.
        marks: list of Mark.
    """

    tokens: list
    trace: Trace
    began: float
    ended: float
    calls: dict
    marks: list

    @property
    def seconds(self):
        """Seconds a token."""
        return (self.ended - self.began) / self.trace.summary()["committed"]


def load(me, name="tiny"):
    """Puts what `decode` needs into me.state.

    The target's shard, over all ranks and over the team without rank 0; the draft,
    whole and sharded.
    """
    pair = load_pair(name)
    team = me.group.subgroup(range(1, me.size)) if me.size > 1 else None
    me.state.update(
        target=shard_model(pair.target, me.group), draft=pair.draft,
        draft_shard=shard_model(pair.draft, me.group),
        team_target=shard_model(pair.target, team) if team else None)


def placed(me, placement):
    """What this rank brings: (its shard of the target or None, its drafter or None).

    Args:
        me: Rank, with the state that `load` left.
        placement: "rank 0", "every rank", "sharded" or "own rank", as in
            `speculative_on_ranks`.
    """
    target = me.state["team_target" if placement == "own rank" else "target"]
    if placement == "sharded":
        return target, ShardedDrafter(me.state["draft_shard"])
    if placement == "every rank" or me.rank == 0:
        return target, ModelDrafter(me.state["draft"])
    return target, None


def decode(me, prompt, k, temperature, placement, max_new_tokens, seed):
    """Speculation on this rank and the others, watched.

    Args:
        me: Rank; a fresh one is loaded first.
        prompt: LongTensor[T].
        k: drafted tokens a round; 0 is plain decoding.
        temperature, max_new_tokens, seed: as in `speculative_on_ranks`.
        placement: where the draft runs, as in `placed`.

    Returns:
        Noted.
    """
    if "target" not in me.state:
        load(me)
    marks, ends, rounds = [], [], Trace()
    target, drafter = placed(me, placement)
    groups = {"all": me.group}
    if target is not None:
        if placement == "own rank":
            groups["team"] = target.group
        target = Watched(target, "compute", TARGET, marks)
    if drafter is not None:
        drafter = Watched(drafter, "draft", DRAFTER, marks)
    for group in groups.values():
        group.calls.clear()
    for r in rounds_on_ranks(me, target, drafter, prompt, k=k, seed=seed,
                             sampling=Sampling(temperature),
                             max_new_tokens=max_new_tokens):
        rounds.append(r)
        ends.append(time.perf_counter())
    later = {name: [call for call in group.calls if call.started >= ends[0]]
             for name, group in groups.items()}
    return Noted([token for r in rounds for token in r.tokens], rounds[1:], ends[0],
                 ends[-1], later, [m for m in marks if m.began >= ends[0]])
