"""Step 2 of the draft for SmolLM2: it learns to imitate the target on its samples.

The draft is three of the target's layers, in front of a head that says the commonest
words only. What it can't say counts as lost: the loss is 1 - sum_x min(p, q), which is
the share of its guesses that would be rejected, plus a little cross entropy that leads
there. Checkpoints go to data/work/smollm2/; the same command goes on there, over the
samples that are there by then, and writes the draft to data/smollm2.
"""
import argparse
import functools
import json
import pickle
import random
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from features import answer_places, features_path, make_missing, padded
from safetensors.torch import save_file
from sample import WORK, Sampler, save, shards, texts
from tqdm import tqdm

from nds_helpers.decoding import Sampling
from nds_helpers.lab.plots import draw_lines, new_figure
from nds_helpers.models import load_model, smollm2
from nds_helpers.models.borrowed import load_borrowing
from nds_helpers.models.checkpoint import SINGLE, places
from nds_helpers.models.pairs import DATA

LAYERS = 0, 1, 29  # of the target, where the draft's begin
WORDS = 12_288  # that the draft can say
SEED, ROWS = 0, 4
PEAK_RATE, WARM_UP, CROSS = 1e-3, 100, 0.3
SAVED_EVERY = 100  # steps
HELD_OUT = WORK / "heldout.npz"  # the target's answers to data/prompts.jsonl
FOLDER = DATA / "smollm2"


def commonest_words(paths):
    """The ids that answers hold most often, IntTensor[WORDS] in ascending order.

    Of words that are equally common the lowest ids are taken: a tokenizer found the
    common ones first.
    """
    counts = Counter()
    for path in paths:
        for ids, given in texts(path):
            counts.update(ids[given:].tolist())
    order = sorted(range(49_152), key=lambda i: (-counts[i], i))
    return torch.tensor(sorted(order[:WORDS]), dtype=torch.int32)


def first_weights(target, ids):
    """The weights of a draft that has learnt nothing yet, by their names in a file."""
    found = {"ids": ids}
    for name, (module, parameter, rows) in places(target):
        kind, layer, *rest = name.split(".")
        weight = getattr(module, parameter)[rows or slice(None)].clone()
        if kind == "norm":
            found[name] = weight
        if kind == "layers" and int(layer) in LAYERS:
            found[".".join([kind, str(LAYERS.index(int(layer))), *rest])] = weight
    return found


def trained_weights(draft):
    """The weights of a draft that its target doesn't have, by their names in a file."""
    found = {"ids": draft.lm_head.ids.int()}
    for name, (module, parameter, rows) in places(draft):
        if name.startswith(("layers.", "norm.")):
            weight = getattr(module, parameter)[rows or slice(None)].detach()
            found[name] = weight.half().contiguous()
    return found


def new_draft(target, weights):
    """A draft with gradients for its own weights only."""
    WORK.mkdir(parents=True, exist_ok=True)
    save_file(weights, WORK / SINGLE)
    draft = load_borrowing(WORK, target)
    for part in (draft.layers, draft.norm):
        part.requires_grad_(True)
    return draft


def own_weights(draft):
    """The parameters that are trained."""
    return [w for w in draft.parameters() if w.requires_grad]


def read(path):
    """A shard as a list of (ids, given, stream: [n, D], total: [n])."""
    rows = texts(path)
    sizes = [len(ids) - given for ids, given in rows]
    with np.load(features_path(path)) as found:
        streams = torch.from_numpy(found["stream"]).split(sizes)
        totals = torch.from_numpy(found["total"]).split(sizes)
    return [(*row, *more) for row, *more in zip(rows, streams, totals)]


def imitation(draft, batch):
    """(loss, alpha) of the draft on texts that the target wrote.

    Args:
        draft: Decoder with a ReducedHead.
        batch: list of (ids, given, stream, total) from `read`.

    Returns:
        Two scalars: alpha is the mean of sum_x min(p, q) over the words that the
        draft can say; the others have q = 0.
    """
    ids, given, stream, total = zip(*batch)
    lengths = torch.tensor([len(row) for row in ids])
    rows = padded(list(ids))[:, :-1]
    judged = answer_places(torch.tensor(given), lengths, rows.shape[1])
    head, stream = draft.lm_head.few, torch.cat(stream).float()
    log_q = head(draft.hidden(rows)[judged]).log_softmax(-1)  # [N, WORDS]
    with torch.no_grad():
        p = (head(stream) - torch.cat(total)[:, None]).exp()
    alpha = torch.minimum(p, log_q.exp()).sum(-1).mean()
    return 1 - alpha - CROSS * (p * log_q).sum(-1).mean(), alpha


@torch.no_grad()
def held_out_alpha(draft):
    """Alpha at temperature 1 on the target's answers to data/prompts.jsonl."""
    rows = read(HELD_OUT)
    found = [(imitation(draft, rows[i:i + ROWS])[1].item(), len(rows[i:i + ROWS]))
             for i in range(0, len(rows), ROWS)]
    return sum(alpha * n for alpha, n in found) / len(rows)


def make_held_out():
    """Lets the target answer data/prompts.jsonl once: no sample is about those."""
    if HELD_OUT.exists():
        return
    sampler = Sampler()
    lines = (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    asked = [sampler.head + sampler.encode(json.loads(line)["text"]) + sampler.tail
             for line in lines]
    save(HELD_OUT, sampler.answers(asked, False, Sampling(),
                                   torch.Generator().manual_seed(SEED)))


def schedule(paths, epochs):
    """Every batch of a training: (shard, texts of it), in the order of their use."""
    for epoch in range(epochs):
        order = random.Random(f"{SEED} {epoch}")
        for path in order.sample(paths, len(paths)):
            count = len(texts(path))
            rows = order.sample(range(count), count)
            for i in range(0, count, ROWS):
                yield path, rows[i:i + ROWS]


def rate(step, steps, peak):
    """Learning rate: warm-up, constant, linear to zero over the last third."""
    return peak * min(1, (step + 1) / WARM_UP, 3 * (steps - step) / steps)


def export(draft, curve):
    """Writes the draft to data/smollm2, with its curve and the sha256 of each file."""
    FOLDER.mkdir(exist_ok=True)
    save_file(trained_weights(draft), FOLDER / SINGLE)
    (FOLDER / "curve.json").write_text(json.dumps(curve))
    figure, ax = new_figure(figsize=(7, 4), layout="constrained")
    draw_lines(ax, {f"{curve[-1][1]:.2f}": list(zip(*curve))},
               "tokens seen, each pass counted", "alpha on unseen prompts")
    figure.savefig(FOLDER / "alpha.png", dpi=80)
    smollm2.write_sums(FOLDER)


def main():
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--shards", type=int, required=True, help="to learn from")
    parse.add_argument("--skip", type=int, default=0, help="the first so many of them")
    parse.add_argument("--epochs", type=int, default=3)
    parse.add_argument("--peak-rate", type=float, default=PEAK_RATE)
    parse.add_argument("--behind", metavar="CHECKPOINT", type=Path,
                       help="go on from what a training with fewer shards learnt")
    wanted = parse.parse_args()
    if not 0 <= wanted.skip < wanted.shards <= len(shards()):
        parse.error(f"--shards is 1 to {len(shards())}, as many as there are so far "
                    "(sample.py makes more), and --skip is less")
    if wanted.epochs < 1 or wanted.behind and not wanted.behind.exists():
        parse.error("--epochs is 1 or more, and --behind names a file that exists")
    paths = shards()[wanted.skip:wanted.shards]
    make_held_out()
    make_missing([HELD_OUT, *paths])
    target = load_model(smollm2.fetch())
    draft = new_draft(target, first_weights(target, commonest_words(paths)))
    optimiser = torch.optim.AdamW(own_weights(draft), lr=PEAK_RATE, betas=(0.9, 0.95))
    path = WORK / f"draft-{wanted.skip}-{wanted.shards}-{wanted.epochs}.pt"
    first, seen, curve = 0, 0, [[0, held_out_alpha(draft)]]
    if path.exists():
        first, seen, curve = resume(draft, optimiser, path)
    elif wanted.behind:
        _, seen, curve = resume(draft, optimiser, wanted.behind)
    steps = list(schedule(paths, wanted.epochs))
    shard = functools.lru_cache(2)(read)
    for step in tqdm(range(first, len(steps)), initial=first, total=len(steps),
                     mininterval=30):
        for group in optimiser.param_groups:
            group["lr"] = rate(step, len(steps), wanted.peak_rate)
        batch = [shard(steps[step][0])[i] for i in steps[step][1]]
        loss, _ = imitation(draft, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(own_weights(draft), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        seen += sum(len(total) for *_, total in batch)
        if (step + 1) % SAVED_EVERY == 0 or step + 1 == len(steps):
            curve.append([seen, held_out_alpha(draft)])
            checkpoint(path, draft=draft.state_dict(), step=step + 1, seen=seen,
                       optimiser=optimiser.state_dict(), curve=curve)
            print(f"\n{seen:,} tokens: alpha {curve[-1][1]:.3f}", flush=True)
    export(draft, curve)


def resume(draft, optimiser, path):
    """Makes both what they were in a checkpoint; returns its (step, seen, curve)."""
    try:
        state = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError):
        raise SystemExit(f"{path} is damaged: delete it, then run it again.") from None
    draft.load_state_dict(state["draft"])
    optimiser.load_state_dict(state["optimiser"])
    return state["step"], state["seen"], state["curve"]


def checkpoint(path, **state):
    """Writes a checkpoint; a cut leaves the old one whole."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main()
