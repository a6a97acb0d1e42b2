"""Drawings of cut matrices and heads show what they are given."""
import pytest

from nds_helpers.lab import plots
from nds_helpers.lab.matrices import (
    Matrix,
    draw_heads,
    draw_matrices,
    extent,
    look,
    matrices_figure,
    pieces,
)
from nds_helpers.parallel.partitions import split_heads


def texts(ax):
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("cut", ["rows", "columns"])
def test_pieces_fill_the_matrix_in_their_shares(cut):
    boxes = pieces(Matrix("A", 400, 100, cut, (60, 30, 10)))
    whole = pieces(Matrix("A", 400, 100))[0][3:]
    areas = [w * h / (whole[0] * whole[1]) for *_, w, h in boxes]
    assert [rank for rank, *_ in boxes] == [0, 1, 2]
    assert areas == pytest.approx([0.6, 0.3, 0.1])


def test_rows_begin_at_the_top_and_columns_at_the_left():
    top, bottom = pieces(Matrix("A", 4, 4, "rows", (2, 2)))
    left, right = pieces(Matrix("A", 4, 4, "columns", (2, 2)))
    assert top[2] > bottom[2] and top[1] == bottom[1]
    assert left[1] < right[1] and left[2] == right[2]


def test_terms_are_of_full_size_and_none_hides_another():
    *behind, front = pieces(Matrix("y", 9, 16, "terms", (1, 1, 1)))
    assert front[0] == 0 and [box[0] for box in behind] == [2, 1]
    assert {box[3:] for box in behind} == {front[3:]}
    assert len({box[1:3] for box in [front, *behind]}) == 3


def test_row_of_matrices_keeps_its_order_and_its_names(ax):
    draw_matrices(ax, [Matrix("x", 5, 64), "×",
                       (Matrix("gate", 64, 100, "columns", (50, 50)),
                        Matrix("up", 64, 100, "columns", (50, 50))), "=",
                       Matrix("y", 5, 100, "terms", (1, 1))])
    shown = texts(ax)
    for words in ("x", "×", "gate", "up", "=", "y", "64 × 100", "5 × 100"):
        assert words in shown
    assert shown.count("0") == shown.count("1") == 2  # pieces of gate and up
    assert len(ax.patches) == 1 + 4 + 2
    by_name = {text.get_text(): text.get_position() for text in ax.texts}
    places = [by_name[name][0] for name in ("x", "×", "gate", "=", "y")]
    assert places == sorted(places)
    assert by_name["gate"][1] > by_name["up"][1]


def test_figure_is_as_large_as_what_it_shows():
    items = [Matrix("x", 5, 64), "=", Matrix("a long name", 4, 4)]
    figure = matrices_figure(items)
    assert figure.get_figwidth() > sum(extent(item)[0] for item in items)
    assert figure.get_figheight() == max(extent(item)[1] for item in items)
    plots.plt.close(figure)


def test_ranks_look_different():
    assert len({(look(r)["facecolor"], look(r)["hatch"]) for r in range(4)}) == 4


@pytest.mark.parametrize("heads, kv_heads, size", [(9, 3, 2), (8, 2, 4), (4, 4, 1)])
def test_heads_are_shown_once_each_with_a_line_to_their_kv_head(
        ax, heads, kv_heads, size):
    shares = split_heads(heads, kv_heads, size)
    draw_heads(ax, shares, heads // kv_heads)
    numbers = [int(text) for text in texts(ax) if text.isdigit()]
    assert len(numbers) == heads + sum(len(kv) for _, kv in shares)
    assert [f"rank {rank}" in texts(ax) for rank in range(size)] == [True] * size
    boxes = {round(p.get_x() + p.get_width() / 2, 6): p for p in ax.patches
             if p.get_y() == 0}
    assert len(ax.lines) == heads
    for line, head in zip(ax.lines, range(heads)):
        kv_box = boxes[round(line.get_xdata()[1], 6)]
        kv = look(head // (heads // kv_heads))
        assert kv_box.get_hatch() == kv["hatch"]
