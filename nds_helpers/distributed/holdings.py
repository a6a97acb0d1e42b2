"""What a rank keeps in `me.state`: listed and freed on demand. Runs on the ranks."""
import gc
import math

import torch


def holdings(me):
    """The rank's kept values.

    Returns:
        list of (rank, name, type's name, megabytes).
    """
    return [(me.rank, str(name), type(value).__name__, megabytes(value))
            for name, value in me.state.items()]


def megabytes(value):
    """What a value holds; nan where it can't be looked into.

    An error here would end the ranks, and all that they hold.
    """
    try:
        return held_bytes(value) / 2**20
    except Exception:  # some objects raise whatever they are asked for
        return math.nan


def free(me, *names):
    """Removes names (all, when none is given) from the rank's state.

    Returns:
        list of the names that it doesn't hold; then nothing is removed. (An error
        would end the ranks, and all that they hold.)
    """
    unknown = [name for name in names if name not in me.state]
    if unknown:
        return unknown
    for name in names or list(me.state):
        del me.state[name]
    gc.collect()
    if me.device.type == "cuda":
        torch.cuda.empty_cache()
    return []


def held_bytes(value):
    """Bytes of all tensors and arrays in a value, each storage counted once."""
    seen, total, todo = set(), 0, [value]
    while todo:
        item = todo.pop()
        key = (item.untyped_storage().data_ptr() if is_stored(item) else id(item))
        if key in seen:
            continue
        seen.add(key)
        if is_stored(item):
            total += item.untyped_storage().nbytes()
        elif hasattr(item, "nbytes"):
            total += item.nbytes
        elif isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, (list, tuple, set)):
            todo += item
        elif hasattr(item, "__dict__") and not isinstance(item, type):
            todo += vars(item).values()
    return total


def is_stored(item):
    """Whether an object is a tensor with a storage."""
    return isinstance(item, torch.Tensor) and item.layout == torch.strided
