"""Plain decoding on two ranks of one thread beside one rank of one thread.

    .venv/bin/python bench/tensor_parallel.py [--quick]
"""
import argparse
import os
import time
from dataclasses import asdict

import report
import torch

from nds_helpers.decoding import Sampling, autoregressive
from nds_helpers.distributed import launch
from nds_helpers.lab.measure import Spread, seeded
from nds_helpers.models import Decoder, ModelConfig
from nds_helpers.parallel import (
    DistributedGroup,
    SharedMemoryGroup,
    partition,
    shard_model,
)

# Random weights: how fast a model is doesn't depend on what it says.
MODELS = {
    "16 heads, 8 kv heads, 8 layers": ModelConfig(
        vocab_size=32_000, width=1024, layers=8, heads=16, kv_heads=8, head_width=64,
        mlp_width=2816, max_length=2048),
    "SmolLM2-135M's shape, 9 heads, 3 kv heads": ModelConfig(
        vocab_size=49_152, width=576, layers=30, heads=9, kv_heads=3, head_width=64,
        mlp_width=1536, max_length=2048, tied=True),
}
JUDGED, LEAST = next(iter(MODELS)), 1.5  # the even one, with two cores to itself
PROMPT, TOKENS, TURNS = 8, 16, 12
QUICK = 2
ALONE, RANKS = "one rank", ("shared memory", "gloo")


def measure(me, config, turns):
    """Runs on two ranks: each side in turns, the order turned round every time.

    Returns:
        (side -> list of milliseconds a token, side -> list of the shares of the time
        spent in collectives, side -> last text).
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Decoder(config).eval().requires_grad_(False)
    shard = shard_model(model, me.group)
    if me.rank:
        model = None  # rank 0 alone runs the whole one
    groups = dict(zip(RANKS, (SharedMemoryGroup(), DistributedGroup())))
    sides = [ALONE, *groups]
    times, shares, texts = {s: [] for s in sides}, {s: [] for s in sides}, {}
    for turn in range(turns + 1):
        for side in sides[::-1] if turn % 2 else sides:
            group = groups.get(side, groups[RANKS[0]])
            group.barrier()
            if side == ALONE and me.rank:
                continue  # asleep at the next barrier
            decoder = model if side == ALONE else shard.join(group)
            taken, waited, texts[side] = decode(decoder, group)
            if turn:  # the first one only warms up
                times[side].append(1000 * taken / TOKENS)
                shares[side].append(waited / taken)
    return times, shares, texts


def decode(model, group):
    """Writes a text: (seconds, seconds in collectives, ids)."""
    with group.recording() as calls:
        began = time.perf_counter()
        text = autoregressive(model, torch.arange(PROMPT), max_new_tokens=TOKENS,
                              sampling=Sampling(0.0), generator=seeded(0)).tokens
        taken = time.perf_counter() - began
    return taken, sum(call.seconds for call in calls), text.tolist()


def tensor_parallel_rows(turns=TURNS):
    """Two ranks beside one, one row a model.

    Args:
        turns: int, two or more, how often each side has its turn.

    Returns:
        list of dicts that JSON can hold: model; millions of parameters; imbalance of
        the partition; load (of the machine at the start); sides, name -> Spread of
        milliseconds a token on rank 0; shares, name -> Spread of the part of them
        spent in collectives, waiting for the other rank included; ratios, name ->
        Spread over the turns of one rank's time over two ranks'; same_texts.
    """
    rows = []
    for name, config in MODELS.items():
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        times, shares, texts = launch(measure, 2, config, turns, timeout=900)[0]
        rows.append({
            "table": "tensor parallel", "model": name, "load": load,
            "millions": partition(config, 1).parameters(0) / 1e6,
            "imbalance": partition(config, 2).imbalance,
            "sides": {side: asdict(Spread.of(taken)) for side, taken in times.items()},
            "shares": {side: asdict(Spread.of(shares[side])) for side in RANKS},
            "ratios": {side: asdict(Spread.of(
                [a / b for a, b in zip(times[ALONE], times[side])])) for side in RANKS},
            "same_texts": len(set(map(tuple, texts.values()))) == 1})
    return rows


def wanted(rows):
    """The wanted figure beside the real one, as `report.wanted` gives its own."""
    ratio = next(r["ratios"][RANKS[0]] for r in rows if r["model"] == JUDGED)
    return [{
        "what": "plain decoding on 2 ranks of one thread over 1 rank of one thread, "
                f"shared memory ({JUDGED})",
        "wanted": f"at least {LEAST:g}x", "figure": ratio["median"],
        "shown": report.times(ratio), "met": ratio["median"] >= LEAST}]


def page(rows):
    """The rows as a Markdown table."""
    return report.table(
        ["model", "two ranks over", "one rank, ms a token", "two ranks, ms a token",
         "faster by", "of it in collectives", "largest over mean share", "same text"],
        [(f"{r['model']}, {r['millions']:.0f} million", side, report.spread(r, ALONE),
          report.spread(r, side), report.times(r["ratios"][side]),
          f"{r['shares'][side]['median']:.0%}", f"{r['imbalance']:.2f}",
          "yes" if r["same_texts"] else "no") for r in rows for side in RANKS])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure two ranks beside one.")
    parser.add_argument("--quick", action="store_true",
                        help="a few turns only: shows that it runs, not how fast")
    found = tensor_parallel_rows(QUICK if parser.parse_args().quick else TURNS)
    print(page(found), *wanted(found), sep="\n")
