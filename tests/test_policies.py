"""Adaptive K: near the best fixed K where speculation pays, near plain elsewhere."""
import random

import pytest
import torch
from helpers import TableModel, law_rule, random_rule

from nds_helpers.decoding import (
    AdaptiveK,
    EitherDrafter,
    ModelDrafter,
    NGramDrafter,
    Round,
    Sampling,
    Trace,
    autoregressive,
    round_costs,
    speculative,
)
from nds_helpers.decoding.policies import PAUSE, plain_rounds, recent_acceptance

COSTS = {  # rounds of 0 to 8 guesses, in plain steps
    "a small draft": [1 + 0.25 * k for k in range(9)],
    "look-up": [1 + 0.08 * k for k in range(9)],
    "a slow draft": [1 + 0.6 * k for k in range(9)],
}


def a_round(k, accepted):
    """A Round of k guesses, of which some were accepted."""
    return Round(k=k, guesses=[0] * k, accepted=accepted, tokens=[0] * (accepted + 1),
                 kind="bonus" if accepted == k else "corrected", p=[], q=[])


def speed(policy, costs, alpha, tokens=128, seed=0):
    """Tokens per plain step of a text whose guesses are accepted with chance alpha."""
    g, trace, taken, done = random.Random(seed), Trace(), 0, 0
    while done < tokens:
        k = min(policy(trace), tokens - done - 1)
        accepted = 0
        while accepted < k and g.random() < alpha:
            accepted += 1
        trace.append(a_round(k, accepted))
        taken, done = taken + costs[k], done + accepted + 1
    return done * costs[0] / taken


def mean_speed(policy, costs, alpha):
    return sum(speed(policy, costs, alpha, seed=seed) for seed in range(60)) / 60


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("name", COSTS)
def test_never_much_slower_than_plain_and_near_the_best(name, alpha):
    costs = COSTS[name]
    worst = min(speed(AdaptiveK(costs), costs, alpha, seed=s) for s in range(60))
    assert worst > 0.95
    best = max(mean_speed(lambda trace, k=k: k, costs, alpha) for k in range(9))
    assert mean_speed(AdaptiveK(costs), costs, alpha) > 0.9 * best


def test_a_fixed_k_fails_the_same_check():
    costs = COSTS["a slow draft"]
    assert speed(lambda trace: 4, costs, 0.1) < 0.5


def test_k_follows_acceptance():
    policy = AdaptiveK(COSTS["look-up"])
    good, poor = Trace([a_round(4, 4)] * 9), Trace([a_round(4, 0)] * 30)
    assert policy(good) == 8 and policy(poor) == 0
    assert policy(poor + Trace([a_round(4, 4)] * 30)) == 8  # what is old is forgotten


def test_a_hopeless_text_is_tried_again_after_ever_longer_pauses():
    policy = AdaptiveK(COSTS["a slow draft"])
    trace = Trace([a_round(4, 0)] * 5)
    while len(trace) < 200:
        trace.append(a_round(policy(trace), 0))
    tried = [i for i, r in enumerate(trace) if r.k]
    pauses = [b - a - 1 for a, b in zip(tried[4:], tried[5:])]
    assert pauses[0] == PAUSE and len(pauses) >= 4
    assert all(2 * a + 2 >= b > a for a, b in zip(pauses[1:], pauses[2:]))


def test_rounds_without_guesses_say_nothing_of_acceptance():
    """A look-up that finds nothing was asked, but wasn't wrong."""
    nothing = Round(k=4, guesses=[], accepted=0, kind="bonus", tokens=[1], p=[], q=[])
    trace = Trace([a_round(2, 1), nothing, a_round(0, 0)])
    assert recent_acceptance(trace) == recent_acceptance(trace[:1])
    assert plain_rounds(trace) == 1 and plain_rounds(Trace()) == 0


@pytest.mark.parametrize("costs", [[], [1.0], [1.0, 0.0], [1.0, -2.0]], ids=str)
def test_costs_must_be_seconds(costs):
    with pytest.raises(ValueError, match="round_costs"):
        AdaptiveK(costs)


def test_the_text_is_that_of_plain_decoding():
    model = TableModel(random_rule(3, sharpness=3.0), vocab_size=5)
    drafter = ModelDrafter(TableModel(random_rule(4, sharpness=3.0), vocab_size=5))
    settings = dict(max_new_tokens=60, sampling=Sampling(0.0))
    plain = autoregressive(model, [1, 2], **settings)
    fast = speculative(model, drafter, [1, 2], k=AdaptiveK([1, 1.2, 1.4, 1.6]),
                       **settings)
    assert fast.tokens.tolist() == plain.tokens.tolist()
    assert {r.k for r in fast.trace} > {0}


@pytest.mark.parametrize("drafter", [
    ModelDrafter(TableModel(law_rule([0.2] * 5), dtype=torch.float32)), NGramDrafter()],
    ids=["model", "look-up"])
def test_costs_are_measured_for_every_k(drafter):
    asked = []
    propose = drafter.propose
    drafter.propose = lambda text, k, *more: asked.append(k) or propose(text, k, *more)
    costs = round_costs(TableModel(law_rule([0.2] * 5)), drafter, largest=3, repeats=2)
    assert len(costs) == 4 and 0 < costs[0] and costs == sorted(costs)
    assert sorted(asked) == [1, 1, 2, 2, 3, 3, 3]


def test_a_drafter_behind_a_look_up_is_measured_too():
    """Else its guesses would seem as cheap as copies."""
    model = TableModel(law_rule([0.05] * 20), vocab_size=20)
    behind = ModelDrafter(model)
    asked = []
    propose = behind.propose
    behind.propose = lambda text, k, *more: asked.append(k) or propose(text, k, *more)
    round_costs(model, EitherDrafter(NGramDrafter(), behind), largest=3, context=15,
                repeats=2)
    assert sorted(asked) == [1, 1, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("sizes", [
    dict(largest=0), dict(largest=4, context=4)], ids=str)
def test_costs_of_nothing_are_refused(sizes):
    with pytest.raises(ValueError, match="1 <= largest < context"):
        round_costs(TableModel(law_rule([0.2] * 5)), NGramDrafter(), **sizes)
