"""Sliders: debounced, one picture in place, errors seen; and what they compute."""
import asyncio
import multiprocessing
import os
import subprocess

import ipywidgets as widgets
import pytest
import torch
from helpers import TableModel, random_rule

from nds_helpers.decoding import Sampling, probabilities
from nds_helpers.lab import explorers, plots, theory
from nds_helpers.lab.explorers import Explorer, speculation_explorer
from nds_helpers.models import Pair, load_pair

PNG = b"\x89PNG"


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next event: no test waits or is late."""

    def __init__(self):
        super().__init__()
        self.now, look = 0.0, self._selector.select

        def select(timeout):
            self.now += timeout or 0.0
            return look(0)

        self._selector.select = select

    def time(self):
        return self.now


def in_loop(coroutine):
    """Runs a coroutine in a VirtualLoop; returns what the loop was told of errors."""
    told = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(context))
        await coroutine

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    return told


async def drag(slider, values, seconds):
    """Moves a slider through values, evenly over so many seconds; then waits."""
    for value in values:
        slider.value = value
        await asyncio.sleep(seconds / len(values))
    await asyncio.sleep(1)


class Counted:
    """A compute function that keeps its arguments, and refuses the value 13."""

    def __init__(self):
        self.calls = []

    def __call__(self, x):
        self.calls.append(x)
        if x == 13:
            raise ValueError("no <13> here")
        return x


def draw(record):
    """A figure that pyplot knows, as a chapter would make it."""
    figure, ax = plots.new_figure(figsize=(2, 1))
    ax.set_title(str(record))
    return figure


def shown(explorer):
    """The picture as bytes; ipywidgets keeps a memoryview."""
    return bytes(explorer.picture.value)


@pytest.fixture
def explorer():
    return Explorer(Counted(), draw, lambda record: f"x < {record}",
                    x=widgets.IntSlider(0, 0, 40))


def test_first_picture_is_there_at_once(explorer):
    assert explorer.compute.calls == [0]
    assert shown(explorer).startswith(PNG)
    assert explorer.caption.value == "x &lt; 0"


def test_construction_raises():
    with pytest.raises(ValueError, match="no <13> here"):
        Explorer(Counted(), draw, x=widgets.IntSlider(13, 0, 40))


def test_twenty_updates_are_few_computations_and_the_last_wins(explorer):
    assert in_loop(drag(explorer.sliders["x"], range(1, 21), 0.6)) == []
    assert len(explorer.compute.calls) - 1 <= 2
    assert explorer.compute.calls[-1] == 20 and explorer.caption.value == "x &lt; 20"


def test_slow_moves_are_all_followed(explorer):
    in_loop(drag(explorer.sliders["x"], [1, 2, 3], 3.0))
    assert explorer.compute.calls == [0, 1, 2, 3]


def test_without_a_loop_a_move_acts_at_once(explorer):
    explorer.sliders["x"].value = 7
    assert explorer.compute.calls == [0, 7] and explorer.caption.value == "x &lt; 7"


def test_a_setting_is_computed_once(explorer):
    for value in (1, 0, 1, 0):
        explorer.sliders["x"].value = value
    assert explorer.compute.calls == [0, 1]
    assert explorer.record(x=1) == 1 and explorer.compute.calls == [0, 1]


def test_an_error_is_seen_and_fatal(explorer):
    before = shown(explorer)
    with pytest.raises(ValueError, match="no <13> here"):
        explorer.sliders["x"].value = 13
    assert isinstance(explorer.error, ValueError)
    assert "ValueError: no &lt;13&gt; here" in explorer.caption.value
    assert shown(explorer) == before
    with pytest.raises(ValueError, match="no <13> here"):
        explorer.update()


def test_an_error_in_the_loop_is_seen_and_told(explorer):
    told = in_loop(drag(explorer.sliders["x"], [13], 0.1))
    assert [type(context["exception"]) for context in told] == [ValueError]
    assert isinstance(explorer.error, ValueError)
    assert "no &lt;13&gt; here" in explorer.caption.value


def test_the_next_good_value_clears_the_error(explorer):
    with pytest.raises(ValueError):
        explorer.sliders["x"].value = 13
    explorer.sliders["x"].value = 14
    assert explorer.error is None and explorer.caption.value == "x &lt; 14"


def test_an_interrupt_is_seen(explorer):
    def interrupt(x):
        raise KeyboardInterrupt

    explorer.compute, before = interrupt, shown(explorer)
    with pytest.raises(KeyboardInterrupt):
        explorer.sliders["x"].value = 1
    assert explorer.caption.value.startswith("interrupted")
    assert shown(explorer) == before


def test_an_error_of_draw_counts_too():
    def refuse(record):
        return draw(record) if record == 0 else 1 / 0

    explorer = Explorer(Counted(), refuse, x=widgets.IntSlider(0, 0, 9))
    with pytest.raises(ZeroDivisionError):
        explorer.sliders["x"].value = 1
    assert "ZeroDivisionError" in explorer.caption.value


def family(widget):
    """A widget and all that it holds."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from family(child)


def test_five_moves_leave_one_picture(explorer):
    children, picture, figures = explorer.children, explorer.picture, set()
    open_before = plots.plt.get_fignums()
    for value in range(1, 6):
        explorer.sliders["x"].value = value
        figures.add(shown(explorer))
    assert len(figures) == 5
    assert explorer.children == children and explorer.picture is picture
    images = [w for w in family(explorer) if isinstance(w, widgets.Image)]
    assert images == [picture]
    assert plots.plt.get_fignums() == open_before


def test_core_widgets_only(explorer):
    for widget in family(explorer):
        assert not isinstance(widget, widgets.Output)
        assert widget._model_module in ("@jupyter-widgets/controls",
                                        "@jupyter-widgets/base")
    assert not explorer.sliders["x"].continuous_update


class Letters:
    """A tokenizer of five words."""

    def decode(self, ids):
        return "".join(" abcde"[i + 1] + " " for i in ids)


PROMPT = torch.tensor([1, 2, 3])


@pytest.fixture(scope="module")
def small():
    """A pair of tables over five words that agree now and then."""
    return Pair(TableModel(random_rule(1)), TableModel(random_rule(2)), Letters())


@pytest.fixture(scope="module")
def lab(small):
    return explorers.Speculation(small, PROMPT, max_k=6, new_tokens=30)


def chances(model, context, temperature):
    """The probabilities behind a context, from the model itself."""
    logits = torch.tensor([model.rule(tuple(context))], dtype=torch.float64)
    return probabilities(logits, Sampling(temperature))[0]


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.7])
def test_both_samplers_see_the_temperature(small, lab, temperature):
    text = PROMPT.tolist()
    for r in lab.compute(k=3, temperature=temperature).trace:
        for i, guess in enumerate(r.guesses):
            context = text + r.guesses[:i]
            q, p = (chances(model, context, temperature)
                    for model in (small.draft, small.target))
            assert r.q[i] == pytest.approx(float(q[guess]), abs=1e-12)
            assert r.p[i] == pytest.approx(float(p[guess]), abs=1e-12)
        text += r.tokens


def test_alpha_is_the_overlap_on_the_targets_own_text(small, lab):
    record = lab.compute(k=0, temperature=0.8)
    text, shared = PROMPT.tolist(), []
    for token in (t for r in record.trace for t in r.tokens):
        p, q = (chances(model, text, 0.8) for model in (small.target, small.draft))
        shared.append(torch.minimum(p, q).sum())
        text.append(token)
    assert record.alpha == pytest.approx(float(torch.stack(shared).mean()), abs=1e-12)


@pytest.mark.parametrize("k", [0, 1, 4, 6])
def test_record_is_whole(lab, k):
    record = lab.compute(k=k, temperature=0.8)
    committed = [t for r in record.trace for t in r.tokens]
    assert [token for token, _ in record.fates] == PROMPT.tolist() + committed
    assert len(committed) == 30 and record.measured > 0
    assert len(record.predicted) == 7 and record.predicted[0] == 1.0
    wide = lab.wide[k]
    assert record.predicted[k] == pytest.approx(
        theory.speedup(record.alpha, k, lab.c, wide))


def test_same_setting_same_text(lab):
    first, second = (lab.compute(k=4, temperature=1.2) for _ in range(2))
    assert first.fates == second.fates and first.alpha == second.alpha
    assert first.fates != lab.compute(k=4, temperature=0.3).fates


def test_plain_decoding_is_measured_once_a_temperature(lab, monkeypatch):
    count = []
    plain = explorers.autoregressive
    monkeypatch.setattr(explorers, "autoregressive",
                        lambda *a, **kw: count.append(1) or plain(*a, **kw))
    for k in range(4):
        lab.compute(k=k, temperature=1.9)
    assert len(count) == 1


def test_greedy_text_is_the_same_for_every_k(lab):
    words = {tuple(t for t, _ in lab.compute(k=k, temperature=0.0).fates)
             for k in range(7)}
    assert len(words) == 1


@pytest.mark.parametrize("max_k", [1, 3, 12])
def test_any_largest_k(small, max_k):
    lab = explorers.Speculation(small, PROMPT, max_k=max_k, new_tokens=8)
    assert len(lab.compute(k=max_k, temperature=1.0).predicted) == max_k + 1


def test_a_largest_k_below_one_is_refused(small):
    with pytest.raises(ValueError, match="^max_k must be a whole number, 1 or more"):
        speculation_explorer(small, PROMPT, max_k=0)


def test_a_prompt_may_be_a_list(small, lab):
    listed = explorers.Speculation(small, PROMPT.tolist(), max_k=6, new_tokens=30)
    assert listed.compute(2, 0.8).fates == lab.compute(2, 0.8).fates


@pytest.mark.parametrize("k", [0, 4])
def test_figure_shows_text_acceptance_and_speed(lab, k):
    record, open_before = lab.compute(k=k, temperature=0.8), plots.plt.get_fignums()
    figure = explorers.speculation_figure(Letters(), record)
    left, right, page = figure.axes
    assert len(left.patches) == len(record.trace.by_position())
    assert f"alpha = {record.alpha:.2f}" in [t.get_text() for t in left.texts]
    formula, point = right.lines[:2]
    assert list(formula.get_ydata()) == list(record.predicted)
    assert point.get_xydata().tolist() == [[k, record.measured]]
    assert "break-even" in [t.get_text() for t in right.texts]
    written = "".join(t.get_text() for t in page.texts)
    assert all(Letters().decode([token]) in written for token, _ in record.fates)
    assert plots.plt.get_fignums() == open_before
    assert explorers.png(figure).startswith(PNG)


@pytest.mark.parametrize("k", [0, 4])
def test_description_names_the_numbers(lab, k):
    record = lab.compute(k=k, temperature=0.8)
    said = explorers.describe_speculation(record)
    assert f"K = {k}, temperature 0.8: 30 tokens in" in said and "nan" not in said
    assert f"Measured {record.measured:.2f} times" in said


def refuse(*args, **kwargs):
    raise AssertionError("a slider started a process")


def test_no_process_is_started(small, monkeypatch):
    for owner, name in ((os, "fork"), (os, "posix_spawn"), (subprocess, "Popen"),
                        (multiprocessing.Process, "start")):
        monkeypatch.setattr(owner, name, refuse, raising=False)
    explorer = speculation_explorer(small, PROMPT, max_k=6, new_tokens=12)
    explorer.sliders["k"].value = 2
    explorer.sliders["temperature"].value = 1.5
    assert explorer.error is None
    assert list(explorer.records) == [(4, 0.8), (2, 0.8), (2, 1.5)]


def test_sliders_of_the_tiny_pair():
    pair = load_pair("tiny")
    explorer = speculation_explorer(pair, pair.encode("KING HENRY.\n"), max_k=4,
                                    new_tokens=12)
    explorer.sliders["temperature"].value = 0.0
    explorer.sliders["k"].value = 1
    assert shown(explorer).startswith(PNG)
    assert "K = 1, temperature 0.0: 12 tokens" in explorer.caption.value
