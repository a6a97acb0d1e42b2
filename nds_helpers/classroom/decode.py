"""Checks for chapter 01: one draw, greedy decoding with a cache, the speed limit."""
import functools

import torch

from ..models import ModelConfig
from .report import check


class ToyCache:
    """Holds the ids themselves, where a real cache holds keys and values."""

    def __init__(self):
        self.tokens = []

    @property
    def length(self):
        return len(self.tokens)

    def truncate(self, length):
        del self.tokens[length:]


class ToyModel:
    """A language model in ten lines: each next token depends on all before it.

    The id it favours is the sum of place times (id + 1) over the cache, modulo
    10. So a token that is missing, or was fed twice, changes what follows.

    Attributes:
        positions: how many tokens it has been fed, over all forwards.
    """

    vocab_size, end_token_ids = 10, ()

    def __init__(self):
        self.positions = 0

    def new_cache(self, max_length=None):
        return ToyCache()

    def forward(self, tokens, cache):
        """LongTensor[T] -> FloatTensor[T, 10]; the cache grows by T."""
        logits = torch.zeros(len(tokens), 10)
        for row, token in zip(logits, tokens.tolist()):
            cache.tokens.append(int(token))
            places = enumerate(cache.tokens, start=1)
            row[sum(place * (seen + 1) for place, seen in places) % 10] = 1.0
        self.positions += len(tokens)
        return logits


def check_draw_token(function):
    """Checks draw_token(weights, u) -> int.

    Args:
        function: takes FloatTensor[V] and a float in [0, 1).

    Returns:
        bool, True where every case passed.
    """
    w = torch.tensor
    return check(function, [
        ((w([0.2, 0.5, 0.3]), 0.1), 0,
         "u decides: a small u takes the first token, not the likeliest."),
        ((w([0.2, 0.5, 0.3]), 0.8), 2,
         "which of the running sums is the first to lie above u?"),
        ((w([1.0, 4.0, 3.0]), 0.5), 1,
         "the weights needn't sum to 1: compare with u times their total."),
        ((w([0.0, 0.25, 0.75]), 0.0), 1,
         "a token of weight 0 must never come out, not even for u = 0: think "
         "about 'at least' and 'more than'."),
        ((w([0.25, 0.25, 0.5]), 0.25), 1,
         "u runs from 0 up to, but not including, 1: a running sum that only "
         "equals u hasn't passed it."),
        ((w([0.1] * 10 + [0.0]), 1 - 1e-9), 9,
         "float32 has too few digits for a u close to 1: sum in float64."),
    ])


def check_generate_greedily(function):
    """Checks generate_greedily(model, cache, prompt, count) -> list of new ids.

    Args:
        function: takes a ToyModel, a ToyCache, a list of ids and a number.

    Returns:
        bool, True where every case passed.
    """
    @functools.wraps(function)
    def watched(prompt, count):
        model, cache = ToyModel(), ToyCache()
        tokens = function(model, cache, list(prompt), count)
        if not isinstance(tokens, (list, tuple, torch.Tensor)):
            return tokens
        tokens = [int(t) for t in tokens]
        return tokens, f"{cache.length} in the cache", f"{model.positions} fed"

    def expected(tokens, cached):
        return tokens, f"{cached} in the cache", f"{cached} fed"

    return check(watched, [
        (([3, 1], 1), expected([8], 2),
         "the cache has to hold everything before the last committed token, "
         "which has been fed to nobody."),
        (([3, 1], 4), expected([8, 5, 9, 9], 5),
         "each forward gets only tokens that the cache doesn't hold yet; one "
         "that is fed twice changes what follows."),
        (([7], 3), expected([8, 6, 7], 3),
         "a prompt of one token: nothing comes before its last token."),
        (([2, 7, 1, 8], 5), expected([1, 1, 3, 1, 7], 8),
         "logits come one row a fed token; which row speaks of the next one?"),
    ])


class Shape(ModelConfig):
    """A config that shows itself in one short line."""

    def __repr__(self):
        return f"<{self.layers} layers, H={self.heads}, G={self.kv_heads}>"


def shape(layers, heads, kv_heads, head_width, width):
    """A Shape with these sizes; the other fields don't matter here."""
    return Shape(vocab_size=100, width=width, layers=layers, heads=heads,
                 kv_heads=kv_heads, head_width=head_width, mlp_width=4 * width,
                 max_length=4096)


def check_speed_limit(function):
    """Checks speed_limit(config, weights, length, bandwidth, size) -> float.

    Args:
        function: takes a ModelConfig, bytes, tokens, bytes a second, and bytes
            a number.

    Returns:
        bool, True where every case passed.
    """
    return check(function, [
        ((shape(1, 1, 1, 4, 4), 1000, 0, 50_000, 2), 50.0,
         "an empty cache: only the weights are read."),
        ((shape(1, 1, 1, 4, 4), 1000, 100, 52_000, 2), 20.0,
         "every cached token has a key and a value."),
        ((shape(5, 1, 1, 4, 4), 1000, 100, 54_000, 2), 6.0,
         "every layer keeps keys and values of its own."),
        ((shape(5, 8, 2, 4, 32), 2000, 100, 90_000, 2), 5.0,
         "the cache holds kv heads (G), which may be fewer than the heads (H)."),
        ((shape(5, 8, 2, 16, 32), 8000, 100, 360_000, 2), 5.0,
         "a head is as wide as head_width says, whatever width / heads is."),
        ((shape(5, 8, 2, 4, 32), 2000, 100, 90_000, 4), 90_000 / 34_000,
         "numbers of `size` bytes: 2 for 16 bits, 4 for float32."),
    ])
