"""A rank: the process, or the simulated process, that a function runs on."""
import inspect
from dataclasses import dataclass, field

import torch

from .collectives import Group


@dataclass
class Rank:
    """The first argument of every function that runs on ranks: "me".

    Attributes:
        rank: this rank's number, 0 to size - 1.
        size: how many ranks there are.
        device: where this rank keeps its tensors.
        group: the collectives that connect it with the others.
        state: a dict that lives as long as the rank, for whatever it should keep.
        reports: list, what this rank has reported in this call.
    """

    rank: int
    size: int
    device: torch.device
    group: Group
    state: dict = field(default_factory=dict)
    reports: list = field(default_factory=list)

    def report(self, thing):
        """Puts something where it outlives this rank.

        If the call fails, whichever rank was the reason, `RankError.reports` has it.

        Args:
            thing: something small that can be pickled, such as the newest tokens.
        """
        self.reports.append(thing)


class RankError(RuntimeError):
    """A rank failed, and so the call as a whole.

    Attributes:
        rank: the rank at fault.
        cause: its error in one line, "ValueError: no such token".
        traceback: its own traceback as text, or "".
        waiting: dict, other rank -> where it stood ("was waiting in all_reduce at
            Cell In[5] line 3").
        reports: dict, rank -> list of what it had reported with `Rank.report`.
    """

    def __init__(self, rank, cause, traceback="", waiting=None, reports=None):
        self.rank, self.cause, self.traceback = rank, cause, traceback
        self.waiting, self.reports = dict(waiting or {}), dict(reports or {})
        lines = [f"rank {rank} failed: {cause}", traceback.rstrip("\n")]
        lines += [f"rank {r} {text}" for r, text in sorted(self.waiting.items())]
        super().__init__("\n".join(line for line in lines if line))

    def __reduce__(self):  # an exception is otherwise unpickled from its message alone
        return RankError, (self.rank, self.cause, self.traceback, self.waiting,
                           self.reports)


def check_fits(fn, args, kwargs, form):
    """Requires a function that ranks can call as fn(me, *args, **kwargs).

    Args:
        fn, args, kwargs: a callable, and what follows the rank.
        form: how such a call is written, for the message: "simulate(work, 2, x)".

    Raises:
        TypeError: fn takes other arguments. (One without a signature passes.)
    """
    try:
        signature = inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):  # built in
        return
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise TypeError(
            f"each rank calls {name} with itself first, then with what you pass, and "
            f"{name}{signature} doesn't take that ({error}); write "
            f"def work(me, x) and {form}.") from None
