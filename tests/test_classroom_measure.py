"""Chapter 10: checks catch the plausible mistakes, cells agree with the package."""
import time

import pytest
from helpers import load_chapter, said, stub

from nds_helpers.classroom.measure import (
    check_bottleneck,
    check_fastest,
    check_predict_speedup,
)
from nds_helpers.lab import phases, sweep
from nds_helpers.lab.timeline import Span
from nds_helpers.lab.watch import Mark

CHECKS = {"bottleneck": check_bottleneck, "predict_speedup": check_predict_speedup,
          "fastest": check_fastest}


@pytest.fixture(scope="module")
def chapter():
    """What the chapter's cells and solutions define."""
    return load_chapter("10_measure_the_speedup", Span=Span, sweep=sweep, time=time)


@pytest.fixture(scope="module")
def records():
    """The shipped runs."""
    return sweep.read(sweep.SHIPPED)


def test_naming_the_work_agrees_with_the_package(chapter):
    marks = [Mark("draft", 11.0, 12.0), Mark("compute", 13.0, 20.0)]
    for span in (Span("compute", 0.0, 5.0, 0), Span("compute", 4.0, 6.0, 1),
                 Span("compute", 2.2, 2.7, 2)):
        assert chapter.name_work(span, marks, 10.0) == list(
            phases.pieces(span, marks, 10.0))


def test_watching_agrees_with_the_package(chapter):
    marks = []
    watched = chapter.Watched("a b", "draft", ("split",), marks)
    assert watched.upper() == "A B" and watched.split() == ["a", "b"]
    assert [mark[0] for mark in marks] == ["draft"]


def test_bottlenecks_agree(chapter, records):
    for record in records:
        assert chapter.bottleneck(record["phases"]) == phases.bottleneck(
            record["phases"])


def test_predictions_agree(chapter, records):
    for record in records:
        rates = [accepted / reached for accepted, reached in record["by_position"]]
        given = rates, record["phases"][0], record["plain"]
        assert chapter.predict_speedup(*given) == pytest.approx(sweep.predict(*given))


def test_the_fastest_agree(chapter, records):
    for temperature in sweep.TEMPERATURES:
        runs = [r for r in records if r["temperature"] == temperature]
        assert chapter.fastest(runs) == sweep.fastest(runs)


@pytest.mark.parametrize("name", CHECKS)
def test_solution_passes_and_stub_does_not(chapter, name, capsys):
    assert said(CHECKS[name], getattr(chapter, name), capsys).startswith("Passed")
    assert said(CHECKS[name], stub, capsys) == "Not yet: stub is still to be written.\n"


def longest(phases):
    return max(((rank, phase) for rank, one in enumerate(phases) for phase in one),
               key=lambda at: phases[at[0]][at[1]])


def busiest(phases, longest=max):
    work = [{p: t for p, t in one.items() if p != "idle"} for one in phases]
    rank = longest(range(len(phases)), key=lambda r: sum(work[r].values()))
    return rank, max(work[rank], key=work[rank].get)


def least_idle(phases):
    rank = min(range(len(phases)), key=lambda r: phases[r]["idle"])
    return rank, max(phases[rank], key=phases[rank].get)


WRONG_BOTTLENECKS = {
    "the longest phase of all, idling too": longest,
    "always rank 0": lambda phases: busiest(phases[:1]),
    "the rank that works least": lambda phases: busiest(phases, min),
    "idling counts as work": least_idle,
    "the phase alone": lambda phases: busiest(phases)[1],
    "only two ranks": lambda phases: busiest(phases[:2]),
}


@pytest.mark.parametrize("name", WRONG_BOTTLENECKS)
def test_wrong_bottlenecks_are_caught(name, capsys):
    assert "Not yet" in said(check_bottleneck, WRONG_BOTTLENECKS[name], capsys)


def tokens(rates):
    """Expected tokens a round, as in the solution."""
    total = survives = 1.0
    for rate in rates:
        survives *= rate
        total += survives
    return total


WRONG_PREDICTIONS = {
    "the mean of the rates": lambda rates, phases, plain:
        (1 + sum(rates)) * plain / sum(phases.values()),
    "no token of the target's": lambda rates, phases, plain:
        (tokens(rates) - 1) * plain / sum(phases.values()),
    "upside down": lambda rates, phases, plain:
        sum(phases.values()) / (tokens(rates) * plain),
    "idle left out": lambda rates, phases, plain:
        tokens(rates) * plain / (sum(phases.values()) - phases["idle"]),
    "drafting and computing only": lambda rates, phases, plain:
        tokens(rates) * plain / (phases["draft"] + phases["compute"]),
    "every guess costs the draft's time": lambda rates, phases, plain:
        tokens(rates) * plain / (sum(phases.values())
                                 + (len(rates) - 1) * phases["draft"]),
    "in seconds": lambda rates, phases, plain:
        sum(phases.values()) / tokens(rates),
}


@pytest.mark.parametrize("name", WRONG_PREDICTIONS)
def test_wrong_predictions_are_caught(name, capsys):
    assert "Not yet" in said(check_predict_speedup, WRONG_PREDICTIONS[name], capsys)


def by_speedup(runs):
    best = max(runs, key=lambda r: r["plain"] / r["seconds"])
    return best["ranks"], best["placement"], best["k"]


def without_plain(runs):
    best = min(runs, key=lambda r: r["seconds"])
    return best["ranks"], best["placement"], best["k"]


def own_plain(runs):
    best = min(runs, key=lambda r: r["seconds"])
    if best["plain"] <= best["seconds"]:
        return best["ranks"], "none", 0
    return best["ranks"], best["placement"], best["k"]


def plain_of_the_best(runs):
    best = min(runs, key=lambda r: r["seconds"])
    if min(r["plain"] for r in runs) <= best["seconds"]:
        return best["ranks"], "none", 0
    return best["ranks"], best["placement"], best["k"]


WRONG_CHOICES = {
    "the highest speedup": by_speedup,
    "plain decoding forgotten": without_plain,
    "its own plain decoding": own_plain,
    "plain, but on the wrong ranks": plain_of_the_best,
    "the slowest": lambda runs: without_plain(
        [r | {"seconds": -r["seconds"]} for r in runs]),
    "the largest K": lambda runs: without_plain(
        [r | {"seconds": -r["k"]} for r in runs]),
}


@pytest.mark.parametrize("name", WRONG_CHOICES)
def test_wrong_choices_are_caught(name, capsys):
    assert "Not yet" in said(check_fastest, WRONG_CHOICES[name], capsys)
