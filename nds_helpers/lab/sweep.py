"""A sweep over K, temperature, ranks and the draft's place: measured once, kept.

Each finished combination is written at once, as one line of JSON. A sweep that was
stopped goes on where it was, and a reader without two cores draws from our lines.
"""
import json
import os
import statistics
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from ..decoding import Sampling, Trace
from . import machine, measure, watch
from .phases import phased, seconds_by_phase
from .theory import expected_tokens_by_position

DATA = Path(__file__).resolve().parents[2] / "data"
SHIPPED = DATA / "recorded" / "tiny.jsonl"  # measured by `make recorded`
OWN = DATA / "work" / "recorded" / "tiny.jsonl"  # a reader's; git doesn't see it

KS = (1, 2, 4, 6, 8)
TEMPERATURES = (0.0, 0.7, 1.4)
PLACEMENTS = ("rank 0", "every rank", "sharded", "own rank")  # one rank: the first
PROMPTS = ("KING HENRY.\n", "O Rose, ", "Enter the GHOST.\n", "Of Man's ")
TOKENS, SEED = 48, 0
DRAWN = (4, 0.7)  # K and temperature of the runs that keep their time lines
DRAWN_SECONDS = 0.05  # so much of them


class Setting(NamedTuple):
    """One combination of the sweep.

    Attributes:
        k: drafted tokens a round, 1 or more.
        temperature: float.
        ranks: int, over how many the target is sharded.
        placement: where the draft runs, one of PLACEMENTS.
    """

    k: int
    temperature: float
    ranks: int
    placement: str


def grid(ks=KS, temperatures=TEMPERATURES, ranks=(1, 2), placements=PLACEMENTS):
    """All combinations, those to be compared with each other close together.

    Returns:
        list of Setting; one rank has one place for the draft.
    """
    return [Setting(k, temperature, n, placement)
            for temperature, k, n in product(temperatures, ks, ranks)
            for placement in (placements if n > 1 else placements[:1])]


def run(settings, path, teams, pair, tell=lambda done, total: None, prompts=PROMPTS):
    """Measures what the file doesn't hold yet; every record is written at once.

    A record of another seed, or of other texts, doesn't count: its setting is measured
    again.

    Args:
        settings: list of Setting.
        path: of the file; its folder is made.
        teams: dict, number of ranks -> Workers that ran `watch.load`.
        pair: the same Pair, here.
        tell: called with (done, total) after each setting.
        prompts: texts to begin with, as in `one`.

    Returns:
        list of records, of these settings only, in their order.
    """
    path = Path(path)
    mend(path)
    request = request_of(prompts, TOKENS)
    known = {setting_of(record): record for record in read(path)
             if request.items() <= record.items()}
    facts = machine.facts() | {"load": load_average()}
    del facts["threads torch uses"]  # here; a rank has its own share of the cores
    for number, setting in enumerate(settings, 1):
        if setting not in known:
            known[setting] = one(setting, teams[setting.ranks], pair, prompts) | {
                "machine": facts}
            append(path, known[setting])
        tell(number, len(settings))
    return [known[setting] for setting in settings]


def one(setting, workers, pair, prompts=PROMPTS, tokens=TOKENS):
    """Measures one setting: every prompt plainly and by speculation, in turns.

    Plain decoding has the target on all ranks, wherever the draft would be.

    Args:
        setting: Setting.
        workers: Workers that ran `watch.load`.
        pair: the same Pair, here; with a tokenizer.
        prompts: texts to begin with.
        tokens: how many each generation writes.

    Returns:
        dict that JSON can hold; data/recorded/README.md describes it.
    """
    runs = {"plain": [], "fast": []}
    for number, prompt in enumerate(map(pair.encode, prompts)):
        for name in ("fast", "plain") if number % 2 else ("plain", "fast"):
            k, placement = ((setting.k, setting.placement) if name == "fast"
                            else (0, PLACEMENTS[0]))
            runs[name].append(workers.run(
                watch.decode, prompt, k, setting.temperature, placement, tokens, SEED))
    plain, fast = ([ranks[0] for ranks in runs[name]] for name in ("plain", "fast"))
    trace = sum((noted.trace for noted in fast), Trace())
    lanes = [phased(ranks) for ranks in runs["fast"]]
    record = setting._asdict() | request_of(prompts, tokens) | {
        "alpha": alpha(pair, prompts, plain, setting.temperature),
        "by_position": trace.by_position(), **counts(trace),
        "plain": statistics.median(noted.seconds for noted in plain),
        "seconds": statistics.median(noted.seconds for noted in fast),
        "speedup": statistics.median(
            a.seconds / b.seconds for a, b in zip(plain, fast)),
        "phases": phases_a_round(lanes, len(trace))}
    if setting[:2] == DRAWN:
        record["timeline"] = [short(lane) for lane in lanes[0]]
    return rounded(record)


def request_of(prompts, tokens):
    """What a record says of the texts that it was measured with."""
    return {"seed": SEED, "prompts": len(prompts), "tokens": tokens}


def alpha(pair, prompts, plain, temperature):
    """Mean overlap of p and q along the texts that plain decoding wrote."""
    shared = []
    for prompt, noted in zip(prompts, plain):
        start = pair.encode(prompt)
        text = torch.cat([start, torch.tensor(noted.tokens[:-1], dtype=torch.long)])
        shared.append(measure.overlap(pair.target, pair.draft, text,
                                      Sampling(temperature))[len(start) - 1:])
    return torch.cat(shared).mean().item()


def counts(trace):
    """The counts of a trace's summary; rates follow from them."""
    summary = trace.summary()
    names = ("rounds", "committed", "drafted", "accepted")
    return {name: summary[name] for name in names}


def phases_a_round(lanes, rounds):
    """Mean seconds a round in each phase: a list with one dict a rank.

    Args:
        lanes: lanes[generation][rank], from `phased`.
        rounds: how many rounds all generations had together.
    """
    sums = [[seconds_by_phase(lane) for lane in ranks] for ranks in lanes]
    return [{phase: sum(one[phase] for one in rank) / rounds for phase in rank[0]}
            for rank in zip(*sums)]


def short(lane):
    """The beginning of a rank's time line as lists, for JSON: [phase, begin, end]."""
    return [[span.kind, span.begin, span.end] for span in lane
            if span.begin < DRAWN_SECONDS]


def predict(rates, phases, plain):
    """Speedup from acceptance by position and the time of a round.

    Args:
        rates: K floats, acceptance at each position given that it was reached.
        phases: dict, phase -> seconds a round, of any one rank.
        plain: seconds of a plain token.

    Returns:
        float: expected tokens a round, times plain, over the round's seconds.
    """
    return expected_tokens_by_position(rates) * plain / sum(phases.values())


def fastest(records):
    """The setting that writes a token soonest, plain decoding included.

    Args:
        records: list of dicts with ranks, placement, k, and the seconds a token of
            speculation (seconds) and of plain decoding on the same ranks (plain).

    Returns:
        (ranks, placement, k); (ranks, "none", 0) where plain decoding is as fast.
    """
    fast = min(records, key=lambda r: r["seconds"])
    plain = min(records, key=lambda r: r["plain"])
    if plain["plain"] <= fast["seconds"]:
        return plain["ranks"], "none", 0
    return fast["ranks"], fast["placement"], fast["k"]


def read(path):
    """The records of a file, in order; of two with one setting the later counts.

    Returns:
        list of dicts; empty where there is no such file.
    """
    if not Path(path).exists():
        return []
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return list({setting_of(r): r for r in map(json.loads, lines)}.values())


def append(path, record):
    """Adds one line to a file, which is made if it isn't there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def mend(path):
    """Cuts off half a line, left by a sweep that was ended while it wrote."""
    if path.exists():
        whole, end, _ = path.read_text(encoding="utf-8").rpartition("\n")
        path.write_text(whole + end, encoding="utf-8")


def setting_of(record):
    """The Setting of a record."""
    return Setting(*(record[name] for name in Setting._fields))


def rounded(value):
    """The same with floats of six decimals: seconds to a microsecond."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return round(value, 6) if isinstance(value, float) else value


def load_average():
    """How many processes wanted a core over the last minute; None on Windows."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
