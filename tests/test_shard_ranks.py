"""The sharded decoder on real ranks: shared memory and gloo."""
import pytest
import torch
from shards import NARROW, SHAPES, WIDE, assert_walks_equal, random_decoder, walk

from nds_helpers.distributed import Workers
from nds_helpers.models import load_pair
from nds_helpers.models.pairs import DATA
from nds_helpers.parallel import (
    RankError,
    load_shard,
    shard_model,
    totals,
    traffic,
)

NAMES = ["9 heads, 3 kv heads", "8 heads, 2 kv heads, 97 words", "qwen3, bias, tied"]


def keep_and_walk(me, scheme):
    """Walks through shards that the rank keeps, and counts what one forward sends."""
    shards = [shard_model(random_decoder(SHAPES[name], seed), me.group, scheme)
              for seed, name in enumerate(NAMES)]
    me.state["shards"] = shards
    with me.group.recording() as calls:
        shards[0].forward(torch.arange(5))
    sent = {name: found[:2] for name, found in totals(calls).items()}
    return [walk(shard) for shard in shards], sent


def walk_on(me):
    """A kept shard in a later call, as a later cell uses it."""
    return walk(me.state["shards"][1])


def load_and_answer(me, ids):
    shard = load_shard(DATA / "tiny" / "target", me.group, device=me.device)
    return shard.forward(ids)


def use_closed(me):
    me.group.close()
    me.state["shards"][0].forward(torch.arange(5))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("backend", ["shared", "gloo"])
def test_real_ranks_equal_one(size, backend):
    wide = [random_decoder(SHAPES[name], seed) for seed, name in enumerate(NAMES)]
    expected, ids = [walk(model) for model in wide], torch.arange(12) * 7
    with Workers(size, backend) as workers:
        for scheme in ("all-reduce", "sequence"):
            found = workers.run(keep_and_walk, scheme)
            formula = traffic(wide[0].config, size, 5, scheme, itemsize=8)
            assert [sent for _, sent in found] == formula
            for i, walked in enumerate(expected):
                assert_walks_equal([walks[i] for walks, _ in found], walked, WIDE)
            assert_walks_equal(workers.run(walk_on), expected[1], WIDE)
        narrow = workers.run(load_and_answer, ids)
        assert all(torch.equal(logits, narrow[0]) for logits in narrow)
        torch.testing.assert_close(
            narrow[0], load_pair("tiny").target.forward(ids), **NARROW)
        if backend == "shared":
            with pytest.raises(RankError, match="this group is closed"):
                workers.run(use_closed)
