"""Plots draw on the axes they are given; colours and marks stay apart; text fits."""
import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from nds_helpers.decoding import Round, Trace
from nds_helpers.lab import plots, tokens

KS = [1, 2, 4]

# Colours as seen without the middle cone, in linear RGB. Machado, Oliveira and
# Fernandes 2009, "A physiologically-based model for simulation of color vision
# deficiency", deuteranomaly at severity 1.
DEUTERANOPIA = np.array([[0.367322, 0.860646, -0.227968],
                         [0.280085, 0.672501, 0.047413],
                         [-0.011820, 0.042940, 0.968881]])
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375],
                [0.2126729, 0.7151522, 0.0721750],
                [0.0193339, 0.1191920, 0.9503041]])  # from linear sRGB


def linear(colour):
    """A colour in linear RGB: FloatArray[3]."""
    c = np.array(to_rgb(colour))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """Linear RGB to CIE L*a*b*, white D65."""
    x, y, z = np.cbrt(XYZ @ rgb / (XYZ @ np.ones(3)))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def seen(colour):
    """L*a*b* under deuteranopia."""
    return lab(np.clip(DEUTERANOPIA @ linear(colour), 0, 1))


def apart(a, b):
    """(distance under deuteranopia, difference in lightness): CIE 1976."""
    grey = abs(lab(linear(a))[0] - lab(linear(b))[0])
    return np.linalg.norm(seen(a) - seen(b)), grey


def test_deuteranopia_is_simulated():
    """Greys stay what they are; a red and a green of one lightness fall together."""
    assert apart("#888888", "#888888") == (0, 0)
    np.testing.assert_allclose(DEUTERANOPIA.sum(1), 1, atol=1e-5)
    red, green = "#C06040", "#70873A"
    assert np.linalg.norm(lab(linear(red)) - lab(linear(green))) > 45
    assert apart(red, green)[0] < 15


@pytest.mark.parametrize("i, j", [*itertools.combinations(range(6), 2)])
def test_lines_stay_apart(i, j):
    by_hue, by_grey = apart(plots.PALETTE[i], plots.PALETTE[j])
    assert by_hue > 15
    marked = (plots.MARKERS[i] != plots.MARKERS[j]
              and plots.DASHES[i] != plots.DASHES[j])
    assert by_grey > 10 or marked


@pytest.mark.parametrize("a, b", [*itertools.combinations(tokens.FATES, 2)])
def test_fates_stay_apart(a, b):
    (ground_a, _, mark_a), (ground_b, _, mark_b) = tokens.FATES[a], tokens.FATES[b]
    by_hue, by_grey = apart(ground_a, ground_b)
    assert mark_a != mark_b or (by_hue > 10 and by_grey > 10)


@pytest.mark.parametrize("fate", tokens.FATES)
def test_text_is_readable_on_its_ground(fate):
    """A contrast of 4.5 to 1 at least (WCAG 2)."""
    ground, ink, _ = tokens.FATES[fate]
    bright, dark = (XYZ[1] @ linear(c) + 0.05 for c in (ground, ink))
    assert bright / dark > 4.5


@pytest.fixture
def ax():
    """Axes that pyplot doesn't know: a draw function needs no more."""
    return Figure((8, 4), layout="constrained").add_subplot()


def words(ax):
    """All texts in the axes."""
    return [text.get_text().strip() for text in ax.texts]


def test_lines_carry_label_marker_and_dash(ax):
    lines = {"one": (KS, [1, 2, 3]), "two": (KS, [3, 2, 2]), "three": (KS, [0, 0, 3])}
    assert plots.draw_lines(ax, lines, "x", "y") is None
    looks = [(line.get_color(), line.get_marker(), line.get_linestyle())
             for line in ax.lines]
    assert all(len(set(column)) == 3 for column in zip(*looks))
    assert words(ax) == list(lines)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "y")


def test_labels_of_lines_that_end_together_do_not_collide(ax):
    plots.draw_lines(ax, {name: (KS, [1, 2, 3]) for name in "abcd"}, "x", "y")
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_style_holds_outside_of_new_figure(ax):
    plots.draw_lines(ax, {"one": (KS, KS)}, "x", "y")
    assert ax.lines[0].get_linewidth() == plots.STYLE["lines.linewidth"]
    assert ax.texts[0].get_fontsize() == plots.STYLE["font.size"]


def test_bars_carry_hatch_and_legend(ax):
    series = {"a": [1, 2], "b": [2, 1], "c": [3, 3]}
    assert plots.draw_bars(ax, series, ["x", "y"], "height") is None
    assert len(ax.patches) == 6
    assert len({bar.get_hatch() for bar in ax.patches}) == 3
    assert [t.get_text() for t in ax.get_legend().get_texts()] == list("abc")
    assert [t.get_text() for t in ax.get_xticklabels()] == ["x", "y"]


def test_speedup_shows_break_even(ax):
    assert plots.draw_speedup(ax, KS, {"measured": [0.9, 1.2, 1.0]}) is None
    assert words(ax) == ["measured", "break-even"]
    assert [1.0, 1.0] in [list(line.get_ydata()) for line in ax.lines]
    assert ax.get_ylim()[0] == 0 and list(ax.get_xticks()) == KS


def test_the_names_of_a_speedup_plot_stay_apart(ax):
    """Where all lines begin or end at 1.0, beside the name of that line."""
    plots.draw_speedup(ax, KS, {name: [1.0, 1.3, 1.0] for name in ("one", "two")})
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    first = ax.transData.transform((KS[0], 1.0))[0]
    assert boxes[-1].x1 < first


@pytest.mark.parametrize("alpha", [None, 0.7])
def test_acceptance_shows_shares_of_the_reached(ax, alpha):
    assert plots.draw_acceptance(ax, [(3, 4), (1, 2)], alpha) is None
    assert [bar.get_height() for bar in ax.patches] == [0.75, 0.5]
    assert words(ax) == ([] if alpha is None else ["alpha = 0.70"])


def test_alpha_is_named_outside_of_the_bars(ax):
    plots.draw_acceptance(ax, [(4, 4)] * 6, 0.7)
    ax.figure.draw_without_rendering()
    assert ax.texts[0].get_window_extent().y0 > ax.get_window_extent().y1


def test_acceptance_of_nothing_is_an_empty_plot(ax):
    plots.draw_acceptance(ax, [], 0.5)
    assert not ax.patches


def test_heat_writes_every_cell(ax):
    assert plots.draw_heat(ax, [[0, 1], [2, 3]], [["a", "b"], ["c", "d"]],
                           ["r", "s"], ["t", "u"], "rows", "columns") is None
    assert words(ax) == list("abcd")
    assert [t.get_text() for t in ax.get_yticklabels()] == ["r", "s"]
    assert {t.get_color() for t in ax.texts} == {"black", "white"}


def test_heat_of_equal_numbers_keeps_its_place_on_a_given_scale(ax):
    for number, colour in ((1, "white"), (4, "black")):
        ax.clear()
        plots.draw_heat(ax, [[number]], [["n"]], ["r"], ["c"], "", "", limits=(1, 4))
        assert ax.texts[0].get_color() == colour


def test_new_figure_has_an_opaque_ground():
    figure, axes = plots.new_figure(2, 1)
    assert len(axes) == 2 and figure.get_facecolor() == (1, 1, 1, 1)
    plots.plt.close(figure)


class Letters:
    """A tokenizer whose ids are positions in a list of strings."""

    def __init__(self, *strings):
        self.strings = strings

    def decode(self, ids):
        return "".join(self.strings[i] for i in ids)


def as_round(drafted, accepted, kind, tokens):
    return Round(k=drafted, guesses=[0] * drafted, accepted=accepted, kind=kind,
                 tokens=tokens, p=[], q=[])


def test_fates_of_a_trace():
    trace = Trace([as_round(2, 1, "corrected", [5, 6]), as_round(1, 1, "bonus", [7, 8]),
                   as_round(0, 0, "bonus", [9]), as_round(3, 2, "ended", [1, 2])])
    assert tokens.token_fates(trace) == [
        (5, "accepted"), (6, "corrected"), (7, "accepted"), (8, "bonus"),
        (9, "plain"), (1, "accepted"), (2, "accepted")]


def test_page_breaks_lines_and_loses_nothing():
    tokenizer = Letters("To be", " or", "\n", "not\nto", "$x$")
    fates = [(0, "prompt"), (1, "accepted"), (2, "bonus"), (3, "corrected"),
             (4, "plain")]
    assert tokens.page(tokenizer, fates, columns=9) == [
        (0, 0, "To be", "prompt"), (5, 0, " or", "accepted"), (8, 0, "¶", "bonus"),
        (0, 1, "not¶", "corrected"), (0, 2, "to", "corrected"), (2, 2, "$x$", "plain")]


def test_page_wraps_at_the_column():
    pieces = tokens.page(Letters("abcd"), [(0, "accepted")] * 5, columns=10)
    assert [(x, y) for x, y, _, _ in pieces] == [(0, 0), (4, 0), (0, 1), (4, 1), (0, 2)]


def test_figure_of_tokens_holds_every_piece_and_the_legend():
    tokenizer = Letters("a word ", "$5 ", "end\n")
    fates = [(0, "prompt"), (1, "accepted"), (2, "bonus")]
    figure = tokens.tokens_figure(tokenizer, fates, columns=60)
    ax = figure.axes[0]
    shown = [text.get_text() for text in ax.texts]
    for piece in ("a word ", r"\$5 ", "end¶", " prompt ", " accepted ", " bonus "):
        assert piece in shown
    assert " corrected " not in shown
    right, lowest = ax.get_xlim()[1], ax.get_ylim()[0]
    assert right == pytest.approx(60)
    assert all(t.get_position()[0] <= right and t.get_position()[1] <= lowest
               for t in ax.texts)
    plots.plt.close(figure)


class Whole:
    """A tokenizer whose only token is a text."""

    def __init__(self, text):
        self.text = text

    def decode(self, ids):
        return self.text


def test_page_cuts_a_token_that_is_longer_than_a_line():
    pieces = tokens.page(Whole("abcdefg\nhi"), [(0, "plain"), (0, "bonus")], columns=3)
    assert [text for _, _, text, _ in pieces] == ["abc", "def", "g¶", "hi"] + [
        "abc", "def", "g¶", "hi"]
    assert [(x, y) for x, y, _, _ in pieces[:5]] == [
        (0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]


@pytest.mark.parametrize("fates", [[], [(0, "plain")]])
def test_a_page_without_text_is_empty(fates):
    figure = tokens.tokens_figure(Whole(""), fates)
    assert not any(t.get_text().strip() not in ("", *tokens.FATES)
                   for t in figure.axes[0].texts)
    plots.plt.close(figure)
