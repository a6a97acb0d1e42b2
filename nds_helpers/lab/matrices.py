"""Drawings of what is cut: matrices into ranks' pieces, attention into heads.

A matrix's sides are drawn as the square roots of its sizes, so that a few tokens
stay visible beside a thousand columns. Units are inches.
"""
from typing import NamedTuple

from matplotlib.patches import Rectangle

from .plots import PLATE, new_figure

# (colour, hatch) of a rank's pieces: told apart without colour too.
RANKS = (("#CDE7F7", ""), ("#F9D3BF", "//"), ("#E0E0E0", ".."), ("#CDEBDD", "xx"))
WHOLE = ("white", "")
EDGE = "#444444"
INCH = 0.058  # a side of n is INCH * sqrt(n) long
GAP, MARGIN, CHARACTER = 0.14, 0.34, 0.1
CARD = 0.1  # how far the terms of a sum peep out from behind one another


class Matrix(NamedTuple):
    """A matrix as it is spread over ranks.

    Attributes:
        name: what stands above it.
        rows, columns: ints.
        cut: "rows" or "columns": each rank has some; "terms": each rank has a term
            of its own for every number, and the sum is what is meant; "": whole on
            every rank.
        sizes: what each rank has along the cut; for terms, one entry a rank.
    """

    name: str
    rows: int
    columns: int
    cut: str = ""
    sizes: tuple = ()


def look(rank):
    """How a rank's pieces are filled, for matplotlib."""
    colour, hatch = RANKS[rank % len(RANKS)]
    return dict(facecolor=colour, hatch=hatch, edgecolor=EDGE, linewidth=1)


def side(n):
    """How long n numbers are drawn, in inches."""
    return INCH * n ** 0.5


def pieces(matrix):
    """The rectangles of a matrix whose lower left corner is at (0, 0).

    Returns:
        list of (rank or None, x, y, width, height), from back to front.
    """
    wide, high = side(matrix.columns), side(matrix.rows)
    if not matrix.cut:
        return [(None, 0, 0, wide, high)]
    if matrix.cut == "terms":
        return [(rank, CARD * rank, CARD * rank, wide, high)
                for rank in reversed(range(len(matrix.sizes)))]
    found, done, total = [], 0, sum(matrix.sizes)
    for rank, size in enumerate(matrix.sizes):
        part = size / total
        if matrix.cut == "columns":
            found.append((rank, wide * done, 0, wide * part, high))
        else:  # the first rows are at the top
            found.append((rank, 0, high * (1 - done - part), wide, high * part))
        done += part
    return found


def extent(item):
    """(width, height) in inches of a Matrix, a stack of them, or a text."""
    if isinstance(item, str):
        return CHARACTER * len(item), 0
    if isinstance(item, Matrix):
        boxes = pieces(item)
        label = CHARACTER * 0.8 * len(item.name)
        return (max(label, *(x + w for _, x, _, w, _ in boxes)),
                max(y + h for _, _, y, _, h in boxes) + 2 * MARGIN)
    sizes = [extent(matrix) for matrix in item]
    return max(w for w, _ in sizes), sum(h for _, h in sizes)


def draw_matrix(ax, matrix, x, middle):
    """One matrix, its name above and its shape below, from `x` on."""
    width, height = extent(matrix)
    boxes = pieces(matrix)
    left = x + (width - max(bx + w for _, bx, _, w, _ in boxes)) / 2
    base = middle - height / 2 + MARGIN
    for rank, bx, by, w, h in boxes:
        style = look(rank) if rank is not None else dict(
            facecolor=WHOLE[0], edgecolor=EDGE, linewidth=1)
        ax.add_patch(Rectangle((left + bx, base + by), w, h, **style))
        if rank is not None and matrix.cut != "terms" and min(w, h) > 0.16:
            ax.text(left + bx + w / 2, base + by + h / 2, rank, ha="center",
                    va="center", fontsize=11, bbox=PLATE)
    centre = x + width / 2
    ax.text(centre, middle + height / 2 - MARGIN + 0.05, matrix.name, ha="center",
            va="bottom", fontsize=12)
    ax.text(centre, base - 0.05, f"{matrix.rows} × {matrix.columns}", ha="center",
            va="top", fontsize=10, color=EDGE)


def draw_matrices(ax, items):
    """Matrices and the signs between them, from left to right.

    Args:
        ax: Axes, taken over whole.
        items: list of Matrix, tuple of Matrix (one below the other), or text.
    """
    x = 0
    for item in items:
        width, height = extent(item)
        if isinstance(item, str):
            ax.text(x + width / 2, 0, item, ha="center", va="center", fontsize=12)
        else:
            top = height / 2
            for matrix in [item] if isinstance(item, Matrix) else item:
                own = extent(matrix)[1]
                draw_matrix(ax, matrix, x, top - own / 2)
                top -= own
        x += width + GAP
    half = max(extent(item)[1] for item in items) / 2
    ax.set(xlim=(-GAP, x), ylim=(-half, half), aspect="equal")
    ax.axis("off")


def matrices_figure(items):
    """A figure of its own for `draw_matrices`, just large enough."""
    sizes = [extent(item) for item in items]
    width = sum(w + GAP for w, _ in sizes) + GAP
    figure, ax = new_figure(figsize=(width, max(h for _, h in sizes)))
    draw_matrices(ax, items)
    return figure


def draw_heads(ax, shares, sharing):
    """Which heads sit on which rank, and which kv head each query head reads.

    Args:
        ax: Axes, taken over whole.
        shares: list of (query heads, kv heads), two ranges a rank.
        sharing: int, query heads that share a kv head.
    """
    x = 0
    for rank, (heads, kv_heads) in enumerate(shares):
        wide = max(len(heads), len(kv_heads))
        ax.add_patch(Rectangle((x - 0.15, -0.25), wide + 0.3, 2.75, fill=False,
                               edgecolor=EDGE, linewidth=1.2))
        ax.text(x + wide / 2, 2.65, f"rank {rank}", ha="center", fontsize=12)
        above = {kv: x + (i + 0.5) * wide / len(kv_heads)
                 for i, kv in enumerate(kv_heads)}
        for i, head in enumerate(heads):
            kv = head // sharing
            middle = x + (i + 0.5) * wide / len(heads)
            ax.plot([middle, above[kv]], [1.5, 0.8], color=EDGE, linewidth=1)
            draw_head(ax, middle, 1.5, head, kv)
        for kv, middle in above.items():
            draw_head(ax, middle, 0, kv, kv)
        x += wide + 0.8
    for y, words in ((1.9, "query heads "), (0.4, "kv heads ")):
        ax.text(-0.3, y, words, ha="right", va="center", fontsize=12)
    ax.set(xlim=(-2.6, x - 0.5), ylim=(-0.4, 3.1))
    ax.axis("off")


def draw_head(ax, middle, base, number, kv):
    """One head as a box with its number, filled as its kv head is."""
    ax.add_patch(Rectangle((middle - 0.4, base), 0.8, 0.8, **look(kv)))
    ax.text(middle, base + 0.4, number, ha="center", va="center", fontsize=11,
            bbox=PLATE)
