"""The draft on a rank of its own, ahead of the others: the text stays the same."""
import pytest
import torch
from helpers import VERIFIERS, Proposer, TableModel, generator, random_rule
from ranked import SlicedTable

from nds_helpers.decoding import ModelDrafter, NGramDrafter, Sampling, speculative
from nds_helpers.distributed.ahead import Ahead
from nds_helpers.distributed.generation import rounds_on_ranks, speculative_on_ranks
from nds_helpers.parallel import simulate

V = 13
WAYS = ["gathered", "sliced"]
SAMPLINGS = [Sampling(0.0), Sampling(0.8), Sampling(1.0, top_k=4),
             Sampling(0.7, top_k=6, top_p=0.7)]
PROMPTS = [[1 + i % 12, i * i % V, (7 * i) % V] for i in range(20)]
REQUEST = dict(k=3, max_new_tokens=30, sampling=Sampling(0.8))


def near(seed=1, sharpness=0.97):
    """A draft that resembles the target: it wins some bets and loses others."""
    return TableModel(random_rule(seed, V, sharpness), V)


DRAFTERS = {
    "itself": lambda: ModelDrafter(near(sharpness=1.0)),
    "alike": lambda: ModelDrafter(near(sharpness=0.6)),
    "another": lambda: ModelDrafter(near(2)),
    "n-grams": lambda: NGramDrafter(),
    "none": lambda: Proposer(lambda ids, k: []),
}


def team_work(me, drafter, prompt, request, **target):
    """One rank's part: rank 0 drafts, the others hold the target."""
    team = me.group.subgroup(range(1, me.size))
    if team is None:
        return rounds_on_ranks(me, None, drafter(), prompt, **request)
    model = SlicedTable(team.rank, team.size, vocab_size=V, **target)
    return rounds_on_ranks(me, model, None, None, **request | dict(seed=99))


def on_ranks(size, drafter, prompt=(1, 2, 3), target=None, **settings):
    """The rounds of all simulated ranks."""
    return simulate(lambda me: list(team_work(
        me, drafter, prompt, REQUEST | settings, **target or {})), size)


def alone(drafter, prompt=(1, 2, 3), seed=0, target=None, **settings):
    return speculative(SlicedTable(0, 1, vocab_size=V, **target or {}), drafter(),
                       prompt, generator=generator(seed), **REQUEST | settings)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("logits", WAYS)
@pytest.mark.parametrize("verify", VERIFIERS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_it_equals_one_device(size, logits, verify, drafter):
    for i, prompt in enumerate(PROMPTS[::1 if drafter == "alike" else 7]):
        settings = dict(verify=verify, sampling=SAMPLINGS[i % len(SAMPLINGS)], seed=i)
        expected = alone(DRAFTERS[drafter], prompt, **settings).trace
        for rounds in on_ranks(size, DRAFTERS[drafter], prompt, logits=logits,
                               **settings):
            for ours, theirs in zip(rounds, expected, strict=True):
                assert ((ours.k, ours.guesses, ours.accepted, ours.kind, ours.tokens)
                        == (theirs.k, theirs.guesses, theirs.accepted, theirs.kind,
                            theirs.tokens))
                assert ours.p == pytest.approx(theirs.p, abs=1e-12)
                assert ours.q == pytest.approx(theirs.q, abs=1e-12)
