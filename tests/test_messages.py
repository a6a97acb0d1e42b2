"""Pictures of a round's messages and of a draw over slices show what they are given."""
import pytest

from nds_helpers.lab import plots
from nds_helpers.lab.messages import Message, draw_messages, draw_ruler, messages_figure

STEPS = [["draft", "wait"], Message("tokens", (0,), (1,), 40),
         ["forward", "forward"], Message("logits", (1,), (0,), 1234), ["verify", ""]]


def texts(ax):
    """All words in a picture that aren't empty."""
    return [text.get_text() for text in ax.texts if text.get_text()]


def arrows(ax):
    """(from x, to x) of every arrow."""
    return [(a.xyann[0], a.xy[0]) for a in ax.texts if hasattr(a, "xyann")]


def test_messages_say_who_sends_what(ax):
    draw_messages(ax, 2, STEPS)
    assert texts(ax) == ["rank 0", "rank 1", "draft", "wait", "tokens, 40 B", "forward",
                         "forward", "logits, 1,234 B", "verify"]
    assert arrows(ax) == [(0, 1), (1, 0)]


def test_time_runs_downwards(ax):
    draw_messages(ax, 2, STEPS)
    low, high = ax.get_ylim()
    heights = [text.get_position()[1] for text in ax.texts
               if text.get_text() in ("draft", "verify")]
    assert low > high and heights == [0, 4]


@pytest.mark.parametrize("senders, receivers, expected", [
    ((0,), (1, 2), [(0, 1), (0, 2)]),
    ((1, 2), (0,), [(1, 0), (2, 0)]),
    ((0, 1), (0, 1), [(0, 1), (1, 0)]),
])
def test_no_arrow_leads_to_its_own_beginning(ax, senders, receivers, expected):
    draw_messages(ax, 3, [Message("x", senders, receivers, 8)])
    assert arrows(ax) == expected


def test_figure_grows_with_steps_and_ranks():
    small, large = messages_figure(2, STEPS), messages_figure(3, STEPS * 2)
    assert all(a < b for a, b in zip(small.get_size_inches(), large.get_size_inches()))
    plots.plt.close(small)
    plots.plt.close(large)


def test_ruler_lays_the_slices_end_to_end(ax):
    draw_ruler(ax, [[0.1, 0.3], [0.0, 0.4]], 0.5, ["a", "b", "c", "d"])
    assert [box.get_width() for box in ax.patches[:4]] == [0.1, 0.3, 0.0, 0.4]
    assert [box.get_x() for box in ax.patches[:4]] == pytest.approx([0, 0.1, 0.4, 0.4])
    assert texts(ax) == ["a", "b", "rank 0: 0.40", "d", "rank 1: 0.40",
                         "u · total = 0.40"]
    assert ax.texts[-1].xy == (pytest.approx(0.4), 1)


def test_ruler_takes_an_empty_slice(ax):
    draw_ruler(ax, [[0.5, 0.5], []], 0.9, ["a", "b"])
    assert "rank 1: 0.00" in texts(ax)
