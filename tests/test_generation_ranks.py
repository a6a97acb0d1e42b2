"""Speculation on real ranks: processes, the tiny pair, shared memory and gloo."""
import os
import signal

import pytest
import torch
from helpers import generator

from nds_helpers.decoding import ModelDrafter, Sampling, speculative
from nds_helpers.decoding.trace import collect
from nds_helpers.distributed import (
    RankError,
    ShardedDrafter,
    Workers,
    rounds_on_ranks,
)
from nds_helpers.models import load_pair
from nds_helpers.parallel import shard_model

REQUEST = dict(k=4, max_new_tokens=32, sampling=Sampling(0.8))
PROMPT = [17, 300, 5, 41, 77]


PLACEMENTS = ["rank 0", "every rank", "sharded", "own rank"]


@pytest.fixture(scope="module", params=["shared", "gloo"])
def workers(request):
    with Workers(2, request.param) as workers:
        workers.run(load)
        yield workers


def load(me):
    pair = load_pair("tiny")
    target, draft = pair.target.double(), pair.draft.double()
    me.state["target"] = shard_model(target, me.group)
    team = me.group.subgroup(range(1, me.size))
    me.state["team's"] = shard_model(target, team) if team else None
    me.state["draft"], me.state["draft's"] = draft, shard_model(draft, me.group)


def rounds(me, placement="rank 0", seed=3, **more):
    """A generation on this rank and the others, with the draft at its place."""
    target, drafter = me.state["target"], None
    if placement == "sharded":
        drafter = ShardedDrafter(me.state["draft's"])
    elif placement == "every rank" or me.rank == 0:
        drafter = ModelDrafter(me.state["draft"])
    if placement == "own rank":
        target = me.state["team's"]
    return rounds_on_ranks(me, target, drafter, PROMPT, seed=seed, **REQUEST, **more)


def generate(me, placement, seed, logits):
    return collect(rounds(me, placement, seed, logits=logits))


def alone(seed):
    pair = load_pair("tiny")
    return speculative(pair.target.double(), ModelDrafter(pair.draft.double()), PROMPT,
                       generator=generator(seed), **REQUEST).tokens


def check(results, seed):
    """The text of one device on every rank, and times that make sense."""
    for result in results:
        assert torch.equal(result.tokens, alone(seed))
        for r in result.trace:  # a part can't be less than nothing
            assert r.drafting >= 0 and r.verifying > 0 and r.synchronising > 0


@pytest.mark.parametrize("logits", ["gathered", "sliced"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_real_ranks_equal_one_device(workers, logits, placement):
    for seed in (3, 4):
        check(workers.run(generate, placement, seed, logits), seed)


@pytest.mark.parametrize("backend", ["shared", "gloo"])
def test_one_rank_drafts_for_a_team_of_two(backend):
    with Workers(3, backend) as workers:
        workers.run(load)
        for logits in ("gathered", "sliced"):
            check(workers.run(generate, "own rank", 3, logits), 3)
        check(workers.run(generate, "sharded", 4, "sliced"), 4)


@pytest.mark.parametrize("placement, dying", [
    ("rank 0", 1), ("own rank", 0), ("own rank", 1)])
def test_what_was_committed_survives_a_rank_that_dies(placement, dying):
    def generate_and_die(me):
        load(me)
        done = []
        for r in rounds(me, placement):
            done += r.tokens
            if len(done) > 8 and me.rank == dying:
                os.kill(os.getpid(), signal.SIGKILL)

    with Workers(2) as workers, pytest.raises(
            RankError, match=f"rank {dying} .*SIGKILL") as e:
        workers.run(generate_and_die)
    committed = sum(e.value.reports[0], [])
    assert len(committed) > 8 and committed == alone(3).tolist()[:len(committed)]
