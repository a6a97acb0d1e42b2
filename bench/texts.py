"""Are SmolLM2's greedy texts the same, token for token, whoever writes them?

    .venv/bin/python bench/texts.py [--per-kind N] [--tokens N]

Every prompt of data/prompts.jsonl in float32: plain decoding, speculation, and
`transformers`. Sums in another order differ in their last bits, so two words that are
nearly equally likely may change places: each such near-tie is listed with its gap.
Needs `make smollm2`, and half an hour on two cores. Writes texts.md beside this file.
"""
import argparse
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import report
import torch
from smollm2 import load_peer, prompts
from tqdm import tqdm

from nds_helpers.decoding import (
    EitherDrafter,
    ModelDrafter,
    NGramDrafter,
    Sampling,
    autoregressive,
    speculative,
)
from nds_helpers.models import load_pair

GREEDY, K = Sampling(0.0), 3
SPECULATION = f"speculation, n-gram or else draft model, K {K}"
TRANSFORMERS = "transformers"


@dataclass(frozen=True)
class Difference:
    """Where two texts part: what each says there, and how near the target held them.

    Attributes:
        who, prompt: whose text differs from plain decoding's, and the prompt's id.
        place: index of the token, 0 for the first new one.
        words: what plain decoding says, and what the other one says.
        gap: difference of their logits.
    """

    who: str
    prompt: str
    place: int
    words: tuple
    gap: float


@torch.inference_mode()
def peers_choices(peer, prompt, tokens):
    """What `transformers` says greedily behind each prefix of a text: list of ids.

    The first that differs is where its own greedy text would part from this one.
    """
    logits = peer(torch.cat([prompt, tokens])[None]).logits[0]
    return logits[len(prompt) - 1:-1].argmax(-1).tolist()


@torch.inference_mode()
def difference(pair, who, name, prompt, ours, theirs):
    """The Difference of two texts behind a prompt, lists of ids; None without one."""
    place = next((i for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b),
                 None)
    if place is None:
        return None
    both = ours[place], theirs[place]
    so_far = torch.cat([prompt, torch.tensor(ours[:place], dtype=torch.long)])
    logits = pair.target.forward(so_far)[-1]
    return Difference(who, name, place, tuple(pair.decode([i]) for i in both),
                      (logits[both[0]] - logits[both[1]]).abs().item())


def compare(pair, peer, asked, tokens):
    """The Differences of both others from plain decoding, over all prompts."""
    drafter = EitherDrafter(NGramDrafter(shortest=2), ModelDrafter(pair.draft))
    settings = dict(max_new_tokens=tokens, sampling=GREEDY)
    found = []
    for name, text in tqdm(asked, unit="prompt", mininterval=1):
        prompt = pair.chat(text)
        plain = autoregressive(pair.target, prompt, **settings).tokens
        guessed = speculative(pair.target, drafter, prompt, k=K, **settings).tokens
        for who, theirs in ((SPECULATION, guessed.tolist()),
                            (TRANSFORMERS, peers_choices(peer, prompt, plain))):
            found.append(difference(pair, who, name, prompt, plain.tolist(), theirs))
    return [one for one in found if one]


def page(found, count, tokens):
    """What differs, in Markdown."""
    same = [(who, f"{count - sum(one.who == who for one in found)} of {count}")
            for who in (SPECULATION, TRANSFORMERS)]
    rows = [(one.who, one.prompt, one.place, *map(repr, one.words), f"{one.gap:.5f}")
            for one in found]
    ties = ["## Near-ties", report.table(
        ["who", "prompt", "token", "plain decoding", "the other",
         "difference of their logits"], rows)] if rows else ["No text differs."]
    return "\n\n".join([
        "# Greedy texts of SmolLM2 in float32",
        f"Written by `bench/texts.py`: {count} chat prompts, {tokens} new tokens at "
        "most, compared with plain decoding token for token. `transformers` is asked "
        "behind each prefix of that text: its own text would part where it first says "
        "something else.",
        report.table(["who", "same texts"], same), *ties]) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Compare greedy texts of SmolLM2.")
    parser.add_argument("--per-kind", type=int, help="prompts of each kind; all of them"
                        " where it isn't given")
    parser.add_argument("--tokens", type=int, default=128)
    chosen = parser.parse_args()
    asked, pair = prompts(chosen.per_kind), load_pair("smollm2")
    found = compare(pair, load_peer(), asked, chosen.tokens)
    text = page(found, len(asked), chosen.tokens)
    Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
