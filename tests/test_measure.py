"""Measurements, on a clock that only the models move: no test looks at a real one."""
import statistics
from types import SimpleNamespace

import pytest
import torch
from helpers import Recorder, TableModel, law_rule, random_rule, random_transformer

from nds_helpers.decoding import (
    Sampling,
    probabilities,
    verify_block,
    verify_tokens,
)
from nds_helpers.lab import machine, measure
from nds_helpers.lab.theory import expected_tokens, expected_tokens_by_position, speedup
from nds_helpers.models import load_model
from nds_helpers.models.pairs import Pair

V = 5
TARGET = (3.0, 0.25)  # seconds a forward, seconds a token in it
DRAFT = (0.5, 0.125)


class Clock:
    """Stands still unless a model moves it."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


class Slow(TableModel):
    """A table whose forward takes `cost` seconds of the clock, a line in its width."""

    def __init__(self, clock, cost, rule, **settings):
        super().__init__(rule, **settings)
        self.clock, self.cost = clock, cost

    def forward(self, tokens, cache):
        self.clock.now += self.cost[0] + self.cost[1] * len(tokens)
        return super().forward(tokens, cache)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    return clock


def blended(weight, seed=0):
    """The target's rule, drowned in another one by `weight`: a draft that errs."""
    right, wrong = random_rule(seed, V, 2.0), random_rule(seed + 1, V, 2.0)
    return lambda prefix: [(1 - weight) * a + weight * b
                           for a, b in zip(right(prefix), wrong(prefix))]


def slow_pair(clock, weight=0.3, **settings):
    """Target and draft with known costs; `order` keeps the tables short."""
    return Pair(Slow(clock, TARGET, blended(0.0), order=3, **settings),
                Slow(clock, DRAFT, blended(weight), order=3, **settings), None)


def cost(line, width):
    """Seconds of one forward of `width` tokens."""
    return line[0] + line[1] * width


def drafting(k):
    """Seconds a drafted token, where every other proposal feeds two tokens first."""
    return cost(DRAFT, 1) + DRAFT[1] / 2 / k


def test_a_spread_is_the_median_and_the_middle_half():
    spread = measure.Spread.of([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (spread.low, spread.median, spread.high) == (2.0, 3.0, 4.0)
    with pytest.raises(statistics.StatisticsError):
        measure.Spread.of([1.0])


def test_seconds_leaves_the_first_run_out(clock):
    lengths = iter([100.0, 1.0, 2.0, 3.0])

    def action():
        clock.now += next(lengths)

    assert measure.seconds(action, repeats=3) == measure.Spread(2.0, 1.5, 2.5)


@pytest.mark.parametrize("context", [0, 1, 40])
@pytest.mark.parametrize("width", [1, 5])
def test_forward_seconds_is_one_forward(clock, width, context):
    model = slow_pair(clock).target
    spread = measure.forward_seconds(model, width, context, repeats=4)
    assert spread.median == spread.low == spread.high == cost(TARGET, width)


@pytest.mark.parametrize("verify", [verify_tokens, verify_block])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_step_costs_are_the_three_steps(clock, k, temperature, verify):
    costs = measure.step_costs(slow_pair(clock), k, 20, Sampling(temperature), verify)
    assert costs == pytest.approx({
        "t_one": cost(TARGET, 1), "t_wide": cost(TARGET, k + 1),
        "t_draft": drafting(k)})


def test_step_costs_do_not_stop_at_an_end_token(clock):
    pair = slow_pair(clock, end_token_ids=tuple(range(V)))
    assert measure.step_costs(pair, 2)["t_one"] == cost(TARGET, 1)


def test_step_costs_fit_a_short_context(clock):
    pair = slow_pair(clock, max_length=48)
    assert measure.step_costs(pair, 4, 96)["t_wide"] == cost(TARGET, 5)


def test_the_prediction_is_the_formula():
    costs = {"t_one": 4.0, "t_wide": 5.0, "t_draft": 0.5}
    for k in range(1, 9):
        found = measure.predict([0.7] * k, k, costs)
        assert found == pytest.approx(speedup(0.7, k, c=0.5 / 4.0, wide=5.0 / 4.0))
        free = {"t_one": 1.0, "t_wide": 1.0, "t_draft": 0.0}
        assert measure.predict([0.7] * k, k, free) == pytest.approx(
            expected_tokens(0.7, k))


@pytest.mark.parametrize("verify", [verify_tokens, verify_block])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_the_prediction_meets_the_measurement(clock, k, temperature, verify):
    prompts = [torch.arange(4) % V, torch.arange(6).flip(0) % V]
    found = measure.compare(slow_pair(clock), prompts, k, Sampling(temperature),
                            max_new_tokens=200, repeats=2, verify=verify)
    assert found.predicted == pytest.approx(found.speedup, rel=0.05)
    assert 0.3 < found.summary["acceptance_rate"] < 0.98  # neither hopeless nor perfect


def test_where_drafting_is_dear_the_prediction_is_below_one(clock):
    pair = slow_pair(clock, weight=0.9)
    dear = Pair(pair.target, Slow(clock, TARGET, pair.draft.rule, order=3), None)
    found = measure.compare(dear, [torch.arange(4)] * 2, 4, Sampling(),
                            max_new_tokens=100)
    assert found.speedup < 1 and found.predicted < 1


def test_a_comparison_counts_what_was_committed(clock):
    prompts = [torch.arange(3), torch.arange(4), torch.arange(2)]
    found = measure.compare(slow_pair(clock), prompts, 3, Sampling(1.0),
                            max_new_tokens=20, repeats=2)
    summary = found.summary
    assert (found.k, found.temperature) == (3, 1.0)
    assert summary["committed"] == 3 * 2 * 20
    assert summary["rounds"] < summary["committed"] <= 4 * summary["rounds"]
    assert 0 < summary["accepted"] <= summary["drafted"] <= 3 * summary["rounds"]
    assert len(found.rates) == 3 and all(0 <= rate <= 1 for rate in found.rates)
    for spread in (found.plain, found.speculative):
        assert 0 < spread.low <= spread.median <= spread.high
    feeding = [cost(TARGET, len(prompt) - 1) / 20 for prompt in prompts]
    assert found.plain.median == pytest.approx(
        cost(TARGET, 1) + statistics.median(feeding), rel=0.01)


def test_a_comparison_takes_costs_as_they_are(clock):
    costs = {"t_one": 6.0, "t_wide": 2.0, "t_draft": 0.5}
    found = measure.compare(slow_pair(clock), [torch.arange(3)] * 2, 2, Sampling(0.0),
                            max_new_tokens=12, costs=costs)
    assert found.costs == costs
    assert found.predicted == pytest.approx(
        expected_tokens_by_position(found.rates) * 6.0 / (2 * 0.5 + 2.0))


def test_a_draft_that_is_the_target_loses_nothing(clock):
    found = measure.compare(slow_pair(clock, weight=0.0), [torch.arange(3)] * 2, 4,
                            Sampling(1.0), max_new_tokens=50)
    assert found.rates == (1.0, 1.0, 1.0, 1.0)
    assert found.summary["committed_per_round"] == 5.0


@pytest.mark.parametrize(
    "sampling", [Sampling(0.0), Sampling(0.7), Sampling(1.0, 3, 0.9)])
def test_a_model_overlaps_itself_wholly(sampling):
    model = TableModel(random_rule(0, V), V)
    found = measure.overlap(model, model, torch.arange(20) % V, sampling)
    torch.testing.assert_close(found, torch.ones(20, dtype=torch.float64))


def test_overlap_is_the_shared_probability():
    p, q = [0.5, 0.25, 0.25], [0.125, 0.75, 0.125]
    found = measure.overlap(TableModel(law_rule(p), 3), TableModel(law_rule(q), 3),
                            torch.arange(3), Sampling())
    torch.testing.assert_close(found, torch.full((3,), 0.5, dtype=torch.float64))


def test_overlap_looks_at_each_position():
    target, draft = (TableModel(random_rule(seed, V), V) for seed in (0, 1))
    tokens = torch.tensor([2, 0, 4, 1])
    found = measure.overlap(target, draft, tokens, Sampling(0.7))
    for i in range(4):
        p, q = (probabilities(m.forward(tokens[:i + 1], m.new_cache(4))[-1],
                              Sampling(0.7)) for m in (target, draft))
        assert found[i] == pytest.approx(torch.minimum(p, q).sum().item())


@pytest.mark.parametrize("name", ["llama", "llama, bias, tied", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weight_bytes_are_those_of_the_file(tmp_path, name, dtype):
    random_transformer(name).save_pretrained(tmp_path)  # float64
    path = tmp_path / "model.safetensors"
    with open(path, "rb") as file:  # eight bytes say how long the header is
        header = 8 + int.from_bytes(file.read(8), "little")
    model = load_model(tmp_path, dtype)
    expected = (path.stat().st_size - header) * dtype.itemsize // 8
    if not model.config.tied:
        expected -= model.embed_tokens.weight.numel() * dtype.itemsize
    assert measure.weight_bytes(model) == expected


def test_bandwidth_is_bytes_over_seconds(clock, monkeypatch):
    def ones(count):
        def read():
            clock.now += 0.5

        return SimpleNamespace(sum=read, numel=lambda: count)

    monkeypatch.setattr(measure.torch, "ones", ones)
    spread = measure.memory_bandwidth(megabytes=64, repeats=3)
    assert spread.low == spread.median == spread.high == 64 * 2**20 / 0.5


def test_the_machine_is_described_line_by_line():
    facts = machine.facts()
    assert {"Python", "torch", "transformers", "processor", "cores",
            "threads torch uses", "memory", "GPUs"} <= set(facts)
    assert all(str(value) for value in facts.values())
    lines = machine.describe().splitlines()
    assert [line.split(":")[0].strip() for line in lines] == list(facts)


def test_a_stall_does_not_count_and_each_side_goes_first_in_turn(clock, monkeypatch):
    """One generation that takes a thousand seconds longer changes no speedup."""
    order, prompts = [], [torch.arange(3)] * 3

    def watched(name, way, stall):
        def run(*args, **kwargs):
            order.append(name)
            clock.now += stall if order.count(name) == 2 else 0.0
            return way(*args, **kwargs)

        return run

    def speedup_with(stall):
        order.clear()
        with monkeypatch.context() as patch:
            for name in ("autoregressive", "speculative"):
                way = watched(name, getattr(measure, name), stall)
                patch.setattr(measure, name, way)
                stall = 0.0  # the plain one stalls, the other doesn't
            return measure.compare(slow_pair(clock), prompts, 2, Sampling(0.0),
                                   max_new_tokens=12).speedup

    assert speedup_with(1000.0) == pytest.approx(speedup_with(0.0))
    assert order == ["autoregressive", "speculative", "speculative", "autoregressive",
                     "autoregressive", "speculative"]


@pytest.mark.parametrize("speedup, warns", [(1.9, False), (2.1, True)])
def test_a_speedup_that_cannot_be_is_said(capsys, speedup, warns):
    fine = SimpleNamespace(speedup=1.0, summary={"committed_per_round": 3.0})
    odd = SimpleNamespace(speedup=speedup, summary={"committed_per_round": 2.0})
    machine.say_if_busy([fine, odd])
    assert ("was busy" in capsys.readouterr().out) is warns


@pytest.fixture
def threads():
    """Torch's own count of threads, restored."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("one, every, chosen, words", [
    (1.0, 3.0, 1, "with one thread: 3.0 times as fast"),
    (2.0, 1.0, 4, "with all threads: 2.0 times as fast"),
])
def test_the_faster_number_of_threads_stays(threads, monkeypatch, one, every, chosen,
                                            words):
    monkeypatch.setattr(machine, "ALL_THREADS", 4)
    monkeypatch.setattr(machine, "step_seconds",
                        lambda model, threads: one if threads == 1 else every)
    assert words in machine.choose_threads(None)
    assert torch.get_num_threads() == chosen


def test_a_machine_with_one_thread_has_no_choice(monkeypatch):
    monkeypatch.setattr(machine, "ALL_THREADS", 1)
    assert "one thread" in machine.choose_threads(None)


def test_a_step_is_five_tokens_and_then_one(threads):
    seen = Recorder(TableModel(random_rule(0, V), V))
    assert machine.step_seconds(seen, 1, limit=0.0) > 0
    assert seen.widths == [5, 1] * 2 and [c.start for c in seen.calls] == [0, 5] * 2


@pytest.mark.parametrize("k", [0, -1, 2.0, True])
def test_compare_wants_a_guess(clock, k):
    with pytest.raises(ValueError, match="^k must be a whole number, 1 or more, not"):
        measure.compare(slow_pair(clock), [torch.tensor([1])] * 2, k, Sampling())
