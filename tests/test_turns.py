"""Measuring on ranks: who is timed when, what counts, and what ranks must import."""
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from nds_helpers.lab import turns


def test_lower_quartile():
    assert turns.lower_quartile([9.0, 1.0, 3.0, 2.0, 8.0]) == 2.0
    assert turns.lower_quartile([4.0]) == 4.0


class Side:
    """Stands for Workers: rank 0 tells of `slowness`, rank 1 of nonsense."""

    def __init__(self, name, slowness, log):
        self.name, self.slowness, self.log = name, slowness, log

    def run(self, fn, *args):
        self.log.append(self.name)
        return [fn(self, *args), [[1e9, 1e9]]]


def test_sides_take_turns_and_a_slow_quarter_does_not_count():
    log, busy = [], iter([1, 1, 50, 50, 1, 1, 1, 1])

    def fn(me, unit):
        load = next(busy)
        return [[unit * me.slowness * load, 7.0 * load],
                [unit * me.slowness * load, 9.0 * load]]

    sides = [Side("one", 2.0, log), Side("two", 1.0, log)]
    assert turns.in_turns(sides, fn, 0.5, turns=4) == [[1.0, 7.0], [0.5, 7.0]]
    assert log == ["one", "two"] * 4


def test_slowed_down_pauses_before_each_mlp_and_then_no_more(monkeypatch):
    paused = []
    monkeypatch.setattr(time, "sleep", paused.append)
    mlp = torch.nn.Identity()
    shard = SimpleNamespace(layers=[SimpleNamespace(mlp=mlp)] * 2)
    with pytest.raises(KeyError), turns.slowed_down(shard, 0.25):
        mlp(torch.ones(1))
        raise KeyError
    mlp(torch.ones(1))
    assert paused == [0.25, 0.25]  # two hooks on the one module, none afterwards


@pytest.mark.parametrize("module", ["turns", "watch"])
def test_ranks_import_no_plots(module):
    """A rank would load matplotlib for nothing, and may print about its fonts."""
    code = (f"import sys, nds_helpers.lab.{module}; "
            "print('matplotlib' in sys.modules or 'pandas' in sys.modules)")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "False\n", found.stderr
