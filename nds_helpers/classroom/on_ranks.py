"""How a check runs a student's function on simulated ranks."""
import functools

import torch

from ..parallel import RankError, simulate
from .report import fresh


def on_ranks(function):
    """A function of (me, ...) as one of (size, ...), run on that many ranks.

    Args:
        function: takes a Rank and the arguments, of which each rank gets copies.

    Returns:
        function that returns a tuple: the names of the collectives that rank 0
        called, as one text, then every rank's result, tensors as lists. It raises
        RuntimeError with the rank and its error in one line, from that error.
    """
    @functools.wraps(function)
    def watched(size, *arguments):
        errors = []  # of the ranks, which are threads: their tracebacks are whole

        def work(me):
            try:
                result = function(me, *fresh(arguments))
            except Exception as error:
                errors.append(error)
                raise
            return [call.operation for call in me.group.calls], as_lists(result)

        try:
            ranks = simulate(work, size)
        except RankError as error:
            if error.cause.startswith("NotImplementedError"):
                raise NotImplementedError from error
            said = f"on rank {error.rank}: {error.cause}"
            raise RuntimeError(said) from (errors or [error])[0]
        return (", ".join(ranks[0][0]), *(result for _, result in ranks))

    return watched


def in_one_line(error):
    """A RankError as an error that a check can tell: the rank and its cause."""
    if error.cause.startswith("NotImplementedError"):
        return NotImplementedError()
    return RuntimeError(f"on rank {error.rank}: {error.cause}")


def listed(function):
    """The same function with its tensors as lists: they are shown in full."""
    @functools.wraps(function)
    def watched(*arguments):
        return as_lists(function(*arguments))

    return watched


def as_lists(value):
    """Tensors and ranges as lists, numbers with four decimals; other things as is."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, (list, tuple, range)):
        return [as_lists(part) for part in value]
    return round(value, 4) if isinstance(value, float) else value
