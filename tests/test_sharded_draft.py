"""A draft sharded over the target's ranks: one rank draws, all feed the same."""
import pytest
import torch
from helpers import generator, next_rule
from ranked import SlicedTable
from shards import ODD, random_decoder

from nds_helpers.decoding import ModelDrafter, Sampling, speculative
from nds_helpers.distributed import ShardedDrafter, rounds_on_ranks
from nds_helpers.parallel import RankError, shard_model, simulate

PROMPTS = [[i % 97, i * i % 97, 7 * i % 97] for i in range(1, 21)]
V = ODD.vocab_size
REQUEST = dict(k=3, max_new_tokens=12)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("logits", ["gathered", "sliced"])
def test_it_equals_one_device(size, logits):
    target, draft = random_decoder(ODD), random_decoder(ODD)
    draft.norm.weight.mul_(0.7)  # the same guesses, less sure of themselves

    def work(me):
        model, shard = shard_model(target, me.group), shard_model(draft, me.group)
        return [[r.tokens for r in rounds_on_ranks(
                    me, model, ShardedDrafter(shard), prompt, seed=i, logits=logits,
                    sampling=Sampling(0.8 * (i % 2)), **REQUEST)]
                for i, prompt in enumerate(PROMPTS)]

    expected = []
    for i, prompt in enumerate(PROMPTS):
        trace = speculative(target, ModelDrafter(draft), prompt, generator=generator(i),
                            sampling=Sampling(0.8 * (i % 2)), **REQUEST).trace
        expected.append([r.tokens for r in trace])
    assert simulate(work, size) == [expected] * size


class Tilted:
    """A shard whose logits all tie, but for 1e-6 that differ from rank to rank."""

    def __init__(self, shard):
        self.shard = shard
        self.tilt = 1e-6 * (-1) ** shard.rank * (torch.arange(V) % 2)

    def __getattr__(self, name):
        return getattr(self.shard, name)

    def forward(self, tokens, cache):
        return 0 * self.shard.forward(tokens, cache) + self.tilt


def guesses(me, drafter):
    """All guesses of a greedy generation whose target says what rank 0 guesses."""
    shard = shard_model(random_decoder(ODD), me.group)
    model = SlicedTable(me.rank, me.size, vocab_size=V)
    model.rule = next_rule(lambda prefix: 1, V)
    rounds = rounds_on_ranks(me, model, drafter(Tilted(shard)), [1, 2], k=3, seed=0,
                             sampling=Sampling(0.0), max_new_tokens=20)
    return [r.guesses for r in rounds]


def test_ranks_that_see_a_tie_differently_still_feed_the_same():
    first, second = simulate(guesses, 2, ShardedDrafter)
    assert first == second
    with pytest.raises(RankError, match="every rank must make the same call"):
        simulate(guesses, 2, ModelDrafter)  # each for itself: the shards part ways
