"""Pictures of one decoding step: attention, a draw, the cache, growth with width.

Like the draw_ functions of `plots`: an Axes and plain values in, nothing out.
"""
from .plots import PALETTE, draw_lines

# (colour, hatch) of a place in the cache.
SLOTS = {"kept": ("#CDE7F7", ""), "new": ("#F9D3BF", "///"), "free": ("white", "")}


def draw_attention(ax, weights, labels):
    """Where each token looks: brightest where it looks most, with the scale beside it.

    Args:
        ax: Axes.
        weights: FloatTensor[T, T], a row for each token that looks.
        labels: T texts; a line break shows as a pilcrow.
    """
    labels = [label.strip(" ").replace("\n", "¶") for label in labels]
    brightness = weights / weights.amax(1, keepdim=True)
    picture = ax.imshow(brightness.numpy(), cmap="cividis", vmin=0)
    ax.figure.colorbar(picture, ax=ax, label="share of the row's largest weight")
    ax.set_xticks(range(len(labels)), labels, rotation=90, fontsize=13)
    ax.set_yticks(range(len(labels)), labels, fontsize=13)
    ax.set(xlabel="token looked at", ylabel="token that looks")
    ax.grid(False)


def draw_staircase(ax, p, u, token, name):
    """How the uniform number u picks a token from the running sum of p.

    Shows the ids up to where the sum reaches 0.95, and at least up to the token.

    Args:
        ax: Axes.
        p: FloatTensor[V], probabilities.
        u: number in [0, 1).
        token: the id that it draws.
        name: what the token is called in the picture.
    """
    look = dict(color=PALETTE[1], linestyle="--", linewidth=2.4)
    sums = p.cumsum(0)
    end = 1 + max(int((sums < 0.95).sum()), token)
    ax.step(range(end), sums[:end].numpy(), where="post", color=PALETTE[0],
            linewidth=2.4)
    ax.hlines(u, 0, token, **look)
    ax.vlines(token, 0, u, **look)
    ax.plot(token, u, "o", color=PALETTE[1])
    side, shift = ("right", -14) if token > end / 2 else ("left", 14)
    ax.annotate(f"u = {u} draws {name}", (token, u), ha=side, fontsize=13,
                xytext=(shift, -24), textcoords="offset points")
    ax.set(xlabel="token id", ylabel="running sum", xlim=(0, end), ylim=(0, 1))


def draw_cache(ax, states, room):
    """The places of a cache at several moments, one row each.

    Args:
        ax: Axes.
        states: dict of label -> (places kept, places newly filled).
        room: places in all.
    """
    for row, (kept, new) in enumerate(states.values()):
        kinds = ["kept"] * kept + ["new"] * new + ["free"] * (room - kept - new)
        for place, kind in enumerate(kinds):
            colour, hatch = SLOTS[kind]
            ax.barh(row, 0.9, 0.6, left=place - 0.45, color=colour, hatch=hatch,
                    edgecolor="#444444")
    ax.set_yticks(range(len(states)), states)
    ax.set_xticks(range(0, room, 2))
    ax.set(xlabel="place in the cache", xlim=(-0.8, room - 0.2))
    ax.invert_yaxis()
    ax.grid(False)


def draw_growth(ax, widths, spreads, xlabel):
    """Cost against width, in units of the first, beside linear growth.

    Args:
        ax: Axes; both axes double from tick to tick.
        widths: list of widths, 1 first.
        spreads: list of measure.Spread of seconds.
        xlabel: what is counted.
    """
    one = spreads[0].median
    draw_lines(ax, {"measured": (widths, [s.median / one for s in spreads]),
                    "linear growth": (widths, widths)},
               xlabel, "cost, width 1 = 1")
    ax.fill_between(widths, [s.low / one for s in spreads],
                    [s.high / one for s in spreads], alpha=0.2, color=PALETTE[0])
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ticks = [2 ** i for i in range(widths[-1].bit_length())]
    ax.set_xticks(widths, widths)
    ax.set_yticks(ticks, ticks)
    ax.minorticks_off()
