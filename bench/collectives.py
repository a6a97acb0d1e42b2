"""Shared memory beside gloo: microseconds an all-reduce, two ranks on the CPU.

    .venv/bin/python bench/collectives.py [--quick]
"""
import argparse
from dataclasses import asdict
from statistics import median

import report
import torch

from nds_helpers.distributed import launch
from nds_helpers.lab.measure import Spread
from nds_helpers.parallel import DistributedGroup, SharedMemoryGroup

KILOBYTES = (1, 64, 1024)
TURNS, CALLS = 60, 10  # each side makes ten calls, then the other does
QUICK = 4
LEAST = 5.0  # how many times faster shared memory should be, up to JUDGED
JUDGED = 64  # kilobytes


def measure(me, turns):
    """Runs on the ranks: both groups in turns, the order turned round every time.

    Returns:
        dict, kilobytes -> {group's name: list of turns, each a list of seconds}.
    """
    groups = {"gloo": DistributedGroup(), "shared memory": SharedMemoryGroup()}
    found = {}
    for kilobytes in KILOBYTES:
        x = torch.ones(256 * kilobytes)
        found[kilobytes] = {name: [] for name in groups}
        for turn in range(turns + 1):
            for name in sorted(groups, reverse=turn % 2):
                taken = burst(groups[name], x)
                if turn:  # the first one only warms up
                    found[kilobytes][name].append(taken)
    return found


def burst(group, x):
    """Seconds of each of CALLS all-reduces, begun together."""
    group.barrier()
    with group.recording() as calls:
        for _ in range(CALLS):
            group.all_reduce(x)
    return [call.seconds for call in calls]


def collective_rows(turns=TURNS):
    """Shared memory beside gloo, one row a message size.

    Args:
        turns: int, two or more, how often each side has its turn.

    Returns:
        list of dicts that JSON can hold: kilobytes; sides, name -> Spread of
        microseconds a call on rank 0; ratio, Spread over the turns of gloo's median
        over shared memory's.
    """
    rows = []
    for kilobytes, sides in launch(measure, 2, turns)[0].items():
        ratios = [median(theirs) / median(ours) for ours, theirs
                  in zip(sides["shared memory"], sides["gloo"])]
        rows.append({
            "table": "collectives", "kilobytes": kilobytes, "sides": {
                name: asdict(Spread.of([1e6 * s for turn in taken for s in turn]))
                for name, taken in sides.items()},
            "ratio": asdict(Spread.of(ratios))})
    return rows


def wanted(rows):
    """The wanted figures beside the real ones, as `report.wanted` gives its own."""
    return [{
        "what": f"all-reduce of {r['kilobytes']} KB, 2 ranks: shared memory over gloo",
        "wanted": f"at least {LEAST:g}x", "figure": r["ratio"]["median"],
        "shown": report.times(r["ratio"]), "met": r["ratio"]["median"] >= LEAST}
        for r in rows if r["kilobytes"] <= JUDGED]


def page(rows):
    """The rows as a Markdown table."""
    return report.table(
        ["KB", "shared memory, µs", "gloo, µs", "faster by"],
        [(r["kilobytes"], report.spread(r, "shared memory"), report.spread(r, "gloo"),
          report.times(r["ratio"])) for r in rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare shared memory with gloo.")
    parser.add_argument("--quick", action="store_true",
                        help="a few calls only: shows that it runs, not how fast")
    print(page(collective_rows(QUICK if parser.parse_args().quick else TURNS)))
