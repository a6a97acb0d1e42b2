"""Real ranks: processes started from a notebook cell, or joined under torchrun.

The names are looked up when they are first used (PEP 562): a fresh rank imports
this package before torch, and must be able to watch its kernel from then on.
"""
from importlib import import_module

_HOME = {"Workers": ".launcher", "launch": ".launcher",
         "RankError": "nds_helpers.parallel.ranks",
         "ShardedDrafter": ".sharded_draft",
         "speculative_on_ranks": ".generation", "rounds_on_ranks": ".generation"}

__all__ = ["RankError", "ShardedDrafter", "Workers", "launch", "rounds_on_ranks",
           "speculative_on_ranks"]


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
