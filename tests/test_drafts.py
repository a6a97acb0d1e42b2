"""The chart of drafts: alpha is exact, silence is counted, curves agree with theory."""
import math
from itertools import combinations

import pytest
import torch
from helpers import Proposer, TableModel, law_rule, random_rule
from matplotlib.figure import Figure

from nds_helpers.decoding import Draft, ModelDrafter, NGramDrafter, Sampling
from nds_helpers.lab import drafts, theory
from nds_helpers.lab.drafts import Chart, Place, gain
from nds_helpers.lab.measure import Spread
from nds_helpers.models import load_pair

P, Q = [0.5, 0.3, 0.1, 0.05, 0.05], [0.2, 0.2, 0.2, 0.2, 0.2]
TEXTS = torch.tensor([[0, 1, 2, 3, 0, 1], [4, 4, 0, 0, 1, 2]])


class Batched(TableModel):
    """A table that takes [B, T] too, as a Decoder does."""

    def forward(self, tokens, cache=None):
        if tokens.dim() == 2:
            return torch.stack([self.forward(row, self.new_cache(0)) for row in tokens])
        return super().forward(tokens, cache)


@pytest.fixture
def chart():
    return Chart(Batched(law_rule(P)), TEXTS, given=2)


def test_alpha_of_a_model_is_the_overlap(chart):
    place = chart.measure("uniform", ModelDrafter(TableModel(law_rule(Q))))
    assert place.alpha == pytest.approx(0.6)  # 0.2 + 0.2 + 0.1 + 0.05 + 0.05
    assert place.silent == 0 and place.c > 0
    assert chart.places["uniform"] is place


def test_alpha_follows_the_context():
    """Row n - 1 of p judges the guess for place n: a shift by one shows here."""
    target = Batched(random_rule(3), order=1)
    place = Chart(target, TEXTS, given=1).measure("itself", ModelDrafter(target))
    assert place.alpha == pytest.approx(1.0)


def test_both_models_take_the_temperature():
    sampling = Sampling(0.5)
    chart = Chart(Batched(law_rule(P)), TEXTS, 2, sampling)
    sharp = torch.tensor(P) ** 2 / (torch.tensor(P) ** 2).sum()
    place = chart.measure("uniform", ModelDrafter(TableModel(law_rule(Q))))
    assert place.alpha == pytest.approx(
        torch.minimum(sharp, torch.tensor(Q)).sum().item(), abs=1e-6)


def test_a_point_mass_is_accepted_with_probability_p(chart):
    assert chart.measure("1", Proposer(lambda ids, k: [1])).alpha == pytest.approx(0.3)


def test_silence_is_counted_and_costs_no_alpha(chart):
    place = chart.measure("even", Proposer(
        lambda ids, k: [0] if len(ids) % 2 else []))
    assert place.silent == 0.5
    assert place.alpha == pytest.approx(0.5)


def test_a_draft_without_any_guess(chart):
    place = chart.measure("mute", Proposer(lambda ids, k: []))
    assert math.isnan(place.alpha) and place.silent == 1
    assert chart.best("mute") == (1, pytest.approx(1 / (1 + place.c)))


def test_a_draft_that_breaks_the_contract_is_refused(chart):
    with pytest.raises(ValueError, match="k was 1"):
        chart.measure("greedy", Proposer(lambda ids, k: [1, 2]))


@pytest.mark.parametrize("alpha, k, c", [(0.8, 4, 0.1), (0.3, 1, 0.5)])
def test_gain_is_the_formula_and_silence_pulls_it_to_one(alpha, k, c):
    wide = [1.0] + [1.2] * 8
    talking = gain(Place(alpha, c, 0.0), k, wide)
    assert talking == pytest.approx(theory.speedup(alpha, k, c, 1.2))
    half = gain(Place(alpha, 0.0, 0.5), k, [1.0] * 9)
    assert half == pytest.approx((1 + theory.expected_tokens(alpha, k)) / 2)


def test_curves_lie_where_the_formula_says():
    figure = Figure()
    ax = figure.subplots()
    drafts.draw_speedups(ax, [1.0] * 9)
    paths = ax.collections[0].get_paths()
    for level, path in zip(drafts.LEVELS, paths):
        for c, alpha in path.vertices[::10]:
            best = max(theory.speedup(alpha, k, c) for k in range(1, 9))
            assert best == pytest.approx(level, abs=0.1)


def test_every_draft_is_named_on_the_chart(chart):
    chart.measure("n-gram", NGramDrafter())
    chart.measure("uniform", ModelDrafter(TableModel(law_rule(Q))))
    figure = Figure()
    ax = figure.subplots()
    chart.draw(ax)
    words = [text.get_text() for text in ax.texts]
    assert any(word.startswith("n-gram\n(silent") for word in words)
    assert "uniform" in words


EVERY = {"draft model": Place(.75, .24, 0), "either": Place(.72, .21, 0),
         "exit 1": Place(.45, .16, 0), "exit 4": Place(.52, .35, 0),
         "exit 8": Place(.55, .58, 0), "n-gram": Place(.17, .015, .74),
         "bigram": Place(.5, .012, 0), "student": Place(.68, .225, 0)}


def looks(places):
    """What each draft looks like on a chart with all of these."""
    ax = Figure().subplots()
    drafts.draw_speedups(ax, [1.0] * 9)
    drafts.draw_places(ax, places)
    return {name: (line.get_color(), line.get_marker())
            for name, line in zip(places, ax.lines)}


def test_a_draft_looks_the_same_on_every_chart():
    every = looks(EVERY)
    assert looks(dict(reversed(EVERY.items()))) == every
    assert looks({"student": EVERY["student"]})["student"] == every["student"]
    assert len({look for name, look in every.items() if "exit" not in name}) == 5
    assert looks({"mine": Place(.3, 1.2, 0)})["mine"] == drafts.OTHER


def test_names_cover_no_other_name_or_mark_and_the_exits_no_curve():
    figure = Figure(figsize=(9, 5.4))
    ax = figure.subplots()
    drafts.draw_speedups(ax, [1.0] * 9)
    curves = [path.interpolated(9).vertices for path in ax.collections[0].get_paths()]
    drafts.draw_places(ax, EVERY)
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    marks = [line.get_xydata() for line in ax.lines]
    for name, box in zip(EVERY, boxes[-len(EVERY):]):
        free = curves + marks if "exit" in name else marks  # elsewhere it's crowded
        assert not any(box.count_contains(ax.transData.transform(points))
                       for points in free), name


def test_a_real_target_and_its_draft():
    """The places of a chart give the alpha that `quality.agreement` finds."""
    pair = load_pair("tiny")
    texts = pair.encode("KING HENRY.\nMy lord, I will not go to the field.")[None, :14]
    chart = Chart(pair.target, texts, given=4)
    p, q = (model.forward(texts)[0].softmax(-1) for model in (pair.target, pair.draft))
    expected = torch.minimum(p, q).sum(-1)[3:-1].mean().item()
    assert len(chart.wide) == drafts.LARGEST + 1 and chart.wide[0] == 1
    assert chart.measure("draft", ModelDrafter(pair.draft)).alpha == pytest.approx(
        expected, abs=1e-4)


def test_a_busy_moment_does_not_bend_the_cost_of_width(monkeypatch):
    """The clock says 2 + width, but once ten times that; width 9 seems cheap."""
    asked = []

    def clock(target, width, context, repeats):
        asked.append(width)
        busy = 10 if len(asked) == 11 else 1  # the third turn's width 1
        taken = 1.0 if width == 9 else 2.0 + width
        return Spread(taken * busy, 0.0, 0.0)

    monkeypatch.setattr(drafts, "forward_seconds", clock)
    wide = drafts.wide_costs(None, 64)
    assert wide[:5] == pytest.approx([(2 + k) / 3 for k in range(1, 6)])
    assert wide[8] == wide[4]
    assert asked[:6] == [1, 2, 3, 5, 9, 1]


def test_overlap_of_one_guess():
    p = torch.tensor(P)
    sure, drawn = Draft(torch.tensor([2])), Draft(torch.tensor([2]), torch.tensor([Q]))
    assert drafts.overlap(p, sure) == pytest.approx(0.1)
    assert drafts.overlap(p, drawn) == pytest.approx(0.6)


def test_the_recorded_speeds_of_a_real_model():
    for dtype in ("float32", "int8"):
        for temperature in (0, 0.8):
            speeds = drafts.recorded(dtype, temperature)
            assert set(speeds["plain"].values()) == {1.0} and len(speeds) >= 8
            for by_kind in speeds.values():
                assert list(by_kind) == ["chat", "story", "summarise", "edit", "code",
                                         "translate"]
