"""Five things that a rank can be doing in a round, as spans on a time line."""
from .plots import PALETTE
from .timeline import Span, arrivals, cut

# phase -> (label, look): told apart without colour too
PHASES = {
    "draft": ("draft", dict(facecolor=PALETTE[3], hatch="..", edgecolor="#222222")),
    "compute": ("target's forward", dict(facecolor=PALETTE[5], edgecolor="#222222")),
    "communication": ("communication", dict(facecolor=PALETTE[1],
                                            edgecolor="#222222")),
    "verdict": ("verdict and the rest", dict(facecolor=PALETTE[4], hatch="xx",
                                             edgecolor="#222222")),
    "idle": ("idle", dict(facecolor="white", hatch="///", edgecolor="#888888")),
}


def phased(noted):
    """Cuts every rank's time into the five phases.

    Collectives tell working from waiting and exchanging, as in `timeline.spans`, here
    for ranks that are in several groups; the marks tell what the work was. Work that
    no mark covers is the verdict and what goes with it: probabilities, bookkeeping,
    rolling back.

    Args:
        noted: list of watch.Noted, one a rank, of the same generation.

    Returns:
        list of lists of Span, kinds from PHASES, one behind the other without gaps.
    """
    first = min(rank.began for rank in noted)
    groups = {name for rank in noted for name in rank.calls}
    lasts = {name: arrivals([r.calls[name] for r in noted if name in r.calls])
             for name in groups}
    lanes = []
    for rank in noted:
        met = [pair for name, calls in rank.calls.items()
               for pair in zip(calls, lasts[name])]
        met.sort(key=lambda pair: pair[0].started)
        lanes.append([piece for span in cut(rank.began, met, rank.ended, first)
                      for piece in pieces(span, rank.marks, first)])
    return lanes


def pieces(span, marks, first):
    """A span of `timeline.cut` in phases.

    Args:
        span: Span, its times counted from `first`.
        marks: list of watch.Mark of this rank.
        first: time.perf_counter() at 0.

    Yields:
        Span, none of them empty.
    """
    if span.kind != "compute":
        kind = {"wait": "idle", "exchange": "communication"}[span.kind]
        if span.seconds:
            yield span._replace(kind=kind)
        return
    inside = [(mark.phase, mark.began - first, mark.ended - first) for mark in marks
              if mark.ended - first > span.begin and mark.began - first < span.end]
    edges = {edge for _, *both in inside for edge in both}
    edges = sorted({span.begin, span.end}
                   | {edge for edge in edges if span.begin < edge < span.end})
    for begin, end in zip(edges, edges[1:]):
        covering = [phase for phase, a, b in inside if a <= begin and end <= b]
        yield Span(covering[0] if covering else "verdict", begin, end, span.call)


def seconds_by_phase(lane):
    """Sums up one rank's spans: dict, phase -> seconds, all five."""
    return {phase: sum(span.seconds for span in lane if span.kind == phase)
            for phase in PHASES}


def bottleneck(phases):
    """What a round waits for: the busiest rank, and what it mostly does.

    Args:
        phases: list with a dict a rank, phase -> seconds a round.

    Returns:
        (rank, phase): the rank that idles least, and the longest of its phases
        beside idling.
    """
    rank = min(range(len(phases)), key=lambda r: phases[r]["idle"])
    work = {phase: t for phase, t in phases[rank].items() if phase != "idle"}
    return rank, max(work, key=work.get)
