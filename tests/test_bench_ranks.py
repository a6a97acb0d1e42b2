"""The bench of speculation on ranks: what it makes of its figures."""
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.delitem(sys.modules, "ranks", raising=False)
    import ranks
    return ranks


def spread(median):
    return dict(median=median, low=median - 0.1, high=median + 0.1)


def a_row(pair, place, over, off):
    return dict(pair=pair, place=place, better="plain, one rank", off=off,
                over_better=spread(over))


def test_wanted_judges_the_best_place_of_smollm2_and_the_worst_prediction(bench):
    rows = [a_row("tiny", "rank 0", 9.0, -0.2), a_row("smollm2", "rank 0", 1.2, 0.1),
            a_row("smollm2", "own rank", 1.4, None)]
    speed, formula = bench.wanted(rows)
    assert speed["met"] and speed["figure"] == 1.4 and "own rank" in speed["what"]
    assert not formula["met"] and formula["shown"].startswith("-20% at worst (tiny")
    speed, formula = bench.wanted(rows[1:2])
    assert not speed["met"] and formula["met"]
    assert len(bench.wanted(rows[:1])) == 1  # nothing is claimed without SmolLM2


def test_a_quick_run_measures_every_place(bench):
    rows = bench.rank_rows(**bench.QUICK)
    assert json.loads(json.dumps(rows)) == rows
    assert [r["place"] for r in rows] == list(bench.PLACEMENTS)
    assert [r["predicted"] is None for r in rows] == [False, False, False, True]
    page = bench.page(rows)
    for row in rows:
        assert f"| {row['place']} |" in page and len(row["sides"]) == 3
        for one in [*row["sides"].values(), row["over_two"], row["over_better"]]:
            assert 0 < one["low"] <= one["median"] <= one["high"]
