"""Step 4 of `make data`: measure the shipped pair and draw its loss curves.

Writes metrics.json, training.png and the README's speculation.png to data/tiny.
"""
import json

import numpy as np
from export import write_sums
from ngram import losses
from train import WORK

from nds_helpers.decoding import ModelDrafter, Sampling, speculative
from nds_helpers.lab.plots import draw_lines, new_figure
from nds_helpers.lab.quality import agreement, held_out_loss
from nds_helpers.lab.tokens import token_fates, tokens_figure
from nds_helpers.models import load_pair

TINY = WORK.parent / "tiny"


def metrics(pair):
    """Held-out losses in nats a token, and how well the draft agrees."""
    train, text = np.load(WORK / "train.npy"), np.load(WORK / "heldout.npy")
    found = {name: round(loss, 3) for name, loss in losses(train, text).items()}
    found["target"] = round(held_out_loss(pair.target, pair.tokenizer), 3)
    found["draft"] = round(held_out_loss(pair.draft, pair.tokenizer), 3)
    alpha, on_samples = agreement(pair)
    _, greedy = agreement(pair, Sampling(temperature=0))
    return {"held_out_loss": found, "alpha": round(alpha, 3),
            "greedy_agreement": round(greedy, 3),
            "greedy_agreement_on_samples": round(on_samples, 3)}


def draw_curves(found):
    """Training curves: the target against the n-grams, and alpha of the draft."""
    joint = list(zip(*json.loads((WORK / "joint.json").read_text())))
    draft = list(zip(*json.loads((WORK / "draft.json").read_text())))
    figure, (left, right) = new_figure(2, figsize=(11, 4))
    draw_lines(left, {"train": (joint[0], joint[1]), "held out": (joint[0], joint[2])},
               "step of 4,096 tokens", "target's loss, nats a token")
    left.axhline(found["held_out_loss"]["trigram"], color="#666666")
    left.annotate("trigram, held out", (1, found["held_out_loss"]["trigram"]),
                  xycoords=("axes fraction", "data"), ha="right", va="bottom",
                  color="#444444")
    draw_lines(right, {"alpha": draft}, "step on the target's own samples",
               "E[sum min(p, q)], unseen samples")
    figure.savefig(TINY / "training.png")


def draw_text(pair):
    """The picture of the README: a text coloured by the fate of its tokens."""
    prompt = pair.encode("HAMLET.\nTo be, or not to be")
    result = speculative(pair.target, ModelDrafter(pair.draft), prompt, k=4,
                         max_new_tokens=120, sampling=Sampling(temperature=0.7))
    fates = [(token, "prompt") for token in prompt.tolist()]
    fates += token_fates(result.trace)
    tokens_figure(pair.tokenizer, fates).savefig(TINY / "speculation.png")


def main():
    pair = load_pair("tiny")
    found = metrics(pair)
    (TINY / "metrics.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    draw_curves(found)
    draw_text(pair)
    write_sums()


if __name__ == "__main__":
    main()
