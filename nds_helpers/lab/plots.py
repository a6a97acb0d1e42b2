"""Plots of the course: one style, colours that stay apart, direct labels.

Every draw_ function takes a matplotlib Axes and plain numbers and returns
nothing, so that a chapter, a slider and a test can use it alike.
"""
from functools import wraps

import matplotlib.pyplot as plt

# Okabe and Ito's colours, ordered so that neighbours differ in brightness too.
PALETTE = ("#0072B2", "#D55E00", "#000000", "#009E73", "#CC79A7", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
HATCHES = ("", "//", "..", "xx")
PLATE = dict(facecolor="white", edgecolor="none", pad=1)  # behind a label

STYLE = {
    "figure.figsize": (8, 4.2), "figure.dpi": 90, "figure.facecolor": "white",
    "savefig.facecolor": "white", "axes.facecolor": "white", "font.size": 13,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.3, "lines.linewidth": 2.4, "lines.markersize": 8,
    "figure.constrained_layout.use": True,
}


def styled(draw):
    """Makes a drawing function use the course's style, whatever is set outside."""
    @wraps(draw)
    def in_style(*args, **kwargs):
        with plt.rc_context(STYLE):
            return draw(*args, **kwargs)

    return in_style


def new_figure(columns=1, rows=1, **size):
    """A figure in the course's style; returns (figure, axes)."""
    plt.draw_if_interactive()  # loads the backend: rc_context would undo what it sets
    with plt.rc_context(STYLE):
        return plt.subplots(rows, columns, **size)


@styled
def draw_lines(ax, series, xlabel, ylabel):
    """Lines told apart by colour, marker and dash, each labelled at its end.

    Args:
        ax: Axes.
        series: dict of label -> (xs, ys).
        xlabel, ylabel: axis labels, with units.
    """
    order = sorted(series, key=lambda label: series[label][1][-1])
    for i, (label, (xs, ys)) in enumerate(series.items()):
        look = dict(color=PALETTE[i % 6], marker=MARKERS[i % 6],
                    linestyle=DASHES[i % 6])
        ax.plot(xs, ys, label=label, **look)
        # Points up or down by rank: labels of lines that end together don't collide.
        nudge = 16 * (order.index(label) - (len(order) - 1) / 2)
        ax.annotate(f" {label}", (xs[-1], ys[-1]), color=look["color"], va="center",
                    xytext=(6, nudge), textcoords="offset points",
                    annotation_clip=False)
    ax.set(xlabel=xlabel, ylabel=ylabel)


@styled
def draw_bars(ax, series, names, ylabel):
    """Groups of bars told apart by colour and hatch, with a legend.

    Args:
        ax: Axes.
        series: dict of label -> one height a name.
        names: what stands under each group.
        ylabel: axis label, with units.
    """
    width = 0.8 / len(series)
    for i, (label, heights) in enumerate(series.items()):
        at = [n + (i - (len(series) - 1) / 2) * width for n in range(len(names))]
        ax.bar(at, heights, width, label=label, color=PALETTE[i % 6],
               hatch=HATCHES[i % 4], edgecolor="white")
    ax.set_xticks(range(len(names)), names)
    ax.set(ylabel=ylabel)
    if len(series) > 1:
        ax.legend(frameon=False)


@styled
def draw_break_even(ax, side="right"):
    """The line at 1.0 below which speculation loses, and its name.

    Args:
        ax: Axes.
        side: "left" or "right", the end of the line that the name stands on; or
            "outside", to the right of the axes, where no curve can cross it.
    """
    x, ha, va = {"left": (0.01, "left", "bottom"), "right": (0.99, "right", "bottom"),
                 "outside": (1.02, "left", "center")}[side]
    ax.axhline(1.0, color="#666666", linewidth=1.2)
    ax.annotate("break-even", (x, 1.0), xycoords=("axes fraction", "data"), ha=ha,
                va=va, fontsize=11, color="#444444", bbox=PLATE,
                zorder=1)  # behind the lines


@styled
def draw_speedup(ax, ks, series):
    """Speedup against K, with the break-even line.

    Args:
        ax: Axes.
        ks: list of K.
        series: dict of label -> one speedup a K.
    """
    draw_lines(ax, {label: (ks, ys) for label, ys in series.items()},
               "K, drafted tokens a round", "speed over plain decoding")
    draw_break_even(ax, "left")
    ax.set_xticks(ks)
    room = 0.22 * (ks[-1] - ks[0])  # for the name of the line, before the first point
    ax.set(xlim=(ks[0] - room, None), ylim=(0, None))


@styled
def draw_acceptance(ax, by_position, alpha=None):
    """Acceptance at each position of the block, given that it was reached.

    Args:
        ax: Axes.
        by_position: list of (accepted, reached) counts, from Trace.by_position.
        alpha: draws a horizontal line at this rate, named above the plot, if given.
    """
    rates = [accepted / reached for accepted, reached in by_position]
    names = [str(i + 1) for i in range(len(rates))]
    draw_bars(ax, {"measured": rates}, names, "accepted, if reached")
    ax.set(xlabel="position in the block", ylim=(0, 1.05))
    if alpha is not None:
        ax.axhline(alpha, color=PALETTE[1], linestyle="--")
        ax.annotate(f"alpha = {alpha:.2f}", (1, 1.02), ha="right", va="bottom",
                    color=PALETTE[1], xycoords="axes fraction")


@styled
def draw_heat(ax, shades, words, rows, columns, ylabel, xlabel, limits=(None, None)):
    """A table whose cells are shaded by one number and hold another.

    Args:
        ax: Axes.
        shades: shades[row][column], the number behind a cell's shade.
        words: words[row][column], what is written in the cell.
        rows, columns: the names at the left and beneath.
        ylabel, xlabel: axis labels.
        limits: (lowest, highest) number of the scale; None: the one that occurs.
    """
    low, high = limits
    picture = ax.imshow(shades, cmap="cividis", aspect="auto", vmin=low, vmax=high)
    for y, line in enumerate(words):
        for x, word in enumerate(line):
            pale = picture.norm(shades[y][x]) > 0.55
            ax.text(x, y, word, ha="center", va="center",
                    color="black" if pale else "white")
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.grid(False)
