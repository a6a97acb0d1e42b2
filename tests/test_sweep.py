"""A sweep measures each setting once, keeps it at once, and goes on where it was."""
import json
import subprocess

import pytest
from helpers import TableModel, next_rule

from nds_helpers.distributed import Workers
from nds_helpers.lab import machine, sweep, watch
from nds_helpers.lab.measure import predict
from nds_helpers.lab.phases import PHASES
from nds_helpers.models import Pair, load_pair

SETTINGS = sweep.grid(ks=(1, 2), temperatures=(0.0,))


@pytest.fixture
def path(tmp_path):
    """A file in a folder that isn't there yet."""
    return tmp_path / "new" / "runs.jsonl"


@pytest.fixture
def measured(monkeypatch):
    """Replaces measuring by a made-up record; the list tells what was measured."""
    settings = []

    def one(setting, workers, pair, prompts):
        settings.append(setting)
        return (setting._asdict() | sweep.request_of(prompts, sweep.TOKENS)
                | {"seconds": len(settings)})

    monkeypatch.setattr(sweep, "one", one)
    monkeypatch.setattr(machine, "facts", lambda: {"cores": 2, "threads torch uses": 2})
    return settings


def run(path, settings=SETTINGS, **more):
    return sweep.run(settings, path, {1: None, 2: None}, None, **more)


def test_grid_has_one_place_on_one_rank():
    assert len(SETTINGS) == 2 * (1 + len(sweep.PLACEMENTS))
    assert len(set(SETTINGS)) == len(SETTINGS)
    assert [s.placement for s in SETTINGS if s.ranks == 1] == ["rank 0"] * 2
    assert {s[:2] for s in SETTINGS[:4]} == {(1, 0.0)}


def test_a_second_sweep_measures_nothing(path, measured):
    first, told = run(path), []
    assert measured == SETTINGS
    assert run(path, tell=lambda *done: told.append(done)) == first
    assert measured == SETTINGS
    assert told == [(n + 1, len(SETTINGS)) for n in range(len(SETTINGS))]


def test_a_sweep_that_was_stopped_goes_on(path, measured, monkeypatch):
    whole = sweep.one

    def until_three(*arguments):
        if len(measured) == 3:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(sweep, "one", until_three)
    with pytest.raises(KeyboardInterrupt):
        run(path)
    assert [sweep.setting_of(r) for r in sweep.read(path)] == SETTINGS[:3]
    monkeypatch.setattr(sweep, "one", whole)
    run(path)
    assert measured == SETTINGS


@pytest.mark.parametrize("left", [1, 20])
def test_half_a_line_is_measured_again(path, measured, left):
    run(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:left])
    run(path)
    assert measured == [*SETTINGS, SETTINGS[-1]]
    assert [sweep.setting_of(r) for r in sweep.read(path)] == SETTINGS


def test_only_what_was_asked_for_comes_back_in_order(path, measured):
    run(path)
    chosen = [SETTINGS[5], SETTINGS[1]]
    assert [sweep.setting_of(r) for r in run(path, chosen)] == chosen


def test_a_record_says_where_it_was_made(path, measured):
    for record in run(path):
        assert set(record["machine"]) == {"cores", "load"}
    assert all(json.loads(line)["machine"] for line in path.read_text().splitlines())


def test_of_two_records_the_later_counts(path):
    for seconds in (1, 2):
        sweep.append(path, SETTINGS[0]._asdict() | {"seconds": seconds})
    assert [record["seconds"] for record in sweep.read(path)] == [2]


def test_runs_of_other_texts_are_measured_again(path, measured):
    run(path)
    run(path, prompts=["one text"])
    assert measured == 2 * SETTINGS and len(sweep.read(path)) == len(SETTINGS)


def test_no_file_is_no_record(path):
    assert sweep.read(path) == [] and not path.exists()


def test_a_readers_runs_stay_out_of_git():
    assert sweep.OWN != sweep.SHIPPED
    told = subprocess.run(["git", "check-ignore", "-q", sweep.OWN],
                          cwd=sweep.DATA.parent)
    assert told.returncode in (0, 128)  # 128: not a git checkout


def test_alpha_is_the_overlap_on_plain_text():
    """Favourites that always agree, at temperature 0; and never."""
    def tokenizer(text, add_special_tokens):
        return {"input_ids": [int(letter) for letter in text]}

    after, elsewhere = (TableModel(next_rule(lambda prefix, n=n: (prefix[-1] + n) % 5))
                        for n in (1, 2))
    plain = [watch.Noted([2, 3, 4, 0], [], 0.0, 1.0, {}, [])]
    for draft, expected in ((after, 1.0), (elsewhere, 0.0)):
        pair = Pair(after, draft, tokenizer)
        assert sweep.alpha(pair, ["01"], plain, 0.0) == expected


def test_prediction_agrees_with_that_of_one_device():
    rates, costs = [0.9, 0.7, 0.4], {"t_one": 3.0, "t_wide": 4.0, "t_draft": 0.5}
    phases = {"draft": 3 * 0.5, "compute": 3.5, "verdict": 0.5, "idle": 0.0}
    assert sweep.predict(rates, phases, 3.0) == pytest.approx(predict(rates, 3, costs))


@pytest.mark.parametrize("seconds, plain, expected", [
    ((5.0, 4.0), (9.0, 7.0), (2, "sharded", 3)),
    ((5.0, 8.0), (6.0, 4.0), (2, "none", 0)),
    ((5.0, 8.0), (5.0, 9.0), (1, "none", 0))])
def test_fastest_counts_plain_decoding(seconds, plain, expected):
    runs = [dict(ranks=r, placement=p, k=3, seconds=s, plain=t)
            for r, p, s, t in zip((1, 2), ("rank 0", "sharded"), seconds, plain)]
    assert sweep.fastest(runs) == expected


WHOLE = {*sweep.Setting._fields, "seed", "prompts", "tokens", "alpha", "by_position",
         "rounds", "committed", "drafted", "accepted", "plain", "seconds", "speedup",
         "phases"}


def check_record(record):
    """What every record keeps, measured or shipped."""
    assert set(record) - {"machine", "timeline"} == WHOLE
    assert ("timeline" in record) == (sweep.setting_of(record)[:2] == sweep.DRAWN)
    assert 0 < record["alpha"] <= 1 and record["by_position"][0][1] > 0
    assert record["accepted"] <= record["drafted"] <= record["k"] * record["rounds"]
    assert len(record["phases"]) == record["ranks"]
    totals = [sum(phases.values()) for phases in record["phases"]]
    assert all(set(phases) == set(PHASES) for phases in record["phases"])
    assert max(totals) < 1.1 * min(totals)  # the ranks go round together
    assert min(record["plain"], record["seconds"], record["speedup"]) > 0
    for lane in record.get("timeline", []):
        assert all(a[2] == b[1] and a[0] in PHASES for a, b in zip(lane, lane[1:]))


@pytest.mark.parametrize("placement", sweep.PLACEMENTS)
def test_a_run_on_live_ranks_is_whole(workers, placement):
    k, temperature = sweep.DRAWN
    setting = sweep.Setting(k, temperature, 2, placement)
    record = sweep.one(setting, workers, load_pair("tiny"), sweep.PROMPTS[:2], 10)
    assert json.loads(json.dumps(record)) == record
    check_record(record)


@pytest.fixture(scope="module")
def workers():
    """Two ranks that hold the tiny pair."""
    with Workers(2) as workers:
        workers.run(watch.load)
        yield workers


def test_the_shipped_runs_are_all_there():
    records = sweep.read(sweep.SHIPPED)
    assert {sweep.setting_of(r) for r in records} >= set(sweep.grid())
    for record in records:
        check_record(record)
        assert {"Python", "torch", "processor", "cores", "load"} <= set(
            record["machine"])
