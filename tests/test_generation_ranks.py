"""Speculation on real ranks: processes, the tiny pair, shared memory and gloo."""
import os
import signal

import pytest
import torch
from helpers import generator

from nds_helpers.decoding import ModelDrafter, Sampling, speculative
from nds_helpers.distributed import (
    RankError,
    Workers,
    rounds_on_ranks,
    speculative_on_ranks,
)
from nds_helpers.models import load_pair
from nds_helpers.parallel import shard_model

REQUEST = dict(k=4, max_new_tokens=32, sampling=Sampling(0.8))
PROMPT = [17, 300, 5, 41, 77]


@pytest.fixture(scope="module", params=["shared", "gloo"])
def workers(request):
    with Workers(2, request.param) as workers:
        workers.run(load)
        yield workers


def load(me):
    pair = load_pair("tiny")
    me.state["target"] = shard_model(pair.target.double(), me.group)
    me.state["draft"] = pair.draft.double()


def generate(me, seed, logits, everywhere):
    drafter = ModelDrafter(me.state["draft"]) if everywhere or me.rank == 0 else None
    return speculative_on_ranks(me, me.state["target"], drafter, PROMPT, seed=seed,
                                logits=logits, **REQUEST)


@pytest.mark.parametrize("logits", ["gathered", "sliced"])
@pytest.mark.parametrize("everywhere", [False, True])
def test_real_ranks_equal_one_device(workers, logits, everywhere):
    pair = load_pair("tiny")
    target, draft = pair.target.double(), pair.draft.double()
    for seed in (3, 4):
        expected = speculative(target, ModelDrafter(draft), PROMPT,
                               generator=generator(seed), **REQUEST).tokens
        for result in workers.run(generate, seed, logits, everywhere):
            assert torch.equal(result.tokens, expected)
            for r in result.trace:  # a part can't be less than nothing
                assert r.drafting >= 0 and r.verifying > 0 and r.synchronising > 0


def test_what_was_committed_survives_a_rank_that_dies():
    def generate_and_die(me):
        load(me)
        drafter = ModelDrafter(me.state["draft"]) if me.rank == 0 else None
        done = []
        for r in rounds_on_ranks(me, me.state["target"], drafter, PROMPT, seed=3,
                                 **REQUEST):
            done += r.tokens
            if len(done) > 8 and me.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    pair = load_pair("tiny")
    expected = speculative(pair.target.double(), ModelDrafter(pair.draft.double()),
                           PROMPT, generator=generator(3), **REQUEST).tokens.tolist()
    with Workers(2) as workers, pytest.raises(RankError, match="rank 1 .*SIGKILL") as e:
        workers.run(generate_and_die)
    committed = sum(e.value.reports[0], [])
    assert len(committed) > 8 and committed == expected[:len(committed)]
