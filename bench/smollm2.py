"""SmolLM2 on this machine's cores: plain, speculative, and `transformers`' own ways.

    .venv/bin/python bench/smollm2.py [--per-kind N] [--out FOLDER]

Needs `make smollm2`. With all prompts of data/prompts.jsonl it takes hours on two
cores. Every generation is noted in smollm2.jsonl beside this file when it is done: the
same command goes on there. Delete that file to measure anew. The figures go to
smollm2.md beside this file, and to data/recorded/smollm2.json, which chapter 05 shows;
all three to FOLDER where one is named.
"""
import argparse
import json
import os
import resource
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import report
import torch
from tqdm import tqdm

from nds_helpers.decoding import (
    AdaptiveK,
    EarlyExitDrafter,
    EitherDrafter,
    ModelDrafter,
    NGramDrafter,
    Sampling,
    autoregressive,
    round_costs,
    speculative,
)
from nds_helpers.lab import machine
from nds_helpers.lab.measure import (
    Spread,
    memory_bandwidth,
    seeded,
    timed,
    weight_bytes,
)
from nds_helpers.models import load_pair, smollm2
from nds_helpers.models.pairs import DATA

TOKENS, EXIT, LARGEST = 128, 4, 6
RECORDED = DATA / "recorded"
DTYPES = {"float32": torch.float32, "int8": torch.int8}
TEMPERATURES = 0.0, 0.8
GENERATE, ASSISTED, LOOK_UP = ("transformers generate", "transformers early exit, K 4",
                               "transformers prompt look-up, K 4")
PEERS = {GENERATE: {}, ASSISTED: {"assistant_early_exit": EXIT},
         LOOK_UP: {"prompt_lookup_num_tokens": 4}}
EITHER = "n-gram, else draft model"
SINGLE = "draft model, K 3", "n-gram, K 3", f"{EITHER}, K 3", "early exit, K 1"
ADAPTIVE = "draft model, adaptive K", "n-gram, adaptive K", f"{EITHER}, adaptive K"
COPYING = "edit", "summarise"  # the kinds whose answers repeat their prompt


@dataclass(frozen=True)
class Way:
    """One way to decode, at one precision and temperature."""

    name: str
    dtype: str
    temperature: float

    @property
    def plain(self):
        """What it is compared with: plain decoding in the same setting."""
        return Way("plain", self.dtype, self.temperature)


def load_peer():
    """The target as `transformers` runs it, in float32."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    return transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.fetch(), dtype=torch.float32, local_files_only=True).eval()


def prompts(per_kind):
    """The first so many prompts of each kind, all where None: list of (id, text)."""
    taken = defaultdict(list)
    for line in (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines():
        prompt = json.loads(line)
        taken[prompt["kind"]].append((prompt["id"], prompt["text"]))
    return [prompt for kind in taken.values() for prompt in kind[:per_kind]]


def ways():
    """All that is measured; `transformers` takes part greedily, in float32."""
    ours = [Way(name, dtype, temperature) for dtype in DTYPES
            for temperature in TEMPERATURES
            for name in ("plain", *SINGLE, *ADAPTIVE)]
    return [Way(name, "float32", 0.0) for name in PEERS] + ours


class Models:
    """The target in every precision, and `transformers` on the same folder.

    The draft model is always int8: its precision changes the speed alone, never what
    is said.
    """

    def __init__(self):
        self.pairs = {name: load_pair("smollm2", dtype=d) for name, d in DTYPES.items()}
        self.draft = self.pairs["int8"].draft
        self.peer = load_peer()
        self.peer.generation_config.assistant_confidence_threshold = 0
        self.peer.generation_config.num_assistant_tokens = 4
        self.peer.generation_config.num_assistant_tokens_schedule = "constant"
        self.costs = {}

    def drafter(self, name, dtype):
        """The drafter that a way's name begins with."""
        if name.startswith(EITHER):
            return EitherDrafter(NGramDrafter(shortest=2), ModelDrafter(self.draft))
        if name.startswith("n-gram"):
            return NGramDrafter()
        if name.startswith("early exit"):
            return EarlyExitDrafter(self.pairs[dtype].target, EXIT)
        return ModelDrafter(self.draft)

    def policy(self, name, dtype):
        """K, or AdaptiveK over costs that are measured once."""
        if not name.endswith("adaptive K"):
            return int(name[-1])
        if (name, dtype) not in self.costs:
            self.costs[name, dtype] = round_costs(
                self.pairs[dtype].target, self.drafter(name, dtype), LARGEST)
        return AdaptiveK(self.costs[name, dtype])

    def action(self, way, prompt):
        """What is timed: a function without arguments, that returns a text."""
        if way.name in PEERS:
            return partial(self.generate, prompt, **PEERS[way.name])
        settings = dict(max_new_tokens=TOKENS, sampling=Sampling(way.temperature),
                        generator=seeded(0))
        target = self.pairs[way.dtype].target
        if way.name == "plain":
            return partial(autoregressive, target, prompt, **settings)
        return partial(speculative, target, self.drafter(way.name, way.dtype), prompt,
                       k=self.policy(way.name, way.dtype), **settings)

    @torch.inference_mode()
    def generate(self, prompt, **how):
        """`transformers`, greedily."""
        text = self.peer.generate(
            prompt[None], attention_mask=torch.ones_like(prompt[None]), do_sample=False,
            max_new_tokens=TOKENS, pad_token_id=0, **how)
        return text[0, len(prompt):]

    def turn(self, way, text):
        """One generation: dict of milliseconds a token, ids, and what was accepted."""
        prompt = self.pairs[way.dtype].chat(text)
        taken, result = timed(self.action(way, prompt))
        tokens = result if way.name in PEERS else result.tokens
        drafts = way.name not in ("plain", *PEERS)
        summary = result.trace.summary() if drafts else {}
        return {"ms": 1000 * taken / len(tokens), "ids": tokens.tolist()} | {
            name: summary.get(name)
            for name in ("acceptance_rate", "committed_per_round")}


def measure(path, asked):
    """Runs what isn't in the file yet, all ways of a prompt in turns.

    Returns:
        dict, (Way, prompt's id) -> what `Models.turn` found.
    """
    done = read(path)
    todo = [(way, prompt) for number, prompt in enumerate(asked)
            for way in (ways()[::-1] if number % 2 else ways())
            if (way, prompt[0]) not in done]
    models = Models() if todo else None
    for way in {way for way, _ in todo}:  # once untimed: first calls allocate
        models.turn(way, "Hi!")
    for way, (name, text) in tqdm(todo, unit="run", mininterval=1):
        done[way, name] = found = models.turn(way, text)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(way) | {"prompt": name} | found) + "\n")
    return done


def read(path):
    """What an earlier run noted."""
    done = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            way = Way(*(found.pop(name) for name in ("name", "dtype", "temperature")))
            done[way, found.pop("prompt")] = found
    return done


class Results:
    """The figures, compared prompt by prompt."""

    def __init__(self, done, asked):
        self.done, self.names = done, [name for name, _ in asked]

    def ms(self, way, kinds=None):
        """Milliseconds a token of each prompt, of some kinds."""
        return [self.done[way, name]["ms"] for name in self.of(kinds)]

    def of(self, kinds=None):
        """The ids of the prompts of some kinds, of all where None."""
        return [n for n in self.names if not kinds or n.split("-")[0] in kinds]

    def ratio(self, way, base, kinds=None):
        """Spread of how many times faster a way is than another."""
        return Spread.of([b / a for a, b in zip(self.ms(way, kinds),
                                                self.ms(base, kinds))])

    def best(self, dtype, temperature):
        """The single draft with the best median over all prompts."""
        return max((Way(name, dtype, temperature) for name in SINGLE),
                   key=lambda way: self.ratio(way, way.plain).median)

    def mean(self, way, name, kinds=None):
        """The mean of a summary's figure, None where a way has none."""
        values = [self.done[way, n].get(name) for n in self.of(kinds)]
        values = [v for v in values if v is not None]
        return sum(values) / len(values) if values else None

    def same(self, way, base):
        """How many of the texts are equal."""
        return sum(self.done[way, n]["ids"] == self.done[base, n]["ids"]
                   for n in self.names)

    @property
    def kinds(self):
        """The kinds, in order."""
        return list(dict.fromkeys(n.split("-")[0] for n in self.names))


def wanted(results):
    """The wanted figures beside the real ones, as `report.wanted` gives its own."""
    plain = {dtype: Way("plain", dtype, 0.0) for dtype in DTYPES}
    peers = {name: Way(name, "float32", 0.0) for name in PEERS}
    lines = [line(f"plain decoding in {dtype} over transformers generate, greedy",
                  least, results.ratio(plain[dtype], peers[GENERATE]))
             for dtype, least in (("float32", 1.5), ("int8", 3.0))]
    for dtype in DTYPES:
        for temperature in TEMPERATURES:
            way = results.best(dtype, temperature)
            base = way.plain
            setting = f"over plain, {dtype}, temperature {temperature:g}"
            lines += [line(f"{way.name}, {setting}", 1.5, results.ratio(way, base)),
                      line(f"{way.name}, {setting}, {' and '.join(COPYING)}", 2.0,
                           results.ratio(way, base, COPYING))]
            for name in ADAPTIVE:
                slowest = min((results.ratio(Way(name, dtype, temperature), base, [k])
                               for k in results.kinds), key=lambda r: r.median)
                lines.append(line(f"{name}, {setting}, slowest kind", 0.95, slowest))
    best = results.best("float32", 0.0)
    return lines + [line(f"{best.name} in float32 over {name}, greedy", 3.0,
                         results.ratio(best, peers[name]))
                    for name in (ASSISTED, LOOK_UP)]


def line(what, least, ratio):
    """One wanted ratio, judged by its median."""
    return {"what": what, "wanted": f"at least {least}x", "figure": ratio.median,
            "shown": report.times(asdict(ratio)), "met": ratio.median >= least}


def page(results, facts):
    """All figures, in Markdown."""
    rows, kinds = [], []
    for way in ways():
        base = way.plain
        ms = Spread.of(results.ms(way))
        alike = f"{results.same(way, base)} of {len(results.names)}"
        means = (results.mean(way, name)
                 for name in ("acceptance_rate", "committed_per_round"))
        rows.append((way.dtype, f"{way.temperature:g}", way.name,
                     f"{ms.median:.1f} ({ms.low:.1f} to {ms.high:.1f})",
                     report.times(asdict(results.ratio(way, base))),
                     *("" if mean is None else f"{mean:.2f}" for mean in means),
                     alike if way.temperature == 0 else ""))
        if way.name not in ("plain", *PEERS):
            kinds.append((way.dtype, f"{way.temperature:g}", way.name, *(
                f"{results.ratio(way, base, [kind]).median:.2f}x"
                for kind in results.kinds)))
    return "\n\n".join([
        "# SmolLM2-135M on this machine",
        f"Written by `make llmbench`: {len(results.names)} chat prompts of "
        f"{len(results.kinds)} kinds, {TOKENS} new tokens at most. Medians over the "
        "prompts, middle half in brackets; a speedup is taken prompt by prompt, over "
        "plain decoding in the same precision and at the same temperature.",
        report.table(["", ""], facts.items()), "## Wanted",
        report.table(["what", "wanted", "measured", ""],
                     [(w["what"], w["wanted"], w["shown"],
                       "met" if w["met"] else "**not met**") for w in wanted(results)]),
        "## All ways", report.table(
            ["precision", "temperature", "way", "ms a token", "speedup", "accepted",
             "committed a round", "same text as plain"], rows),
        "## Speedup by kind of prompt", report.table(
            ["precision", "temperature", "way", *results.kinds], kinds)]) + "\n"


def records(results):
    """What chapter 05 shows: a dict for each of our ways, as JSON can hold it."""
    return [asdict(way) | {
        "ms": asdict(Spread.of(results.ms(way))),
        "speedup": {kind: results.ratio(way, way.plain, [kind]).median
                    for kind in results.kinds},
        "overall": asdict(results.ratio(way, way.plain)),
        "accepted": results.mean(way, "acceptance_rate"),
        "committed": results.mean(way, "committed_per_round")}
        for way in ways() if way.name not in PEERS]


def facts(results):
    """The machine, and how near plain decoding comes to its memory's speed."""
    target, bandwidth = load_pair("smollm2").target, memory_bandwidth().median / 1e9
    milliseconds = Spread.of(results.ms(Way("plain", "float32", 0.0))).median
    return machine.facts() | {
        "memory bandwidth": f"{bandwidth:.1f} GB/s",
        "weights read by plain decoding in float32":
            f"{weight_bytes(target) / milliseconds / 1e6:.1f} GB/s",
        "load at the end": round(os.getloadavg()[0], 2),
        "most memory of this process":
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"}


def main():
    parser = argparse.ArgumentParser(description="Measure SmolLM2 on this machine.")
    parser.add_argument("--per-kind", type=int, help="prompts of each kind; all of them"
                        " where it isn't given; at least 2")
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    chosen = parser.parse_args()
    here, recorded = chosen.out or Path(__file__).parent, chosen.out or RECORDED
    here.mkdir(parents=True, exist_ok=True)
    asked = prompts(chosen.per_kind)
    results = Results(measure(here / "smollm2.jsonl", asked), asked)
    text = page(results, facts(results))
    (here / "smollm2.md").write_text(text, encoding="utf-8")
    (recorded / "smollm2.json").write_text(
        "\n".join(["[", ",\n".join(map(json.dumps, records(results))), "]\n"]))
    print(text)


if __name__ == "__main__":
    main()
