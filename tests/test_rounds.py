"""Pictures of rounds: what is drawn is what the rounds hold."""
import matplotlib
import pytest

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402

from nds_helpers.decoding import Round  # noqa: E402
from nds_helpers.lab.rounds import PARTS, draw_alignment, draw_rounds  # noqa: E402


@pytest.fixture
def ax():
    """Axes of a figure that is closed again."""
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def a_round(guesses, accepted, kind):
    last = [] if kind == "ended" else [9]
    return Round(k=len(guesses), guesses=guesses, accepted=accepted, kind=kind,
                 tokens=guesses[:accepted] + last, p=[], q=[])


def test_columns_are_committed_tokens_and_lost_guesses(ax):
    rounds = [a_round([1, 2, 3], 1, "corrected"), a_round([1, 2, 3], 3, "bonus"),
              a_round([1, 2, 3], 2, "ended"), a_round([], 0, "bonus")]
    draw_rounds(ax, rounds)
    heights = {name: [bar.get_height() for bar in bars]
               for name, bars in zip(PARTS, ax.containers)}
    assert heights == {"accepted": [1, 3, 2, 0], "corrected": [1, 0, 0, 0],
                       "bonus": [0, 1, 0, 1], "thrown": [2, 0, 1, 0]}
    for i, r in enumerate(rounds):
        tops = [bars[i].get_y() + bars[i].get_height() for bars in ax.containers]
        assert max(tops[:3]) == len(r.tokens)


@pytest.mark.parametrize("chosen, marks", [
    (["a", "b", "c"], ["=", "="]),
    (["a", "x", "c"], ["=", "≠"]),
    (["x", "b", "c"], ["≠"]),
])
def test_alignment_marks_the_run_and_its_end(ax, chosen, marks):
    draw_alignment(ax, ["last", "a", "b"], chosen)
    shown = [text.get_text() for text in ax.texts]
    assert [mark for mark in shown if mark in ("=", "≠")] == marks
    assert shown.count("last") == 1 and "row 2" in shown


def test_no_rounds_are_an_empty_page(ax):
    draw_rounds(ax, [])
    assert not ax.patches and not ax.axison
