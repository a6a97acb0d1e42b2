"""A live picture: one display, drawn anew, nothing left from before."""
import matplotlib.pyplot as plt
import pytest

from nds_helpers.lab import live


class Screen:
    """Takes IPython's place: what is on it, and how often it was asked for a place."""

    def __init__(self):
        self.places, self.seen = 0, []

    def display(self, figure, display_id):
        self.places += display_id
        self.update(figure)
        return self

    def update(self, figure):
        self.seen.append([line.get_xdata().tolist() for line in figure.axes[0].lines])


@pytest.fixture
def screen(monkeypatch):
    shown = Screen()
    monkeypatch.setattr(live, "display", shown.display)
    return shown


def test_each_drawing_takes_the_place_of_the_last(screen):
    picture = live.LivePicture(lambda ax, xs: ax.plot(xs, xs), figsize=(4, 2))
    for xs in ([0], [0, 1], [0, 1, 2]):
        picture.show(xs)
    assert screen.places == 1
    assert screen.seen == [[[0]], [[0, 1]], [[0, 1, 2]]]


def test_pyplot_does_not_show_it_once_more(screen):
    before = plt.get_fignums()
    live.LivePicture(lambda ax: ax.plot([1], [1])).show()
    assert plt.get_fignums() == before


def test_the_style_survives_the_clearing(screen):
    picture = live.LivePicture(lambda ax: ax.plot([1], [1]))
    picture.show()
    picture.show()
    assert not picture.ax.spines["top"].get_visible()
    assert picture.ax.xaxis.get_gridlines()[0].get_visible()
