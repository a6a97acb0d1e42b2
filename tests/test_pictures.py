"""The pictures of one decoding step show what they are given."""
import pytest
import torch

from nds_helpers.decoding import draw
from nds_helpers.lab import pictures
from nds_helpers.lab.measure import Spread


def test_attention_is_as_bright_as_its_row_allows(ax):
    weights = torch.tensor([[1.0, 0.0], [0.2, 0.8]])
    pictures.draw_attention(ax, weights, [" a", "\n"])
    shown = torch.tensor(ax.images[0].get_array().data)
    assert shown.equal(torch.tensor([[1.0, 0.0], [0.25, 1.0]]))
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "¶"]
    assert ax.images[0].get_clim() == (0, 1) and len(ax.figure.axes) == 2  # the scale


@pytest.mark.parametrize("u", [0.0, 0.5, 0.99])
def test_staircase_reaches_the_token(ax, u):
    p = torch.tensor([0.3, 0.3, 0.36, 0.01, 0.03])
    token = draw(p, u)
    pictures.draw_staircase(ax, p, u, token, "'x'")
    assert ax.get_xlim()[1] > token
    assert ax.texts[0].get_text() == f"u = {u} draws 'x'"


def test_cache_shows_every_place(ax):
    pictures.draw_cache(ax, {"a": (3, 2), "b": (3, 0)}, 6)
    hatched = [bar for bar in ax.patches if bar.get_hatch()]
    assert len(ax.patches) == 12 and len(hatched) == 2
    assert [round(bar.get_x() + 0.45) for bar in hatched] == [3, 4]


def test_growth_is_in_units_of_the_first(ax):
    spreads = [Spread(2.0, 1.0, 3.0), Spread(3.0, 3.0, 4.0), Spread(5.0, 4.0, 6.0)]
    pictures.draw_growth(ax, [1, 2, 4], spreads, "width")
    measured, linear = (line.get_ydata().tolist() for line in ax.lines)
    assert measured == [1.0, 1.5, 2.5] and linear == [1, 2, 4]
