"""The bench of collectives runs to its end; what it finds is nobody's test."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.delitem(sys.modules, "collectives", raising=False)
    import collectives
    return collectives


def test_a_quick_run_shows_every_size():
    done = subprocess.run([sys.executable, BENCH / "collectives.py", "--quick"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    head = lines.index("| KB | shared memory, µs | gloo, µs | faster by |")
    assert [line.split()[1] for line in lines[head + 2:]] == ["1", "64", "1024"]


def test_rows_are_figures_that_json_can_hold(bench):
    rows = bench.collective_rows(2)
    assert json.loads(json.dumps(rows)) == rows
    for row in rows:
        assert set(row["sides"]) == {"gloo", "shared memory"}
        for spread in [*row["sides"].values(), row["ratio"]]:
            assert 0 < spread["low"] <= spread["median"] <= spread["high"]


def test_wanted_says_whether_it_is_met(bench):
    spread = {"median": 5.0, "low": 4.0, "high": 6.0}
    rows = [{"kilobytes": k, "ratio": spread | {"median": m}}
            for k, m in ((1, 5.0), (64, 4.9), (1024, 9.0))]
    assert [line["met"] for line in bench.wanted(rows)] == [True, False]
    assert bench.wanted(rows)[1]["shown"] == "4.90x (4.00 to 6.00)"
