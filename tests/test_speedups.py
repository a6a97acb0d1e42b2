"""Pictures of recorded runs, and the explorer over ranks that are running."""
import multiprocessing
import os
import subprocess

import pytest
from helpers import PNG

from nds_helpers.distributed import Workers
from nds_helpers.lab import explorers, plots, speedups, sweep, watch
from nds_helpers.lab.phases import PHASES
from nds_helpers.models import load_pair


def a_record(k=4, temperature=0.7, ranks=2, placement="rank 0", speedup=1.3):
    """What `sweep.one` would return, made up."""
    phases = dict(draft=0.002, compute=0.006, communication=0.001, verdict=0.001)
    return dict(k=k, temperature=temperature, ranks=ranks, placement=placement,
                alpha=0.7, by_position=[(3, 4), (2, 3)], committed=30, rounds=10,
                speedup=speedup, phases=[phases | {"idle": 0.0},
                                         phases | {"draft": 0.0, "idle": 0.002}])


RECORDED = [a_record(k, temperature, speedup=1 + k / 10)
            for temperature in (0.0, 1.0) for k in (4, 1)]


def words(ax):
    """All texts in the axes."""
    return [text.get_text() for text in ax.texts]


def test_agreement_shows_every_point(ax):
    series = {"one": ([1.0, 2.0], [1.1, 1.9]), "two": ([0.5], [0.4])}
    assert speedups.draw_agreement(ax, series) is None
    shown = [line.get_xydata().tolist() for line in ax.lines]
    assert [[1.0, 1.1], [2.0, 1.9]] in shown and [[0.5, 0.4]] in shown
    assert len({line.get_marker() for line in ax.lines[1:3]}) == 2
    assert ax.get_xlim() == ax.get_ylim()
    assert ax.get_xlim()[0] < 0.4 and ax.get_xlim()[1] > 2.0
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["within 15%", "one", "two"] and "break-even" in words(ax)


def test_phases_are_stacked_a_rank(ax):
    speedups.draw_phases(ax, a_record()["phases"])
    assert [t.get_text() for t in ax.get_xticklabels()] == ["rank 0", "rank 1"]
    assert len(ax.patches) == 2 * len(PHASES)
    assert max(bar.get_y() + bar.get_height() for bar in ax.patches) == (
        pytest.approx(10))


def test_the_line_behind_is_the_nearest_temperature():
    near = speedups.alike(a_record(temperature=0.8), RECORDED)
    assert [(r["temperature"], r["k"]) for r in near] == [(1.0, 1), (1.0, 4)]
    assert speedups.alike(a_record(placement="sharded"), RECORDED) == []
    assert speedups.alike(a_record(ranks=1), RECORDED) == []


@pytest.mark.parametrize("recorded", [RECORDED, []])
def test_live_figure_shows_acceptance_speed_and_phases(recorded):
    record, open_before = a_record(), plots.plt.get_fignums()
    figure = speedups.live_figure(record, speedups.alike(record, recorded))
    left, middle, right = figure.axes
    assert len(left.patches) == 2 and "alpha = 0.70" in words(left)
    points = [line.get_xydata().tolist() for line in middle.lines]
    assert [[4, 1.3]] in points and "break-even" in words(middle)
    assert ([[1, 1.1], [4, 1.4]] in points) == bool(recorded)
    assert len(right.patches) == 2 * len(PHASES)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [label for label, _ in PHASES.values()]
    assert plots.plt.get_fignums() == open_before
    assert explorers.png(figure).startswith(PNG)


@pytest.mark.parametrize("speedup, side", [(1.3, "faster"), (0.8, "slower")])
def test_description_names_the_numbers(speedup, side):
    said = speedups.describe_live(a_record(speedup=speedup))
    assert "K = 4, temperature 0.7, draft: rank 0. 3.0 tokens a round" in said
    assert f"{speedup:.2f} times plain decoding on the same ranks ({side})" in said
    assert "rank 0 idles 0%, rank 1 idles 20%." in said


@pytest.fixture(scope="module")
def pair():
    """The tiny pair."""
    return load_pair("tiny")


def refuse(*args, **kwargs):
    raise AssertionError("a slider started a process")


def test_sliders_call_the_ranks_and_start_none(pair, monkeypatch):
    monkeypatch.setattr(speedups, "LIVE_TOKENS", 10)
    with Workers(2) as workers:
        workers.run(watch.load)
        pids = list(workers.pids)
        for owner, name in ((os, "fork"), (os, "posix_spawn"), (subprocess, "Popen"),
                            (multiprocessing.Process, "start")):
            monkeypatch.setattr(owner, name, refuse, raising=False)
        explorer = speedups.ranks_explorer(workers, pair, RECORDED)
        explorer.sliders["k"].value = 1
        explorer.sliders["temperature"].value = 1.5
        explorer.sliders["placement"].value = "sharded"
        assert explorer.error is None and list(workers.pids) == pids
    assert list(explorer.records) == [
        (4, 0.7, "rank 0"), (1, 0.7, "rank 0"), (1, 1.5, "rank 0"),
        (1, 1.5, "sharded")]
    assert all(len(r["phases"]) == 2 for r in explorer.records.values())
    assert bytes(explorer.picture.value).startswith(PNG)
    assert "K = 1, temperature 1.5, draft: sharded" in explorer.caption.value
    with pytest.raises(RuntimeError, match="these workers are closed"):
        explorer.sliders["k"].value = 2
    assert "these workers are closed" in explorer.caption.value


def test_the_explorer_does_not_measure_twice(pair, monkeypatch):
    made = []

    def one(setting, workers, pair, prompts, tokens):
        made.append(setting)
        return a_record(*setting)

    monkeypatch.setattr(sweep, "one", one)
    explorer = speedups.ranks_explorer(type("Two", (), {"size": 2}), pair, RECORDED)
    for k in (3, 4, 3):
        explorer.sliders["k"].value = k
    assert made == [sweep.Setting(4, 0.7, 2, "rank 0"),
                    sweep.Setting(3, 0.7, 2, "rank 0")]
