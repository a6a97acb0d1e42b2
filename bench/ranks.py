"""Speculation on two ranks beside plain decoding on two ranks and on one.

    .venv/bin/python bench/ranks.py [--quick]
"""
import argparse
import os
from dataclasses import asdict
from statistics import median

import report
from smollm2 import prompts as chat_prompts

from nds_helpers.decoding import (
    EitherDrafter,
    NGramDrafter,
    Sampling,
    autoregressive,
    verify_tokens,
)
from nds_helpers.distributed import Workers, speculative_on_ranks
from nds_helpers.lab import measure, watch
from nds_helpers.lab.measure import Spread, seeded
from nds_helpers.lab.quality import held_out_texts
from nds_helpers.lab.sweep import PLACEMENTS
from nds_helpers.models import Pair, load_pair, smollm2
from nds_helpers.models.int8 import quantise

ONE, TWO = "plain, one rank", "plain, two ranks"
PLAIN = ONE, TWO
AHEAD = "own rank"  # the draft overlaps with the target: the formula isn't for it
GREEDY = Sampling(0.0)
GIVEN, TOKENS, TURNS = 32, 48, 8
JUDGED, LEAST = "smollm2", 1.3
K = {"tiny": 4, JUDGED: 3}
LOOK_UP_FIRST = JUDGED,  # what a chat model says repeats its prompt
QUICK = dict(pairs=("tiny",), turns=2, tokens=8)


def pairs_here():
    """Names of the pairs on this machine: SmolLM2 where it has been fetched before."""
    fetched = (smollm2.cache_folder() / smollm2.FOLDER).exists()
    return ("tiny", "smollm2") if fetched else ("tiny",)


def prompts(name, pair):
    """What is continued: held-out text, or answers to chat prompts, kind after kind."""
    if name == "tiny":
        texts = (pair.encode(text[:1000])[:GIVEN] for text in held_out_texts())
        return [ids for ids in texts if len(ids) == GIVEN]
    asked = sorted(chat_prompts(2), key=lambda prompt: prompt[0].split("-")[1])
    return [pair.chat(text) for _, text in asked]


def load(me, name):
    """The pair on this rank, as `watch.load` leaves it in me.state.

    A whole draft of SmolLM2 becomes int8, which changes the speed alone; its shards
    stay float32.
    """
    watch.load(me, name)
    me.state["look_up"] = name in LOOK_UP_FIRST
    if name == JUDGED:
        quantise(me.state["draft"])


class Counted:
    """A drafter that counts its guesses."""

    def __init__(self, drafter):
        self.drafter, self.reset, self.guesses = drafter, drafter.reset, 0

    def propose(self, *asked):
        """The drafter's own Draft."""
        draft = self.drafter.propose(*asked)
        self.guesses += len(draft.tokens)
        return draft


def decode(me, side, prompt, k, tokens):
    """One generation on this rank and the others.

    Returns:
        (seconds a token, ids, acceptance by position or None, the draft model's
        guesses a round over k: a look-up before it may make some in its place).
    """
    me.group.barrier()
    if side in PLAIN:
        taken, result = measure.timed(
            autoregressive, me.state["target"], prompt, max_new_tokens=tokens,
            sampling=GREEDY, generator=seeded(0))
        return taken / len(result.tokens), result.tokens.tolist(), None, None
    target, drafter = watch.placed(me, side)
    model = drafter and Counted(drafter)
    drafter = EitherDrafter(NGramDrafter(shortest=2), model) \
        if model and me.state["look_up"] else model
    taken, result = measure.timed(
        speculative_on_ranks, me, target, drafter, prompt, k=k,
        max_new_tokens=tokens, sampling=GREEDY)
    share = model.guesses / (k * len(result.trace)) if model else None
    return (taken / len(result.tokens), result.tokens.tolist(),
            measure.rates(result.trace), share)


def costs(me, side, k, context):
    """The steps that the formula needs, on these ranks: as `measure.step_burst`."""
    draft = me.state["draft_shard" if side == "sharded" else "draft"]
    return measure.step_burst(Pair(me.state["target"], draft, None), k, context,
                              GREEDY, verify_tokens)


def measured(name, turns, tokens):
    """All sides in turns, a prompt a turn, the order turned round every time.

    Returns:
        (side -> list of milliseconds a token, side -> list of predicted speedups over
        plain decoding on two ranks, side -> list of texts).
    """
    asked, k = prompts(name, load_pair(name))[:turns + 1], K[name]
    sides = [*PLAIN, *PLACEMENTS]
    times, said, predicted = ({side: [] for side in sides} for _ in range(3))
    with Workers(1) as one, Workers(2) as two:
        one.run(load, name, timeout=300)
        two.run(load, name, timeout=300)
        for turn, prompt in enumerate(asked):
            for side in sides[::-1] if turn % 2 else sides:
                team = one if side == ONE else two
                taken, ids, rates, share = team.run(decode, side, prompt, k, tokens,
                                                    timeout=300)[0]
                if turn == 0:  # only warms up
                    continue
                times[side].append(1000 * taken)
                said[side].append(ids)
                if rates and side != AHEAD:
                    middle = len(prompt) + tokens // 2
                    steps = two.run(costs, side, k, middle, timeout=300)[0]
                    steps["t_draft"] *= share
                    predicted[side].append(measure.predict(rates, k, steps))
    return times, predicted, said


def rank_rows(pairs=None, turns=TURNS, tokens=TOKENS):
    """One row for each pair and place of the draft.

    Args:
        pairs: names for `load_pair`; None for those of `pairs_here`.
        turns: int, two or more, how often each side has its turn.
        tokens: int, of a generation.

    Returns:
        list of dicts that JSON can hold: pair, k, load; sides, name -> Spread of
        milliseconds a token (the place and both plain ones); over_two and
        over_better, Spreads of the speedup over plain decoding on two ranks and over
        the better of the plain ones; predicted, the Spread of what the formula says
        of over_two, and off, by how much it is wrong in the median: both None where
        it doesn't apply; same_texts, how many were plain decoding's own.
    """
    rows = []
    for name in pairs or pairs_here():
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        times, predicted, said = measured(name, turns, tokens)
        better = min(PLAIN, key=lambda side: median(times[side]))
        for place in PLACEMENTS:
            over = {base: [a / b for a, b in zip(times[base], times[place])]
                    for base in PLAIN}
            promised = predicted[place]
            rows.append({
                "table": "speculation on ranks", "pair": name, "place": place,
                "k": K[name], "load": load, "better": better,
                "sides": {side: asdict(Spread.of(times[side]))
                          for side in (place, *PLAIN)},
                "over_two": asdict(Spread.of(over[TWO])),
                "over_better": asdict(Spread.of(over[better])),
                "predicted": asdict(Spread.of(promised)) if promised else None,
                "off": (median(p / r for p, r in zip(promised, over[TWO])) - 1
                        if promised else None),
                "same_texts": sum(a == b for a, b in zip(said[place], said[TWO])),
                "texts": len(said[place])})
    return rows


def wanted(rows):
    """The wanted figures beside the real ones, as `report.wanted` gives its own."""
    lines = []
    judged = [r for r in rows if r["pair"] == JUDGED]
    if judged:
        best = max(judged, key=lambda r: r["over_better"]["median"])
        figure = best["over_better"]["median"]
        lines.append({
            "what": f"speculation on 2 ranks, n-gram, else draft model, K {K[JUDGED]}, "
                    f"draft on {best['place']}, over the better plain decoding "
                    f"({JUDGED}: {best['better']})",
            "wanted": f"at least {LEAST:g}x", "figure": figure,
            "shown": report.times(best["over_better"]), "met": figure >= LEAST})
    worst = max((r for r in rows if r["off"] is not None), key=lambda r: abs(r["off"]))
    return [*lines, {
        "what": "the formula's speedup on 2 ranks against the measured one",
        "wanted": f"within {report.LIMIT:.0%}", "figure": worst["off"],
        "shown": f"{worst['off']:+.0%} at worst ({worst['pair']}, draft on "
                 f"{worst['place']})", "met": abs(worst["off"]) <= report.LIMIT}]


def page(rows):
    """The rows as a Markdown table."""
    return report.table(
        ["pair, K", "draft on", "ms a token", "plain, two ranks", "plain, one rank",
         "speedup over two ranks", "formula", "off by", "over the better plain one",
         "same texts"],
        [(f"{r['pair']}, K {r['k']}", r["place"], report.spread(r, r["place"]),
          report.spread(r, TWO), report.spread(r, ONE), report.times(r["over_two"]),
          report.times(r["predicted"]) if r["predicted"] else "",
          f"{r['off']:+.0%}" if r["predicted"] else "",
          report.times(r["over_better"]), f"{r['same_texts']} of {r['texts']}")
         for r in rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure speculation on two ranks.")
    parser.add_argument("--quick", action="store_true",
                        help="a few turns only: shows that it runs, not how fast")
    found = rank_rows(**QUICK if parser.parse_args().quick else {})
    print(page(found), *wanted(found), sep="\n")
