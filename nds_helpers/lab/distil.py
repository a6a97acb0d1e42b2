"""A small distillation: a draft made of two of the target's layers, taught by it."""
from copy import deepcopy

import torch

from ..models.borrowed import early_exit
from .measure import seeded
from .quality import held_out_texts, own_samples

GIVEN = 16  # tokens of the held-out part that each text begins with


def student(target, layers=(0, -1)):
    """A draft made of copies of some layers of its target.

    Embedding and head stay the target's own: they cost no memory and aren't taught.

    Args:
        target: Decoder.
        layers: which of its layers, in their order.

    Returns:
        Decoder; its layers and its norm can learn.
    """
    draft = early_exit(target, len(layers))
    draft.layers = torch.nn.ModuleList(deepcopy(target.layers[i]) for i in layers)
    draft.norm = deepcopy(target.norm)
    for part in (draft.layers, draft.norm):
        part.requires_grad_(True)
    return draft


def lessons(pair, count, length, sampling=None, seed=0):
    """Texts that the target writes behind tokens of the held-out part.

    Args:
        pair: Pair with a tokenizer.
        count: texts, each from a place of its own.
        length: tokens of each, of which the first GIVEN are given.
        sampling: how the target writes; temperature 1 by default.
        seed: of the places and the texts.

    Returns:
        LongTensor[count, length].
    """
    g = seeded(seed)
    ids = torch.cat([pair.encode(text) for text in held_out_texts()])
    starts = ids.unfold(0, GIVEN, 1)[torch.randperm(len(ids) - GIVEN, generator=g)]
    # A copy: what inference mode made can't take part in training.
    return own_samples(pair.target, starts[:count], length, g, sampling).clone()


def batches(count, size, steps, seed=0):
    """Which texts each step learns from: every text once before any twice.

    Yields:
        LongTensor[size], `steps` of them.
    """
    g, order = seeded(seed), torch.arange(0)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(count, generator=g)
        yield order[:size]
        order = order[size:]


def rate(step, steps, peak=2e-3, warm_up=10):
    """Learning rate: a short rise, then straight down to zero at the end."""
    return peak * min((step + 1) / warm_up, (steps - step) / (steps - warm_up))


def divergence(log_p, log_q):
    """Mean of KL(p || q) = sum_x p(x) (log p(x) - log q(x)) over all places.

    Args:
        log_p, log_q: FloatTensor[..., V], log probabilities of target and draft.

    Returns:
        FloatTensor[], nats.
    """
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


@torch.no_grad()
def mean_overlap(p, draft, texts):
    """Alpha: the mean of sum_x min(p(x), q(x)) where new tokens were drawn.

    Args:
        p: FloatTensor[B, T, V], the target's probabilities along the texts.
        draft: Decoder, at temperature 1.
        texts: LongTensor[B, T].

    Returns:
        float.
    """
    q = draft.forward(texts).softmax(-1)
    return torch.minimum(p, q)[:, GIVEN - 1:-1].sum(-1).mean().item()
