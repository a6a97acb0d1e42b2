"""The bench of SmolLM2: what it makes of its figures, and that it goes on."""
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"
FASTER = {"n-gram, K 3": 2.5, "draft model, adaptive K": 0.9}


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.delitem(sys.modules, "smollm2", raising=False)
    import smollm2
    return smollm2


@pytest.fixture
def asked(bench):
    return bench.prompts(2)


@pytest.fixture
def lines(bench, asked):
    """What a run notes: plain decoding in 60 ms a token, `transformers` in 120."""
    return [json.dumps(asdict(way) | {
        "prompt": name, "ids": [1, number],
        "ms": 120 if way.name in bench.PEERS else 60 / FASTER.get(way.name, 1.0),
        "acceptance_rate": 0.5 if "K" in way.name else None,
        "committed_per_round": None}) for way in bench.ways()
        for number, (name, _) in enumerate(asked)]


@pytest.fixture
def results(bench, asked, lines, tmp_path):
    path = tmp_path / "smollm2.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return bench.Results(bench.measure(path, asked), asked)


def test_two_prompts_of_every_kind(bench, asked):
    assert len(asked) == 12 and len(bench.prompts(None)) >= 60
    assert {name.split("-")[0] for name, _ in asked} == {
        "chat", "story", "summarise", "edit", "code", "translate"}


def test_what_is_noted_is_not_measured_again(results):
    """No model is loaded: nothing is missing."""
    assert len(results.done) == len(results.names) * 35


def test_only_what_is_missing_is_measured(bench, asked, lines, tmp_path, monkeypatch):
    class Models:
        turns = []

        def turn(self, way, text):
            self.turns.append(text)
            return {"ms": 1.0, "ids": [1]}

    monkeypatch.setattr(bench, "Models", Models)
    path = tmp_path / "smollm2.jsonl"
    path.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    bench.measure(path, asked)
    assert Models.turns == ["Hi!", asked[-1][1]]  # the first warms up
    assert len(path.read_text(encoding="utf-8").splitlines()) == len(lines)


def test_wanted_takes_the_best_single_draft_and_the_slowest_kind(bench, results):
    figures = {w["what"]: (w["figure"], w["met"]) for w in bench.wanted(results)}
    assert figures["plain decoding in int8 over transformers generate, greedy"] == (
        2.0, False)
    setting = "over plain, float32, temperature 0.8"
    assert figures[f"n-gram, K 3, {setting}"] == (2.5, True)
    assert figures[f"draft model, adaptive K, {setting}, slowest kind"] == (
        pytest.approx(0.9), False)
    assert figures[f"n-gram, adaptive K, {setting}, slowest kind"] == (1.0, True)


def test_the_page_shows_every_way_and_kind(bench, results):
    page = bench.page(results, {"cores": 2})
    assert page.count("2.50x") >= 4 and page.count("12 of 12") == 19
    assert "| chat | story | summarise | edit | code | translate |" in page


def test_the_records_hold_every_way_of_ours(bench, results):
    records = json.loads(json.dumps(bench.records(results)))
    assert len(records) == len(bench.ways()) - len(bench.PEERS)
    copied, = (r for r in records if (r["name"], r["dtype"], r["temperature"]) == (
        "n-gram, K 3", "int8", 0.8))
    assert copied["overall"]["median"] == 2.5 == copied["speedup"]["edit"]
    assert copied["ms"]["median"] == 24 and copied["accepted"] == 0.5
