"""The sharded decoder on simulated ranks: equal to one device, and to its formula."""
import copy
import pickle

import pytest
import torch
from helpers import generator
from shards import NARROW, ODD, SHAPES, WIDE, assert_walks_equal, random_decoder, walk

from nds_helpers.decoding import Sampling, autoregressive
from nds_helpers.models import int8, load_pair
from nds_helpers.parallel import (
    RankError,
    SoloGroup,
    partition,
    shard_model,
    simulate,
    totals,
    traffic,
)
from nds_helpers.parallel.shard import ShardedDecoder

SCHEMES = ["all-reduce", "sequence"]
SIZES = [1, 2, 3, 4]


def walk_on_ranks(me, model, scheme):
    return walk(shard_model(model, me.group, scheme))


@pytest.fixture(scope="module")
def models():
    """name -> (decoder in float64, its walk, the same in float32, its walk)."""
    made = {}
    for seed, (name, config) in enumerate(SHAPES.items()):
        wide = random_decoder(config, seed)
        narrow = copy.deepcopy(wide).float()
        made[name] = wide, walk(wide), narrow, walk(narrow)
    return made


@pytest.fixture(scope="module")
def odd(models):
    return models["8 heads, 2 kv heads, 97 words"][0]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_shards_equal_the_whole_model(models, name, size, scheme):
    wide, expected, narrow, expected_narrow = models[name]
    assert min(x.std() for x in expected) > 0.1
    assert_walks_equal(simulate(walk_on_ranks, size, wide, scheme), expected, WIDE)
    found = simulate(walk_on_ranks, size, narrow, scheme)
    assert_walks_equal(found, expected_narrow, NARROW)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, WIDE),
                                              (torch.float32, NARROW)])
def test_shards_of_the_tiny_target_equal_it(size, dtype, tolerance):
    target = load_pair("tiny", dtype=dtype).target
    for scheme in SCHEMES:
        found = simulate(walk_on_ranks, size, target, scheme)
        assert_walks_equal(found, walk(target), tolerance)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_shards_write_the_same_text(size, temperature):
    target = load_pair("tiny", dtype=torch.float64).target
    prompt, sampling = torch.arange(300, 312), Sampling(temperature=temperature)

    def write(model):
        return autoregressive(model, prompt, max_new_tokens=24, sampling=sampling,
                              generator=generator()).tokens

    def on_ranks(me):
        return write(shard_model(target, me.group, SCHEMES[size % 2]))

    expected = write(target)
    assert len(expected) == 24
    assert all(torch.equal(text, expected) for text in simulate(on_ranks, size))


@pytest.mark.parametrize("size", SIZES)
def test_more_positions_than_the_sequence_scheme_has_ranks_or_fewer(odd, size):
    """CASES 26, and slices of the positions that are empty on some ranks."""
    def on_ranks(me):
        shard = shard_model(odd, me.group, "sequence")
        return [shard.forward(torch.arange(n)) for n in range(1, 10)]

    expected = [odd.forward(torch.arange(n)) for n in range(1, 10)]
    assert_walks_equal(simulate(on_ranks, size), expected, WIDE)


# The vocabulary.
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("words", [97, 96, 60, 25, 3])
def test_slices_of_the_vocabulary(odd, size, words):
    """CASES 25: 97 columns, the last one reachable, padding ids nowhere."""
    def on_ranks(me):
        shard = shard_model(odd, me.group)
        shard.vocab_size = words
        x = shard.hidden(torch.arange(5)[None] + words - 5 if words > 5
                         else torch.arange(5)[None] % words)
        return shard.vocabulary, shard.local_logits(x), shard.logits(x)

    ids = torch.arange(5) + words - 5 if words > 5 else torch.arange(5) % words
    expected = odd.logits(odd.hidden(ids[None]))[..., :words]
    found = simulate(on_ranks, size)
    assert [i for vocabulary, *_ in found for i in vocabulary] == list(range(words))
    for vocabulary, local, whole in found:
        assert whole.shape == (1, 5, words)
        torch.testing.assert_close(whole, expected, **WIDE)
        assert torch.equal(local, whole[..., vocabulary.start:vocabulary.stop])


def test_a_shard_keeps_the_number_of_words_that_its_model_masks(odd):
    model = copy.deepcopy(odd)
    model.vocab_size = 90
    assert shard_model(model, SoloGroup()).forward(torch.arange(3)).shape == (3, 90)


@pytest.mark.parametrize("token", [97, 1000, -1])
def test_an_id_that_no_rank_knows_is_an_error_everywhere(odd, token):
    ids = torch.tensor([token])
    for model in (odd, shard_model(odd, SoloGroup())):
        with pytest.raises(IndexError):
            model.forward(ids)
    with pytest.raises(RankError, match="IndexError"):
        simulate(lambda me: shard_model(odd, me.group).forward(ids), 2)


# What a shard holds.
def test_a_cache_holds_this_rank_s_kv_heads(odd, models):
    smol = models["9 heads, 3 kv heads"][0]
    heads = lambda me, model: shard_model(  # noqa: E731
        model, me.group).new_cache(8).store.shape[3]
    assert simulate(heads, 2, smol) == [2, 1]
    assert simulate(heads, 4, odd) == [1, 1, 1, 1]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", SIZES)
def test_a_shard_holds_its_share_alone(models, name, size):
    model = models[name][0]
    before = {key: weight.clone() for key, weight in model.named_parameters()}

    def on_ranks(me):
        shard = shard_model(model, me.group)
        assert not shard.training and shard.end_token_ids == model.end_token_ids
        weights = list(shard.parameters())
        assert not any(weight.requires_grad for weight in weights)
        for weight in weights:  # no view of the whole model's memory
            assert weight.untyped_storage().nbytes() == weight.nbytes
            weight.zero_()
        return sum(weight.numel() for weight in weights)

    part = partition(model.config, size)
    assert simulate(on_ranks, size) == [part.parameters(rank) for rank in range(size)]
    assert all(torch.equal(before[key], w) for key, w in model.named_parameters())


# What it sends.
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tokens", [1, 2, 5, 12])
def test_calls_and_bytes_meet_the_formula(models, scheme, size, tokens):
    for name in ("8 heads, 2 kv heads, 97 words", "qwen3, bias, tied"):
        _, _, model, _ = models[name]

        def on_ranks(me, model=model):
            shard = shard_model(model, me.group, scheme)
            with me.group.recording() as calls:
                shard.forward(torch.zeros(tokens, dtype=torch.long))
            return {name: found[:2] for name, found in totals(calls).items()}

        assert simulate(on_ranks, size) == traffic(model.config, size, tokens, scheme)


def test_the_formula_s_figures():
    """2 (size - 1) / size of the numbers, 5 times, and 97 words' logits."""
    assert traffic(ODD, 2, 3) == [
        {"all_reduce": (5, 5 * 3 * 32 * 4), "all_gather": (1, 49 * 3 * 4)},
        {"all_reduce": (5, 5 * 3 * 32 * 4), "all_gather": (1, 48 * 3 * 4)}]
    assert traffic(ODD, 4, 8, "sequence", itemsize=2)[3] == {
        "reduce_scatter": (5, 5 * 6 * 32 * 2),
        "all_gather": (6, 5 * 6 * 32 * 2 + (97 - 25) * 8 * 2)}


# What is refused.
def test_more_ranks_than_query_heads_are_refused(odd):
    with pytest.raises(RankError, match="cut for 1 to 8 ranks, not for 9: it has 8 q"):
        simulate(lambda me: shard_model(odd, me.group), 9)


def test_only_a_whole_decoder_and_a_group_are_taken(odd):
    shard = shard_model(odd, SoloGroup())
    with pytest.raises(TypeError, match="cuts a whole Decoder; got a ShardedDecoder"):
        shard_model(shard, SoloGroup())
    with pytest.raises(TypeError, match="cuts a whole Decoder; got a Linear"):
        shard_model(torch.nn.Linear(2, 2), SoloGroup())
    with pytest.raises(TypeError, match=r"such as me\.group; got int"):
        shard_model(odd, 2)
    with pytest.raises(ValueError, match="all-reduce, sequence; got 'ring'"):
        shard_model(odd, SoloGroup(), "ring")


@pytest.mark.skipif(not int8.works(), reason="no int8 on this processor")
def test_int8_weights_are_not_cut():
    small = int8.quantise(random_decoder(ODD).float())
    with pytest.raises(TypeError, match="can't cut int8 weights; give it the model"):
        shard_model(small, SoloGroup())


def test_a_shard_is_not_quantised(odd):
    """Its linears would sum no more."""
    with pytest.raises(TypeError, match="can't replace a ColumnParallel, which works"):
        int8.quantise(shard_model(odd, SoloGroup()))


def test_a_group_of_another_size_is_refused(odd):
    with pytest.raises(ValueError, match="cut for 2 ranks, and the group has 1"):
        ShardedDecoder(partition(ODD, 2), SoloGroup())
    shards = simulate(lambda me: shard_model(odd, me.group), 3)
    with pytest.raises(RankError, match="cut for 3 ranks, and the group has 2"):
        simulate(lambda me: shards[me.rank].join(me.group), 2)


def test_a_shard_works_in_its_group_alone(odd):
    ids = torch.arange(5)
    shards = simulate(lambda me: shard_model(odd, me.group), 2)
    with pytest.raises(RuntimeError, match="rank 0 is used outside its group"):
        shards[0].forward(ids)
    with pytest.raises(RankError, match="rank 0 is used outside its group"):
        simulate(lambda me: shards[me.rank].forward(ids), 2)

    def crossed(me):
        shards[me.rank] = shard_model(odd, me.group)
        me.group.barrier()
        shards[0].forward(ids)

    with pytest.raises(RankError, match="rank 0 is used outside its group"):
        simulate(crossed, 2)


def test_a_shard_that_is_kept_joins_the_next_group(odd):
    ids = torch.arange(5)
    shards = simulate(lambda me: shard_model(odd, me.group), 2)
    found = simulate(lambda me: [shards[me.rank].join(me.group).forward(ids)], 2)
    assert_walks_equal(found, [odd.forward(ids)], WIDE)
    with pytest.raises(RankError, match="shard of rank 1; rank 0 of the new group"):
        simulate(lambda me: shards[1 - me.rank].join(me.group), 2)


def test_a_shard_does_not_leave_its_rank(odd):
    shard = shard_model(odd, SoloGroup())
    for leave in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="can't leave its rank"):
            leave(shard)
