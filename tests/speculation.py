"""What the tests of the speculative loop share: settings, drafters, two short calls."""
import pytest
from helpers import Proposer, TableModel, generator, next_rule, random_rule

from nds_helpers.decoding import (
    EitherDrafter,
    ModelDrafter,
    NGramDrafter,
    Sampling,
    autoregressive,
    speculative,
)

GREEDY = Sampling(0.0)
WARM = Sampling(1.2, top_k=4, top_p=0.95)
COUNTING = next_rule(lambda prefix: (prefix[-1] + 1) % 5, lead=3.0)


def run(model, drafter, prompt=(1, 2), k=3, n=12, sampling=GREEDY, seed=0, **more):
    """A speculative generation, greedy unless told otherwise."""
    return speculative(model, drafter, list(prompt), k=k, max_new_tokens=n,
                       sampling=sampling, generator=generator(seed), **more)


def plain(model, prompt=(1, 2), n=12, sampling=GREEDY, seed=0):
    """The ids that plain decoding gives for the same request."""
    return autoregressive(model, list(prompt), max_new_tokens=n, sampling=sampling,
                          generator=generator(seed)).tokens.tolist()


def target(**settings):
    """A new target model; the same logits every time."""
    return TableModel(random_rule(0), **settings)


DRAFTERS = {
    "itself": lambda: ModelDrafter(target()),
    "another model": lambda: ModelDrafter(TableModel(random_rule(9))),
    "n-grams": lambda: NGramDrafter(),
    "n-grams or itself": lambda: EitherDrafter(NGramDrafter(), ModelDrafter(target())),
    "always 3": lambda: Proposer(lambda ids, k: [3] * k),
    "nothing": lambda: Proposer(lambda ids, k: []),
}


def check_same_rounds(ours, theirs):
    """Requires two traces that tell of the same rounds, p and q to the last bits."""
    for a, b in zip(ours, theirs, strict=True):
        assert ((a.k, a.guesses, a.accepted, a.kind, a.tokens)
                == (b.k, b.guesses, b.accepted, b.kind, b.tokens))
        assert a.p == pytest.approx(b.p, abs=1e-12)
        assert a.q == pytest.approx(b.q, abs=1e-12)
