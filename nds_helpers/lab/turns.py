"""Measuring on ranks, where other programs disturb: in turns, and the quicker times.

Ranks import this module, so nothing in it may import matplotlib.
"""
import time
from contextlib import contextmanager


def lower_quartile(seconds):
    """A time that a quarter of the measurements don't exceed.

    Other programs can only make a time longer, so the quicker ones tell more.
    """
    return sorted(seconds)[len(seconds) // 4]


def in_turns(sides, fn, *args, turns=12):
    """Times one function on several sets of ranks, so that they can be compared.

    The sides take turns: a busy minute then slows all of them, not only the one that
    happened to be measured in it. Who isn't measured sleeps.

    Args:
        sides: list of Workers.
        fn: fn(me, *args) -> list of rows, each a list of seconds, one a thing that it
            times.
        turns: int, how often each side runs it.

    Returns:
        list, one a side: the lower quartile of rank 0's seconds, one a thing.
    """
    rows = [[] for _ in sides]
    for _ in range(turns):
        for side, own in zip(sides, rows):
            own += side.run(fn, *args)[0]
    return [[lower_quartile(same) for same in zip(*own)] for own in rows]


@contextmanager
def slowed_down(shard, seconds):
    """Lets a decoder pause before each MLP, as a rank with more to do would.

    Args:
        shard: decoder with `layers`.
        seconds: float, of each pause.
    """
    def pause(*_):
        time.sleep(seconds)

    hooks = [layer.mlp.register_forward_pre_hook(pause) for layer in shard.layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
