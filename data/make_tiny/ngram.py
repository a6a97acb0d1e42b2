"""The yardstick: unigram, bigram and trigram models of the same corpus."""
from collections import Counter

import numpy as np

VOCABULARY = 4096


def chances(train, text):
    """Probability of each token of `text` under each order, from counts alone.

    Args:
        train, text: arrays of ids.

    Returns:
        array [4, len(text) - 2]: uniform, unigram, bigram, trigram; 0 where the
        context was never seen. Tokens 0 and 1 of the text only give context.
    """
    train, text = train.astype(int).tolist(), text.astype(int).tolist()
    rows = [np.full(len(text) - 2, 1 / VOCABULARY)]
    for order in (1, 2, 3):
        grams = Counter(zip(*(train[i:] for i in range(order))))
        contexts = Counter()
        for gram, count in grams.items():
            contexts[gram[:-1]] += count
        seen = [tuple(text[i - order + 1:i + 1]) for i in range(2, len(text))]
        rows.append(np.array([grams[g] / max(1, contexts[g[:-1]]) for g in seen]))
    return np.stack(rows)


def interpolation_weights(parts, rounds=50):
    """Mixture weights that fit `parts` best, by expectation maximisation.

    Jelinek and Mercer 1980.
    """
    weights = np.full(len(parts), 1 / len(parts))
    for _ in range(rounds):
        share = weights[:, None] * parts
        weights = (share / share.sum(0)).mean(1)
    return weights


def losses(train, text):
    """Nats a token of the interpolated unigram, bigram and trigram models.

    The weights are fitted on the very text that is scored, which favours the
    yardstick.
    """
    parts = chances(train, text)
    found = {}
    for name, orders in (("unigram", 2), ("bigram", 3), ("trigram", 4)):
        weights = interpolation_weights(parts[:orders])
        found[name] = float(-np.log(weights @ parts[:orders]).mean())
    return found
