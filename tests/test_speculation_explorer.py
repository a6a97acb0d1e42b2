"""The speculation explorer: what its sliders compute, draw and say."""
import itertools
import multiprocessing
import os
import subprocess
from dataclasses import replace

import pytest
import torch
from helpers import PNG, TableModel, random_rule
from matplotlib.backends.backend_agg import FigureCanvasAgg

from nds_helpers.decoding import Sampling, probabilities
from nds_helpers.lab import explorers, plots, theory
from nds_helpers.lab.explorers import speculation_explorer
from nds_helpers.models import Pair, load_pair


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


@pytest.mark.parametrize("predicted", [
    (1.0, 1.4, 1.5, 1.4, 1.2, 1.0, 0.9), (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2),
    (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0), (1.0,) * 7])
def test_no_word_is_crossed_by_a_curve(lab, predicted):
    record = replace(lab.compute(k=4, temperature=0.8), predicted=predicted)
    figure = explorers.speculation_figure(Letters(), record)
    FigureCanvasAgg(figure).draw()
    right = figure.axes[1]
    boxes = [text.get_window_extent() for text in right.texts]
    assert len(boxes) == 3 and max(box.x1 for box in boxes) <= figure.bbox.x1
    for line in right.lines:
        path = line.get_path().transformed(line.get_transform())
        assert not any(path.intersects_bbox(box, filled=False) for box in boxes)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


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
    assert bytes(explorer.picture.value).startswith(PNG)
    assert "K = 1, temperature 0.0: 12 tokens" in explorer.caption.value
