"""How good a pair is: held-out loss, and how often the draft agrees."""
import torch

from ..decoding import Sampling, probabilities
from ..models.pairs import DATA

END = "<|endoftext|>"


def held_out_texts():
    """The scenes and poems that training never saw, a list of str."""
    return (DATA / "heldout.txt").read_text(encoding="utf-8").split(f"\n{END}\n")


@torch.inference_mode()
def held_out_loss(model, tokenizer, window=512):
    """Mean nats a token on the held-out part, in windows of the model's context.

    Args:
        model: language model with a batched forward.
        tokenizer: of the pair.
        window: tokens that are scored together; each window's first is given.

    Returns:
        float.
    """
    ids = []
    for text in held_out_texts():
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
        ids.append(tokenizer.eos_token_id)
    total = count = 0
    for part in torch.tensor(ids).split(window):
        if len(part) > 1:
            logits = model.forward(part[:-1], model.new_cache(window))
            loss = torch.nn.functional.cross_entropy(logits, part[1:], reduction="sum")
            total, count = total + loss.item(), count + len(part) - 1
    return total / count


@torch.inference_mode()
def own_samples(model, prompts, length, generator, sampling=None):
    """Texts that a model writes, many at once.

    Args:
        model: Decoder.
        prompts: LongTensor[B, T].
        length: tokens in all.
        generator: torch.Generator.
        sampling: Sampling; temperature 1 by default.

    Returns:
        LongTensor[B, length].
    """
    rows, feed = prompts, prompts
    cache = model.new_cache(length, len(prompts))
    while rows.shape[1] < length:
        p = probabilities(model.forward(feed, cache)[:, -1], sampling or Sampling())
        feed = torch.multinomial(p, 1, generator=generator)
        rows = torch.cat([rows, feed], 1)
    return rows


@torch.inference_mode()
def agreement(pair, sampling=None, texts=16, length=144, given=16, seed=0):
    """How well the draft agrees with the target on the target's own samples.

    Args:
        pair: Pair.
        sampling: how both choose; temperature 1 by default.
        texts, length, given: samples, tokens of each, of which the first
            `given` come from the held-out part.
        seed: of the samples.

    Returns:
        (alpha: E[sum_x min(p, q)], share of positions where both models'
        likeliest token is the same).
    """
    sampling = sampling or Sampling()
    starts = [pair.encode(t)[:given] for t in held_out_texts()[:texts]]
    g = torch.Generator().manual_seed(seed)
    rows = own_samples(pair.target, torch.stack(starts), length, g, sampling)
    p, q = (probabilities(m.forward(rows)[:, given - 1:-1], sampling)
            for m in (pair.target, pair.draft))
    alpha = torch.minimum(p, q).sum(-1).mean()
    same = (p.argmax(-1) == q.argmax(-1)).float().mean()
    return alpha.item(), same.item()
