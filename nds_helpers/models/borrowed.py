"""Drafts that borrow parts of their target, and so share them in memory."""
from dataclasses import replace
from itertools import chain

import torch
from torch import nn

from .checkpoint import fill, tensors
from .decoder import Decoder
from .linear import Linear


def early_exit(target, layers):
    """The first `layers` layers of a target, then its own norm and head.

    No weight is copied. Draft & Verify (Zhang et al. 2024) and LayerSkip (Elhoushi
    et al. 2024) guess like that.

    Args:
        target: Decoder.
        layers: how many of its layers, at least 1 and fewer than it has.

    Returns:
        Decoder with a cache of its own.
    """
    if not 1 <= layers < target.config.layers:
        raise ValueError(f"an early exit of {target.config.layers} layers keeps 1 to "
                         f"{target.config.layers - 1} of them, not {layers}.")
    draft = hollow(replace(target.config, layers=layers))
    draft.layers = target.layers[:layers]
    draft.norm, draft.lm_head = target.norm, target.lm_head
    return borrowing(draft, target)


def load_borrowing(folder, target):
    """A trained draft that reads its target's embedding.

    Args:
        folder: path with a model.safetensors of `layers.0` and so on, `norm`, and
            `ids`, IntTensor[n]: the words that the draft can say. The rows of its
            head are the target's rows of these.
        target: Decoder with tied embeddings.

    Returns:
        Decoder, of the target's dtype and beside it.
    """
    like = target.norm.weight
    stored = dict(tensors(folder, like.device))
    ids = stored.pop("ids").long()
    layers = len({name.split(".")[1] for name in stored if name.startswith("layers.")})
    draft = hollow(replace(target.config, layers=layers, vocab_size=len(ids),
                           tied=False))
    draft.embed_tokens = None  # the target's takes its place below
    head = [("lm_head.weight", target.embed_tokens.weight[ids])]
    fill(draft, chain(stored.items(), head), like.dtype)
    draft.lm_head = ReducedHead(draft.lm_head, ids, target.config.vocab_size)
    return borrowing(draft, target).requires_grad_(False)


class ReducedHead(nn.Module):
    """A head over a few words of a large vocabulary; the others can't be said.

    A third of a small model's weights may be in its head. Rare words are worth
    less to a draft than their share of that time.
    """

    def __init__(self, few, ids, vocab_size):
        super().__init__()
        self.few = few  # Linear, one row for each of the ids
        self.register_buffer("ids", ids)
        self.vocab_size = vocab_size

    def forward(self, x):
        """FloatTensor[rows, D] -> [rows, V], -inf where a word can't be said."""
        logits = self.few(x)  # [rows, n]
        whole = logits.new_full((len(x), self.vocab_size), -torch.inf)
        return whole.index_copy(1, self.ids, logits)

    def part(self, words):
        """The same head for a range of the words: what a rank of several needs."""
        own = (self.ids >= words.start) & (self.ids < words.stop)
        weight = self.few.weight.detach()[own]
        with torch.device("meta"):  # one row, as torch warns of none at all
            few = Linear(self.few.in_features, 1, bias=False)
        few.weight = nn.Parameter(weight, requires_grad=False)
        return ReducedHead(few, self.ids[own] - words.start, len(words))


def hollow(config):
    """A Decoder of shapes only."""
    with torch.device("meta"):
        return Decoder(config)


def borrowing(draft, target):
    """Completes a draft with what it borrows in any case."""
    draft.embed_tokens, draft.rotary = target.embed_tokens, target.rotary
    draft.vocab_size = target.vocab_size
    return draft.eval()
