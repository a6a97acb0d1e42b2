"""Pictures of ranks at work on a round: who sends what when, and a draw over slices.

Like the draw_ functions of `plots`: an Axes and plain values in, nothing out.
"""
from typing import NamedTuple

from matplotlib.patches import Rectangle

from .matrices import EDGE, look
from .plots import PALETTE, PLATE, new_figure, styled

LANE, ROW = 3.6, 0.52  # inches between two ranks, and between two steps


class Message(NamedTuple):
    """One collective, as an arrow between ranks.

    Attributes:
        text: what is sent.
        senders, receivers: tuples of ranks; a rank may be in both.
        bytes: int, what all senders send together.
    """

    text: str
    senders: tuple
    receivers: tuple
    bytes: int


@styled
def draw_messages(ax, size, steps):
    """A sequence diagram: a line a rank, time from top to bottom.

    Args:
        ax: Axes, taken over whole.
        size: int, how many ranks.
        steps: list from the top down. A step is a Message, or a list of what each
            rank does by itself, one text a rank, "" for nothing.
    """
    for rank in range(size):
        ax.plot([rank, rank], [-0.4, len(steps) - 0.4], color="#AAAAAA", linewidth=1,
                zorder=0)
        ax.text(rank, -0.75, f"rank {rank}", ha="center", va="center", fontsize=13)
    for y, step in enumerate(steps):
        if isinstance(step, Message):
            draw_arrows(ax, step, y)
            continue
        for rank, text in enumerate(step):
            if text:
                ax.text(rank, y, text, ha="center", va="center", fontsize=11.5,
                        bbox=dict(boxstyle="round,pad=0.35", edgecolor=EDGE,
                                  facecolor=look(rank)["facecolor"]))
    ax.set(xlim=(-0.5, size - 0.5), ylim=(len(steps) - 0.4, -1.1))
    ax.axis("off")


def draw_arrows(ax, message, y):
    """A message's arrows at height y, its text and bytes above them."""
    ends = sorted({*message.senders, *message.receivers})
    for sender in message.senders:
        for receiver in message.receivers:
            if receiver != sender:
                ax.annotate("", (receiver, y), (sender, y), arrowprops=dict(
                    arrowstyle="-|>", color=PALETTE[1], linewidth=2))
    ax.text((ends[0] + ends[-1]) / 2, y - 0.13, f"{message.text}, {message.bytes:,} B",
            ha="center", va="bottom", fontsize=11.5, color=PALETTE[1], bbox=PLATE)


def messages_figure(size, steps):
    """A figure of its own for `draw_messages`, just large enough."""
    figure, ax = new_figure(figsize=(LANE * size, ROW * (len(steps) + 1.2)))
    draw_messages(ax, size, steps)
    return figure


@styled
def draw_ruler(ax, slices, u, names):
    """A draw over slices: the weights end to end, cut where the ranks' slices are.

    Args:
        ax: Axes, taken over whole.
        slices: list of lists, each rank's weights; none below 0.
        u: number in [0, 1): the arrow points at u times the total.
        names: what each word is called, over all slices.
    """
    total, x, word = sum(map(sum, slices)), 0.0, 0
    for rank, weights in enumerate(slices):
        begin = x
        for weight in weights:
            ax.add_patch(Rectangle((x, 0), weight, 1, **look(rank)))
            if weight > 0.04 * total:
                ax.text(x + weight / 2, 0.5, names[word], ha="center", va="center",
                        fontsize=12, bbox=PLATE)
            x, word = x + weight, word + 1
        ax.plot([begin, begin], [-0.55, 1.15], color=EDGE, linewidth=2)
        ax.text((begin + x) / 2, -0.32, f"rank {rank}: {x - begin:.2f}", ha="center",
                va="center", fontsize=12)
    ax.plot([x, x], [-0.55, 1.15], color=EDGE, linewidth=2)
    ax.annotate(f"u · total = {u * total:.2f}", (u * total, 1), (u * total, 1.75),
                ha="center", fontsize=13, color=PALETTE[1],
                arrowprops=dict(arrowstyle="-|>", color=PALETTE[1], linewidth=2))
    ax.set(xlim=(-0.02 * total, 1.02 * total), ylim=(-0.7, 2.1))
    ax.axis("off")
