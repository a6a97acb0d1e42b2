"""The bench runs to its end and shows every figure; what they are is nobody's test."""
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
RATIOS = ("plain decoding over transformers generate, greedy",
          "speculative decoding, K {k}, over our plain decoding, greedy",
          "speculative decoding over transformers assisted, both K {k}, greedy")
FORMULA = "the formula's speedup against the measured one, every K"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A quick run: (its process, what it wrote as JSON, its page, where)."""
    folder = tmp_path_factory.mktemp("bench") / "made" / "here"
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "run.py", "--quick", "--out", folder],
        cwd=folder.parents[1], capture_output=True, text=True, timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return done, results, (folder / "results.md").read_text(encoding="utf-8"), folder


@pytest.fixture(scope="module")
def rows(run):
    return run[1]["rows"]


def program(monkeypatch):
    """The names in bench/run.py, which finds its neighbours in its own folder."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return runpy.run_path(str(ROOT / "bench" / "run.py"))


def labels(rows, table, temperature, threads=None):
    """Both sides of every row of a table."""
    return [tuple(r["sides"]) for r in rows
            if r["table"] == table and r["temperature"] == temperature
            and (threads is None or r["threads"] == threads)]


def test_it_prints_the_page_and_shows_progress(run):
    done, results, page, folder = run
    assert done.stdout.strip().endswith(page.strip())
    assert "sweep: 100%" in done.stderr and "duel: 100%" in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["results.json",
                                                              "results.md"]
    assert results["quick"] and "A quick run" in page


def test_every_row_has_two_sides_with_median_and_spread(rows):
    for r in rows:
        assert len(r["sides"]) == 2
        for spread in (*r["sides"].values(), r["ratio"]):
            assert 0 < spread["low"] <= spread["median"] <= spread["high"]


def test_a_ratio_is_the_second_time_over_the_first_prompt_by_prompt(monkeypatch):
    bench = program(monkeypatch)
    sides = [bench["Side"](name, None, 1) for name in ("ours", "theirs")]
    ours = bench["Record"]([1.0, 2.0, 4.0], [[1], [2], [3]])
    theirs = bench["Record"]([3.0, 4.0, 4.0], [[1], [2], [0]])
    row = bench["row"]("duel", sides[0], ours, sides[1], theirs)
    assert row["ratio"] == {"median": 2.0, "low": 1.5, "high": 2.5}  # of 3, 2, 1
    assert row["sides"]["ours"]["median"] == 2.0
    assert (row["same_texts"], row["texts"]) == (2, 3)


def test_the_sweep_has_every_k_both_verifiers_and_n_grams(run, rows):
    size = run[1]["size"]
    greedy = [(f"speculative, verify_tokens, K {k}", "plain")
              for k in size["greedy_ks"]]
    warm = [(f"speculative, verify_{v}, K {k}", "plain")
            for k in size["warm_ks"] for v in ("tokens", "block")]
    ngram = [(f"n-gram drafter, K {size['ngram_k']}", "plain")]
    assert labels(rows, "sweep", 0) == greedy + ngram
    assert labels(rows, "sweep", 1) == warm + ngram


def test_every_k_of_a_draft_model_has_its_prediction(rows):
    swept = [r for r in rows if r["table"] == "sweep"]
    for r in swept:
        drafted = not list(r["sides"])[0].startswith("n-gram")
        assert drafted == ("predicted" in r) == ("costs" in r)
        if drafted:
            assert set(r["costs"]) == {"t_one", "t_wide", "t_draft"}
            assert min(r["costs"].values()) > 0
            assert 0 < r["predicted"]["low"] <= r["predicted"]["high"]
            assert r["off"] > -1 and len(r["rates"]) <= r["k"]
            assert 1 <= r["committed_per_round"] <= r["k"] + 1


def test_the_duels_are_with_the_same_k_and_with_the_one_as_shipped(run, rows):
    k, threads = run[1]["best_k"], run[1]["machine"]["threads torch uses"]
    ours = f"speculative, verify_tokens, K {k}"
    pairs = {("plain", "transformers generate"), (ours, "plain"),
             (ours, f"transformers assisted, K {k}")}
    shipped = {(ours, "transformers assisted, K as shipped")}
    assert set(labels(rows, "duel", 0, threads)) == pairs | shipped
    assert set(labels(rows, "duel", 1)) == pairs
    assert set(labels(rows, "duel", 0, 1)) >= pairs


def test_both_sides_write_the_same_greedy_text(rows):
    for r in rows:
        if r["temperature"] == 0:
            assert r["same_texts"] == r["texts"] > 0


def test_the_page_names_every_wanted_line(run):
    _, results, page, _ = run
    wanted = {line["what"]: line for line in results["wanted"]}
    expected = [what.format(k=results["best_k"]) for what in RATIOS]
    assert list(wanted)[:4] == [*expected, FORMULA]
    assert sum("all-reduce" in what for what in wanted) == 2  # of 1 KB and of 64 KB
    assert sum("2 ranks of one thread" in what for what in wanted) == 1
    for what, line in wanted.items():
        shown = next(row for row in page.splitlines() if row.startswith(f"| {what}"))
        assert line["wanted"] in shown and line["shown"] in shown
        assert shown.endswith("| met |" if line["met"] else "| **not met** |")
    assert [wanted[what]["wanted"] for what in expected] == [
        "at least 2.0x", "at least 1.4x", "at least 2.0x"]
    for what, least in zip(expected, (2.0, 1.4, 2.0)):
        assert wanted[what]["met"] == (wanted[what]["figure"] >= least)
    assert wanted[FORMULA]["met"] == (abs(wanted[FORMULA]["figure"]) <= 0.15)


def test_the_wanted_figures_are_those_of_the_rows(run, rows):
    figures = {line["figure"] for line in run[1]["wanted"]}
    ranks = [run[1][table] for table in ("collectives", "tensor parallel",
                                         "speculation on ranks")]
    assert figures <= ({r["ratio"]["median"] for r in rows}
                       | {r["off"] for r in rows if "off" in r}
                       | {r["ratio"]["median"] for r in ranks[0]}
                       | {r["ratios"]["shared memory"]["median"] for r in ranks[1]}
                       | {r["off"] for r in ranks[2]})


def test_a_line_is_judged_at_the_default_threads_and_the_faster_ones_are_named(
        monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    report = runpy.run_path(str(ROOT / "bench" / "report.py"))

    def duel(threads, ratio, first, ms, second):
        spread = {"median": ratio, "low": ratio, "high": ratio}
        sides = {first: spread | {"median": ms}, second: spread}
        return {"table": "duel", "threads": threads, "temperature": 0.0, "k": 3,
                "sides": sides, "ratio": spread}

    fast = "speculative, verify_tokens, K 3"
    rows = [row for threads, factor in ((2, 1.0), (1, 0.5)) for row in (
        duel(threads, 2.5 * factor, "plain", 4.0 * factor, "transformers generate"),
        duel(threads, 1.5 * factor, fast, 2.0 / factor, "plain"),
        duel(threads, 1.9 * factor, fast, 2.0 / factor, "transformers assisted, K 3"))]
    rows[0]["off"] = -0.2
    rows[1]["off"] = 0.1
    results = {"rows": rows, "best_k": 3}
    lines = report["wanted"](results, 2)
    assert [line["figure"] for line in lines] == [2.5, 1.5, 1.9, -0.2]
    assert [line["met"] for line in lines] == [True, True, False, False]
    assert "2.50x (2.50 to 2.50) with 2 threads" in lines[0]["shown"]
    assert "1.25x (1.25 to 1.25) with 1 thread" in lines[0]["shown"]
    said = report["threads"](results)
    assert "takes 4.00 ms with 2 threads, 2.00 ms with 1 thread: 1 thread is" in said
    assert "4.00 ms with 1 thread: 2 threads are faster" in said


def test_the_page_says_what_it_ran_on(run):
    _, results, page, _ = run
    facts = results["machine"]
    assert facts["torch"] == torch.__version__
    for name in ("Python", "transformers", "processor", "cores", "threads torch uses",
                 "load at the start"):
        assert f"| {name} | {facts[name]} |" in page
    assert "Threads, a token: plain decoding takes" in page


def test_the_full_bench_is_as_large_as_promised(monkeypatch):
    size = program(monkeypatch)["Size"]()
    assert size.prompts >= 5 and size.duel_tokens == 128 and size.given == 32
    assert size.greedy_ks == tuple(range(1, 9)) and size.warm_ks
