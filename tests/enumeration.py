"""Every outcome of a round, with its probability: drafts, passed tests, next tokens."""
import itertools
from functools import cache

import numpy as np
import torch
from helpers import random_rule

from nds_helpers.decoding import (
    Draft,
    Sampling,
    probabilities,
    verify,
    verify_block,
    verify_tokens,
)

V = 5
EXACT = 1e-12
NUDGE = 1e-11  # just below and just above a threshold
SAMPLINGS = [Sampling(0.0), Sampling(0.7), Sampling(1.5), Sampling(1.0, top_k=3),
             Sampling(1.5, top_p=0.8), Sampling(0.7, top_k=4, top_p=0.9)]


def laws(seed, sampling):
    """prefix -> probabilities (numpy), from random logits."""
    rule = random_rule(seed, V)

    @cache
    def law(prefix):
        logits = torch.tensor(rule(prefix), dtype=torch.float64)
        return probabilities(logits, sampling).numpy()

    return law


def honest(law):
    """A drafter's step: the law it draws from, and the q that it hands over."""
    return lambda prefix: (law(prefix), law(prefix))


def every_draft(step, k, prefix=()):
    """Yields (tokens, probability, rows of q) for every draft of k tokens.

    A step that returns None ends the draft there.
    """
    here = step(prefix) if k else None
    if here is None:
        yield (), 1.0, ()
        return
    drawn, q = here
    for token in np.flatnonzero(drawn):
        for rest, weight, rows in every_draft(step, k - 1, (*prefix, int(token))):
            yield (int(token), *rest), drawn[token] * weight, (q, *rows)


# What the papers say, in plain Python: where the tests' thresholds lie, and which
# run a pattern of passed tests keeps.
def token_thresholds(p, q, tokens):
    return [min(1.0, p[i][x] / q[i][x]) if q[i][x] else 0.0
            for i, x in enumerate(tokens)]


def block_thresholds(p, q, tokens):
    weights, out = [1.0], []
    for i, x in enumerate(tokens):
        weights.append(min(1.0, weights[-1] * p[i][x] / q[i][x]))
    for i, w in enumerate(weights[1:-1], 1):
        left = np.maximum(w * p[i] - q[i], 0).sum()
        out.append(1.0 if w == 1 else left / (left + 1 - w))
    return out + weights[-1:] if tokens else []


def first_refusal(passed):
    return passed.index(False) if False in passed else len(passed)


def last_pass(passed):
    return max((i for i, yes in enumerate(passed, 1) if yes), default=0)


THEORY = {verify_tokens: (token_thresholds, first_refusal),
          verify_block: (block_thresholds, last_pass)}


def chance_and_uniforms(passed, limits):
    """Probability of a pattern, and uniforms that give it, close to the limits."""
    both = list(zip(passed, limits))
    return (np.prod([a if yes else 1 - a for yes, a in both]),
            [a * (1 - NUDGE) if yes else a + (1 - a) * NUDGE for yes, a in both])


class Feed:
    """Stands in for the uniforms, and writes down what the last one draws from."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(verify, "uniforms", lambda count, generator: self.u)
        monkeypatch.setattr(verify, "draw", self.draw)

    def draw(self, weights, u):
        assert u == self.u[-1]  # a number of its own, that decided nothing before
        self.law = (weights / weights.sum()).double().numpy()
        return int(weights.argmax())

    def outcome(self, verifier, p, draft, u):
        """(accepted, law of the next token, kind) of the real code, fed with u."""
        self.u = torch.tensor([*u, 0.123], dtype=torch.float64)
        verdict = verifier(p, draft, None)
        return verdict.accepted, self.law, verdict.kind


def joint(law, length, prefix=()):
    """The target's own probabilities of the next `length` tokens, [V] * length."""
    if length == 0:
        return np.ones(())
    return np.stack([law(prefix)[x] * joint(law, length - 1, (*prefix, x))
                     for x in range(V)])


def emitted(feed, verifier, law, step, k, certain=False):
    """Probabilities of the first k+1 tokens: one round, completed by the target.

    All drafts, all patterns of passed and failed tests, all next tokens.
    """
    tails = cache(lambda prefix: np.stack(
        [joint(law, k - len(prefix), (*prefix, x)) for x in range(V)]))
    total = np.zeros([V] * (k + 1))
    thresholds, _ = THEORY[verifier]
    for tokens, weight, q in every_draft(step, k):
        rows = [law(tokens[:i]) for i in range(len(tokens) + 1)]
        p = torch.tensor(np.stack(rows))
        probs = None if certain else torch.tensor(np.array(q)).reshape(-1, V)
        draft = Draft(torch.tensor(tokens, dtype=torch.long), probs)
        limits = thresholds(rows, q, tokens)
        for passed in itertools.product((True, False), repeat=len(tokens)):
            chance, u = chance_and_uniforms(passed, limits)
            if chance <= 0:
                continue
            t, following, _ = feed.outcome(verifier, p, draft, u)
            spread = following.reshape(-1, *[1] * (k - t)) * tails(tokens[:t])
            total[tokens[:t]] += weight * chance * spread
    return total


def variation(feed, verifier, law, step, k, certain=False):
    """Total variation between what is emitted and the target."""
    return abs(emitted(feed, verifier, law, step, k, certain)
               - joint(law, k + 1)).sum() / 2
