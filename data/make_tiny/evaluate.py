"""Step 4 of `make data`: measure the shipped pair and draw its loss curves.

Writes data/tiny/metrics.json and data/tiny/training.png.
"""
import json

import numpy as np
from ngram import losses
from train import WORK

from nds_helpers.lab.plots import draw_lines, new_figure
from nds_helpers.lab.quality import agreement, held_out_loss
from nds_helpers.models import load_pair

TINY = WORK.parent / "tiny"


def metrics(pair):
    """Held-out losses in nats a token, and how well the draft agrees."""
    train, text = np.load(WORK / "train.npy"), np.load(WORK / "heldout.npy")
    found = {name: round(loss, 3) for name, loss in losses(train, text).items()}
    found["target"] = round(held_out_loss(pair.target, pair.tokenizer), 3)
    found["draft"] = round(held_out_loss(pair.draft, pair.tokenizer), 3)
    alpha, greedy = agreement(pair)
    return {"held_out_loss": found, "alpha": round(alpha, 3),
            "greedy_agreement": round(greedy, 3)}


def draw_curves(found):
    """Training curves: the target against the n-grams, and alpha of the draft."""
    joint = list(zip(*json.loads((WORK / "joint.json").read_text())))
    draft = list(zip(*json.loads((WORK / "draft.json").read_text())))
    figure, (left, right) = new_figure(2, figsize=(11, 4))
    draw_lines(left, {"train": (joint[0], joint[1]), "held out": (joint[0], joint[2])},
               "step of 4,096 tokens", "target's loss, nats a token")
    left.axhline(found["held_out_loss"]["trigram"], color="#666666")
    left.annotate("trigram, held out", (joint[0][-1], found["held_out_loss"]["trigram"]),
                  ha="right", va="bottom", color="#444444")
    draw_lines(right, {"alpha": draft}, "step on the target's own samples",
               "E[sum min(p, q)], unseen samples")
    figure.savefig(TINY / "training.png")


def main():
    found = metrics(load_pair("tiny"))
    (TINY / "metrics.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    draw_curves(found)


if __name__ == "__main__":
    main()
