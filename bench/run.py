"""Measures the speeds of this machine, side by side, and writes a table.

    .venv/bin/python bench/run.py [--quick] [--out FOLDER]

Nothing here judges: a wanted figure that isn't met is shown as not met.
"""
import argparse
import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import collectives
import ranks
import report
import tensor_parallel
import torch
from peers import DYNAMIC, Peer
from tqdm import tqdm

from nds_helpers.decoding import (
    ModelDrafter,
    NGramDrafter,
    Sampling,
    Trace,
    autoregressive,
    speculative,
    verify_block,
    verify_tokens,
)
from nds_helpers.lab import machine
from nds_helpers.lab.measure import (
    Spread,
    middle_costs,
    predict,
    seeded,
    step_burst,
    timed,
)
from nds_helpers.lab.quality import held_out_texts
from nds_helpers.models import load_pair
from nds_helpers.models.pairs import DATA


@dataclass(frozen=True)
class Size:
    """How much is measured: every side decodes every prompt once."""

    prompts: int = 8
    given: int = 32  # tokens of each prompt
    sweep_tokens: int = 96  # a generation, where K is varied
    duel_tokens: int = 128  # a generation, where transformers takes part
    greedy_ks: tuple = (1, 2, 3, 4, 5, 6, 7, 8)
    warm_ks: tuple = (2, 4, 6)  # at temperature 1
    ngram_k: int = 4


QUICK = Size(prompts=2, given=16, sweep_tokens=6, duel_tokens=6, greedy_ks=(1, 2),
             warm_ks=(2,))


@dataclass(frozen=True)
class Side:
    """One way to decode: `run(prompt, tokens, seed)` returns (ids, Trace or None).

    `burst(context)`, where there is one, measures the steps that the formula
    needs, apart from any run.
    """

    name: str
    run: object
    threads: int
    temperature: float = 0.0
    k: object = 0
    burst: object = None

    @property
    def label(self):
        """The name, with K where there is one."""
        return f"{self.name}, K {self.k}" if self.k else self.name


@dataclass
class Record:
    """What one side did, prompt by prompt: ms a token, ids, rounds, step times."""

    milliseconds: list = field(default_factory=list)
    texts: list = field(default_factory=list)
    traces: list = field(default_factory=list)
    costs: list = field(default_factory=list)

    def promised(self, k):
        """The formula's speedup at each prompt, from its own rates and step times."""
        return [predict([a / n for a, n in trace.by_position()], k, costs)
                for trace, costs in zip(self.traces, self.costs)]


class Bench:
    """The models, the prompts and the two measurements."""

    def __init__(self, size):
        self.size, self.threads = size, torch.get_num_threads()
        self.pair = load_pair("tiny")
        self.peer = Peer(DATA / "tiny" / "target", DATA / "tiny" / "draft")
        texts = (self.pair.encode(text[:1000]) for text in held_out_texts())
        long = [ids[:size.given] for ids in texts if len(ids) >= size.given]
        self.prompts = long[::len(long) // size.prompts][:size.prompts]

    def plain(self, temperature=0.0, threads=None):
        """Our plain decoding."""
        def run(prompt, tokens, seed):
            return autoregressive(
                self.pair.target, prompt, max_new_tokens=tokens,
                sampling=Sampling(temperature), generator=seeded(seed)).tokens, None

        return Side("plain", run, threads or self.threads, temperature)

    def fast(self, k, temperature=0.0, threads=None, verify=verify_tokens, ngram=False):
        """Our speculative decoding."""
        drafter = NGramDrafter() if ngram else ModelDrafter(self.pair.draft)
        sampling = Sampling(temperature)

        def run(prompt, tokens, seed):
            result = speculative(
                self.pair.target, drafter, prompt, k=k, max_new_tokens=tokens,
                sampling=sampling, generator=seeded(seed), verify=verify)
            return result.tokens, result.trace

        def burst(context):
            return step_burst(self.pair, k, context, sampling, verify)

        name = "n-gram drafter" if ngram else f"speculative, {verify.__name__}"
        return Side(name, run, threads or self.threads, temperature, k,
                    None if ngram else burst)

    def theirs(self, k=0, temperature=0.0, threads=None):
        """`transformers`' generate; assisted where k isn't 0."""
        def run(prompt, tokens, seed):
            return self.peer.generate(prompt, tokens, temperature, seed, k), None

        name = "transformers assisted" if k else "transformers generate"
        return Side(name, run, threads or self.threads, temperature, k)

    def sweep_sides(self):
        """Every K greedily, some at temperature 1 with both verifiers; n-grams."""
        size = self.size
        return (
            [self.plain(t) for t in (0.0, 1.0)]
            + [self.fast(k) for k in size.greedy_ks]
            + [self.fast(k, 1.0, verify=v) for k in size.warm_ks
               for v in (verify_tokens, verify_block)]
            + [self.fast(size.ngram_k, t, ngram=True) for t in (0.0, 1.0)])

    def duel_sides(self, k):
        """Ours and theirs at one K, with torch's default threads and with one."""
        greedy = [side(*arguments, threads=threads)
                  for threads in sorted({self.threads, 1}, reverse=True)
                  for side, *arguments in ((self.plain,), (self.theirs,),
                                           (self.fast, k), (self.theirs, k))]
        return greedy + [self.theirs(DYNAMIC), self.plain(1.0), self.theirs(0, 1.0),
                         self.fast(k, 1.0), self.theirs(k, 1.0)]

    def measure(self, sides, tokens, title):
        """Runs all sides in turns; the order turns round at every other prompt.

        Returns:
            dict, Side -> Record.
        """
        records = {side: Record() for side in sides}
        for side in sides:  # once untimed: first calls allocate and compile
            torch.set_num_threads(side.threads)
            side.run(self.prompts[0], 4, 0)
        with tqdm(total=len(self.prompts) * len(sides), desc=title, unit="run",
                  mininterval=1) as bar:
            for seed, prompt in enumerate(self.prompts):
                for side in sides[::-1] if seed % 2 else sides:
                    self.turn(side, records[side], prompt, tokens, seed)
                    bar.update()
        torch.set_num_threads(self.threads)
        return records

    def turn(self, side, record, prompt, tokens, seed):
        """One generation of one side, and its step times right behind it."""
        torch.set_num_threads(side.threads)
        taken, (ids, trace) = timed(side.run, prompt, tokens, seed)
        record.milliseconds.append(1000 * taken / len(ids))
        record.texts.append(ids.tolist())
        if trace is not None:
            record.traces.append(trace)
        if side.burst and tokens == self.size.sweep_tokens:
            record.costs.append(side.burst(len(prompt) + tokens // 2))


def row(table, side, record, against, base):
    """Two sides of one measurement, as numbers that JSON can hold.

    `ratio` is the second side's time over the first's: above 1 the first wins.
    """
    ours, theirs = record.milliseconds, base.milliseconds
    ratios = [b / a for a, b in zip(ours, theirs)]
    found = {
        "table": table, "threads": side.threads, "temperature": side.temperature,
        "k": side.k, "sides": {
            side.label: asdict(Spread.of(ours)),
            against.label: asdict(Spread.of(theirs))},
        "ratio": asdict(Spread.of(ratios)),
        "same_texts": sum(a == b for a, b in zip(record.texts, base.texts)),
        "texts": len(record.texts),
    }
    if record.traces:
        whole = Trace(r for trace in record.traces for r in trace)
        found |= {name: whole.summary()[name]
                  for name in ("acceptance_rate", "committed_per_round")}
        found["rates"] = [a / n for a, n in whole.by_position()]
    if record.costs:
        promised = record.promised(side.k)
        found["costs"] = {name: 1000 * value
                          for name, value in middle_costs(record.costs).items()}
        found["predicted"] = asdict(Spread.of(promised))
        found["off"] = median(p / r for p, r in zip(promised, ratios)) - 1
    return found


def sweep_rows(records):
    """Every speculative side against plain decoding at the same temperature."""
    plain = {s.temperature: (s, r) for s, r in records.items() if s.name == "plain"}
    return [row("sweep", s, r, *plain[s.temperature])
            for s, r in records.items() if s.name != "plain"]


def duel_rows(records):
    """Ours against theirs, plain with plain, and each K with the same K."""
    def find(name, *setting):
        return next((s, r) for s, r in records.items() if s.name.startswith(name)
                    and setting == (s.threads, s.temperature))

    rows = []
    for side, record in records.items():
        setting = side.threads, side.temperature
        ours = find("speculative" if side.k else "plain", *setting)
        if side.name.startswith("transformers"):
            rows.append(row("duel", *ours, side, record))
        elif side.k:
            rows.append(row("duel", side, record, *find("plain", *setting)))
    return rows


def main():
    parser = argparse.ArgumentParser(description="Measure speeds, write a table.")
    parser.add_argument("--quick", action="store_true",
                        help="a few tokens only: shows that it runs, not how fast")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent,
                        help="folder for results.json and results.md")
    chosen = parser.parse_args()
    began, load = time.time(), os.getloadavg() if hasattr(os, "getloadavg") else (0,)
    size = QUICK if chosen.quick else Size()
    bench = Bench(size)
    swept = sweep_rows(bench.measure(bench.sweep_sides(), size.sweep_tokens, "sweep"))
    greedy = [r for r in swept if r["temperature"] == 0 and "predicted" in r]
    best = max(greedy, key=lambda r: r["ratio"]["median"])["k"]
    duels = duel_rows(bench.measure(bench.duel_sides(best), size.duel_tokens, "duel"))
    quick = dict(turns=collectives.QUICK) if chosen.quick else {}
    two = {"collectives": collectives.collective_rows(**quick)}
    quick = dict(turns=tensor_parallel.QUICK) if chosen.quick else {}
    two["tensor parallel"] = tensor_parallel.tensor_parallel_rows(**quick)
    quick = ranks.QUICK if chosen.quick else {}
    two["speculation on ranks"] = ranks.rank_rows(**quick)
    results = {
        "machine": machine.facts() | {"load at the start": round(load[0], 2)},
        "size": asdict(size), "quick": chosen.quick, "best_k": best,
        "minutes": round((time.time() - began) / 60, 1), "rows": swept + duels} | two
    results["wanted"] = (report.wanted(results, bench.threads)
                         + collectives.wanted(two["collectives"])
                         + tensor_parallel.wanted(two["tensor parallel"])
                         + ranks.wanted(two["speculation on ranks"]))
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    text = report.page(results, {
        "Two ranks: an all-reduce": collectives.page(two["collectives"]),
        "Two ranks of one thread beside one, plain decoding":
            tensor_parallel.page(two["tensor parallel"]),
        "Two ranks: speculation beside plain decoding, greedy":
            ranks.page(two["speculation on ranks"])})
    (chosen.out / "results.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
