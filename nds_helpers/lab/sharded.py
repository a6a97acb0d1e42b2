"""What chapter 08 measures of a sharded decoder, and how it shows that.

The chapter's cells write the records; here is what lays many of them side by side.
"""
from statistics import median

import pandas as pd

from .plots import MARKERS, PALETTE, draw_break_even, draw_lines, styled
from .timeline import KINDS, spans, split


def forwards_of(records):
    """The forwards that all ranks recorded, the quickest first.

    Args:
        records: records[rank][forward], as timeline.spans takes them.

    Returns:
        list of forwards, each a list of ranks, each a list of Span.
    """
    return sorted(map(spans, zip(*records)), key=lambda ranks: ranks[0][-1].end)


def beginning(ranks, calls):
    """Seconds from a forward's begin to the end of its first so many collectives."""
    return next(span for span in ranks[0] if span.call == calls).begin


def by_layer(forwards, layers, rank=0):
    """One rank's time in the embedding, in each layer and in the logits.

    Call 0 ends the embedding, calls 1 and 2 are the first layer's attention and MLP,
    and so on; the last one gathers the logits.

    Args:
        forwards: list from `forwards_of`; the median over its quicker third counts.
        layers: int, how many the model has.
        rank: int.

    Returns:
        list of layers + 2 dicts, kind -> seconds.
    """
    found = []
    for ranks in forwards[:max(1, len(forwards) // 3)]:
        parts = [[] for _ in range(layers + 2)]
        for span in ranks[rank]:
            parts[(span.call + 1) // 2].append(span)
        found.append([split(part) for part in parts])
    return [{kind: median(part[kind] for part in same) for kind in KINDS}
            for same in zip(*found)]


def blame_table(forwards):
    """What a profiler of single ranks would show: a DataFrame, one row a rank."""
    def middle(rank, *kinds):
        times = (split(ranks[rank]) for ranks in forwards)
        return f"{1000 * median(sum(t[kind] for kind in kinds) for t in times):.1f}"

    return pd.DataFrame([
        {"rank": rank, "ms in collectives": middle(rank, "wait", "exchange"),
         "of it waiting": middle(rank, "wait"), "ms computing": middle(rank, "compute")}
        for rank in range(len(forwards[0]))]).set_index("rank")


@styled
def draw_exchange(ax, sizes, measured):
    """An all-reduce's time over its size, one line a kind of group.

    Args:
        ax: Axes.
        sizes: list of bytes.
        measured: dict, name -> seconds, one a size.
    """
    draw_lines(ax, {name: ([s / 1024 for s in sizes], [1e6 * t for t in seconds])
                    for name, seconds in measured.items()},
               "KB", "microseconds an all-reduce")
    ax.set(xscale="log", yscale="log")


@styled
def draw_fit(ax, sizes, measured, costs):
    """Measured times as points, what their Cost predicts as dashed lines.

    Args:
        ax: Axes.
        sizes: list of bytes.
        measured: dict, name -> seconds, one a size.
        costs: dict, name -> network.Cost.
    """
    kilobytes = [size / 1024 for size in sizes]
    for name, marker, color in zip(costs, MARKERS, PALETTE):
        ax.plot(kilobytes, [1e6 * t for t in measured[name]], marker, color=color,
                label=f"{name}, measured")
        ax.plot(kilobytes, [1e6 * costs[name].seconds(s) for s in sizes], "--",
                color=color, label=f"{name}, alpha + beta · bytes")
    ax.set(xscale="log", yscale="log", xlabel="KB", ylabel="microseconds")
    ax.legend(frameon=False, fontsize=11)


@styled
def draw_scaling(ax, series, xlabel, ylabel, doubling=False):
    """Speeds over one rank or GPU, with the break-even line.

    Args:
        ax: Axes.
        series: dict, label -> (xs, speeds); all have the same xs.
        xlabel, ylabel: str.
        doubling: bool, whether equal steps of the axis mean twice as many.
    """
    draw_lines(ax, series, xlabel, ylabel)
    draw_break_even(ax)
    xs = next(iter(series.values()))[0]
    if doubling:
        ax.set_xscale("log", base=2)
    ax.set_xticks(xs, xs)
    ax.set_ylim(bottom=0)


def links_table(links, size):
    """The numbers of some network.Link as a DataFrame; alpha over `size` ranks."""
    return pd.DataFrame([
        {"link": link.name, "GB/s, one way": link.bandwidth / 1e9,
         "us a call": 1e6 * link.start, "us a step": 1e6 * link.step,
         f"alpha, {size} GPUs": round(1e6 * link.all_reduce(size).alpha, 1)}
        for link in links]).set_index("link")
