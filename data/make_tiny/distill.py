"""Step 3 of `make data`: teach the draft on text that the target itself samples.

What counts for speculation is agreement on the target's own output, so the
target writes 330 thousand tokens (kept in data/work/samples, resumable), and
the draft learns them with a loss that is the acceptance rate itself:
1 - sum_x min(p, q), plus a little KL. Then both are exported to data/tiny.
"""
import argparse
import json

import numpy as np
import torch
from export import TINY, export, trained_pair
from tqdm import tqdm
from train import SEED, WORK, compiled, save

from nds_helpers.decoding import Sampling
from nds_helpers.lab.quality import own_samples
from nds_helpers.models import load_model

SAMPLES = WORK / "samples"
ROWS, PROMPT, LENGTH = 64, 16, 272  # texts at once, given tokens, tokens in all
TEMPERATURES = (1.0, 1.0, 1.0, 0.7)  # of one file after the other
PEAK_RATE, BATCH = 1e-3, 16


def sample(model, corpus, index):
    """ROWS texts of LENGTH tokens: PROMPT tokens of the corpus, then the target's."""
    g = np.random.default_rng((SEED, index))
    starts = g.integers(0, len(corpus) - PROMPT, ROWS)
    rows = np.stack([corpus[s:s + PROMPT] for s in starts])
    rows = own_samples(model, torch.from_numpy(rows.astype(np.int64)), LENGTH,
                       torch.Generator().manual_seed(SEED + index),
                       Sampling(TEMPERATURES[index % len(TEMPERATURES)]))
    return rows.numpy().astype(np.uint16)


def make_samples(files):
    """Writes data/work/samples/NNN.npy; files that are there are kept."""
    SAMPLES.mkdir(exist_ok=True)
    model, corpus = load_model(TINY / "target"), np.load(WORK / "train.npy")
    for index in tqdm(range(files), desc="sampling", mininterval=10):
        path = SAMPLES / f"{index:03d}.npy"
        if not path.exists():
            np.save(SAMPLES / "part.npy", sample(model, corpus, index))
            (SAMPLES / "part.npy").replace(path)
    return np.concatenate([np.load(SAMPLES / f"{i:03d}.npy") for i in range(files)])


def imitation(target, draft, rows):
    """(loss, alpha) of the draft on texts [B, T] that the target wrote."""
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            p = target(input_ids=rows, use_cache=False).logits
        q = draft(input_ids=rows, use_cache=False).logits
    p, log_q = p.float().softmax(-1), q.float().log_softmax(-1)
    alpha = torch.minimum(p, log_q.exp()).sum(-1).mean()
    cross = -(p * log_q).sum(-1).mean()
    return 1 - alpha + 0.1 * cross, alpha


def main():
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--files", type=int, default=20)
    parse.add_argument("--epochs", type=int, default=4)
    wanted = parse.parse_args()
    target, draft = trained_pair("joint.pt")
    export(target, draft)  # the samples come from the weights as they ship
    rows = torch.from_numpy(make_samples(wanted.files).astype(np.int64))
    valid, rows = rows[:BATCH], rows[BATCH:]  # never trained on
    steps = wanted.epochs * (len(rows) // BATCH)
    optimiser = torch.optim.AdamW(draft.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95))
    step_loss = compiled(imitation)
    path, first, curve = WORK / "draft.pt", 0, []
    if path.exists():
        state = torch.load(path, weights_only=True)
        draft.load_state_dict(state["draft"])
        optimiser.load_state_dict(state["optimiser"])
        first, curve = state["step"], state["curve"]
    for step in tqdm(range(first, steps), initial=first, total=steps, mininterval=30):
        for group in optimiser.param_groups:
            group["lr"] = PEAK_RATE * min(1, (step + 1) / 50, 1.25 * (1 - step / steps))
        epoch, place = divmod(step, len(rows) // BATCH)
        order = np.random.default_rng((SEED, epoch)).permutation(len(rows))
        picked = rows[order[place * BATCH:(place + 1) * BATCH]]
        loss, _ = step_loss(target, draft, picked)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if (step + 1) % 50 == 0 or step + 1 == steps:
            with torch.no_grad():
                curve.append([step + 1, imitation(target, draft, valid)[1].item()])
            save(path, target=target.state_dict(), draft=draft.state_dict(),
                 optimiser=optimiser.state_dict(), step=step + 1, curve=curve)
            (WORK / "draft.json").write_text(json.dumps(curve))
            print(f"\n{curve[-1]}", flush=True)
    export(target, draft)


if __name__ == "__main__":
    main()
