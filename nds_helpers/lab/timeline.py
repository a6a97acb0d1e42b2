"""Where a rank's time goes: records of its collectives as spans on a time line.

A record is what a rank notes of one stretch of work: (when it began, list of Call,
when it ended), by time.perf_counter(). The clock is the same for all processes of one
machine; records of ranks on several machines can't be laid side by side.
"""
from typing import NamedTuple

from .plots import PALETTE, styled

# kind -> (label, look): told apart without colour too
KINDS = {
    "compute": ("computing", dict(facecolor=PALETTE[5], edgecolor="#222222")),
    "wait": ("waiting for the last rank", dict(facecolor="white", hatch="///",
                                               edgecolor="#888888")),
    "exchange": ("exchanging", dict(facecolor=PALETTE[1], edgecolor="#222222")),
}


class Span(NamedTuple):
    """A stretch of one rank's time.

    Attributes:
        kind: "compute", "wait" or "exchange".
        begin, end: seconds since the first rank began.
        call: number of the collective that it is, or leads up to; behind the last
            collective, how many there were.
    """

    kind: str
    begin: float
    end: float
    call: int

    @property
    def seconds(self):
        """How long it took."""
        return self.end - self.begin


def spans(records):
    """Cuts every rank's time into computing, waiting and exchanging.

    A collective can't end before the last rank has come. Until then the others wait;
    only from then on is anything exchanged.

    Args:
        records: list, one record a rank, of the same collectives.

    Returns:
        list of lists of Span, a rank's one behind the other without gaps.

    Raises:
        ValueError: the ranks have not called the same collectives.
    """
    first = min(began for began, _, _ in records)
    lasts = arrivals([calls for _, calls, _ in records])
    return [cut(began, zip(calls, lasts), ended, first)
            for began, calls, ended in records]


def arrivals(calls):
    """When the last rank came to each collective of a group.

    Args:
        calls: calls[rank], list of Call, the same collectives on every rank.

    Returns:
        list of time.perf_counter(), one a collective.
    """
    operations = [[call.operation for call in own] for own in calls]
    if any(other != operations[0] for other in operations):
        raise ValueError("these records aren't of the same collectives; every rank "
                         "must note the same stretch of work.")
    return [max(call.started for call in same) for same in zip(*calls)]


def cut(began, calls, ended, first):
    """Cuts one rank's time at its collectives: list of Span.

    Args:
        began, ended: time.perf_counter() of the whole stretch.
        calls: iterable of (Call, when the last rank came to it), in order.
        first: time.perf_counter() at which the spans' clock begins.
    """
    own, at, count = [], began, 0
    for call, last in calls:
        end = call.started + call.seconds
        last = min(last, end)  # nobody waits beyond the end of the call
        own += [Span("compute", at - first, call.started - first, count),
                Span("wait", call.started - first, last - first, count),
                Span("exchange", last - first, end - first, count)]
        at, count = end, count + 1
    return [*own, Span("compute", at - first, ended - first, count)]


def split(rank):
    """Sums up spans by kind.

    Args:
        rank: iterable of Span.

    Returns:
        dict, "compute", "wait", "exchange" -> seconds.
    """
    return {kind: sum(span.seconds for span in rank if span.kind == kind)
            for kind in KINDS}


@styled
def draw_timeline(ax, ranks, until=None, kinds=KINDS):
    """One lane a rank, time from left to right.

    Args:
        ax: Axes.
        ranks: list of lists of Span, from `spans`.
        until: seconds at which the picture ends; None: where the last rank does.
        kinds: kind -> (label, look) of the spans.
    """
    until = max(rank[-1].end for rank in ranks) if until is None else until
    for kind, (label, look) in kinds.items():
        for lane, rank in enumerate(ranks):
            drawn = [(1000 * s.begin, 1000 * s.seconds) for s in rank
                     if s.kind == kind and s.begin < until]
            ax.broken_barh(drawn, (lane - 0.3, 0.6), linewidth=0.6,
                           label=label if lane == 0 else None, **look)
    ax.set(xlim=(0, 1000 * until), ylim=(len(ranks) - 0.5, -0.5),
           xlabel="milliseconds")
    ax.set_yticks(range(len(ranks)), [f"rank {lane}" for lane in range(len(ranks))])
    ax.yaxis.grid(False)
    _legend(ax)


@styled
def draw_split(ax, rows, names, kinds=KINDS):
    """Stacked bars: how much of each was computing, waiting and exchanging.

    Args:
        ax: Axes.
        rows: list of dicts, kind -> seconds; kinds that no row has are left out.
        names: what stands under each bar.
        kinds: kind -> (label, look), from the bottom up.
    """
    base = [0.0] * len(rows)
    for kind, (label, look) in kinds.items():
        if any(kind in row for row in rows):
            heights = [1000 * row.get(kind, 0.0) for row in rows]
            ax.bar(range(len(rows)), heights, 0.75, base, label=label, linewidth=0.6,
                   **look)
            base = [a + b for a, b in zip(base, heights)]
    ax.set_xticks(range(len(rows)), names)
    ax.set(ylabel="milliseconds")
    ax.xaxis.grid(False)
    _legend(ax)


def _legend(ax):
    ax.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1),
              fontsize=12, handlelength=1.4, columnspacing=1.2)
