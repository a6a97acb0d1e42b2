"""The decoder, its cache and its rotary positions equal `transformers`."""
import pytest
import torch
from helpers import CONFIGS, exact_norm, random_transformer
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from nds_helpers.models import Decoder, KVCache, ModelConfig, load_model
from nds_helpers.models.config import read_config
from nds_helpers.models.rope import Rotary, rotate

WIDE = dict(atol=1e-10, rtol=0)
NARROW = dict(atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def peers(tmp_path_factory):
    """name -> (folder, ids [2, 43], logits of transformers in float64)."""
    made = {}
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        for norm in (LlamaRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm):
            patch.setattr(norm, "forward", exact_norm)
        for seed, name in enumerate(CONFIGS):
            folder = tmp_path_factory.mktemp("model")
            model = random_transformer(name, seed)
            model.save_pretrained(
                folder, max_shard_size="20KB" if seed % 2 else "1GB")
            assert (len(list(folder.glob("*.safetensors"))) > 2) == bool(seed % 2)
            ids = torch.randint(
                61, (2, 43), generator=torch.Generator().manual_seed(seed))
            made[name] = folder, ids, model(ids).logits
    return made


@pytest.fixture(scope="module")
def small():
    """A decoder of our own, with random weights, in float64."""
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=31, width=16, layers=2, heads=4, kv_heads=2,
                         head_width=4, mlp_width=24, max_length=64, tied=True)
    return Decoder(config).double().eval().requires_grad_(False)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(peers, name):
    folder, ids, expected = peers[name]
    assert expected.std() > 0.1
    model = load_model(folder, torch.float64)
    torch.testing.assert_close(model.forward(ids), expected, **WIDE)
    torch.testing.assert_close(model.forward(ids[0]), expected[0], **WIDE)
    narrow = load_model(folder).forward(ids)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), expected, **NARROW)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("width", [1, 3, 5])
def test_the_cache_in_pieces_equals_the_whole(peers, name, width):
    folder, ids, expected = peers[name]
    model = load_model(folder, torch.float64)
    cache = model.new_cache(43, batch=2)
    out = [model.forward(part, cache) for part in ids.split(width, dim=1)]
    assert cache.length == 43
    torch.testing.assert_close(torch.cat(out, 1), expected, **WIDE)


@pytest.mark.parametrize("name", ["llama 3 scaling, wide heads", "qwen3, bias, tied"])
def test_rolled_back_cache_forgets(peers, name):
    folder, ids, expected = peers[name]
    model, ids, expected = load_model(folder, torch.float64), ids[0], expected[0]
    cache = model.new_cache(43)
    model.forward(ids[:10], cache)
    model.forward((ids[10:15] + 1) % 61, cache)  # five guesses, two of them kept:
    cache.truncate(10)
    torch.testing.assert_close(model.forward(ids[10:], cache), expected[10:], **WIDE)


@pytest.mark.parametrize("chunk", [1, 4, 512])
def test_prefill_fills_the_cache_like_a_forward(small, chunk):
    ids = torch.arange(11)
    filled, fed = small.new_cache(20), small.new_cache(20)
    small.prefill(ids[:-1], filled, chunk)
    small.forward(ids[:-1], fed)
    assert filled.length == fed.length == 10
    torch.testing.assert_close(small.forward(ids[-1:], filled),
                               small.forward(ids[-1:], fed), **WIDE)


def test_padding_ids_have_no_logits(small):
    whole = small.forward(torch.arange(5))
    small.vocab_size = 28
    try:
        assert torch.equal(small.forward(torch.arange(5)), whole[:, :28])
    finally:
        small.vocab_size = 31


def test_a_later_token_changes_nothing_before_it(small):
    a, b = torch.arange(9), torch.arange(9)
    b[6] = 20
    torch.testing.assert_close(small.forward(a)[:6], small.forward(b)[:6], **WIDE)


def test_a_model_that_has_generated_can_still_be_trained(small):
    model = Decoder(small.config)
    with torch.inference_mode():
        model.forward(torch.arange(5))
    model.forward(torch.arange(5)).logsumexp(-1).sum().backward()
    assert model.layers[0].self_attn.qkv.weight.grad.abs().sum() > 0


# The cache.
def test_cache_shapes_and_bookkeeping():
    cache = KVCache(layers=2, batch=1, kv_heads=3, max_length=6, head_width=4)
    new = torch.randn(1, 3, 2, 4)
    cache.open(2)
    for layer in range(2):
        keys, values = cache.append(layer, new, 2 * new)
        assert keys.shape == values.shape == (1, 3, 2, 4) and cache.length == 0
    cache.advance(2)
    cache.open(2)
    keys, values = cache.append(1, new + 1, new)
    assert torch.equal(keys, torch.cat([new, new + 1], 2))
    assert torch.equal(values, torch.cat([2 * new, new], 2))


@pytest.mark.parametrize("length", [-1, 4, 99])
def test_cache_refuses_to_truncate_to_what_it_never_held(length):
    cache = KVCache(1, 1, 1, 8, 2)
    cache.advance(3)
    with pytest.raises(ValueError, match=f"of 3 tokens to {length}"):
        cache.truncate(length)
    cache.truncate(3)
    cache.truncate(0)
    assert cache.length == 0


def test_a_full_cache_refuses_before_it_writes(small):
    cache = small.new_cache(4)
    small.forward(torch.arange(3), cache)
    with pytest.raises(ValueError, match=r"at most 4 tokens, and 3 \+ 2"):
        small.forward(torch.arange(2), cache)
    assert cache.length == 3
    small.forward(torch.arange(1), cache)


def test_a_forward_that_fails_halfway_leaves_the_cache_as_it_was(small, monkeypatch):
    """CASES 12."""
    ids = torch.arange(8)
    expected = small.forward(ids)
    cache = small.new_cache(8)
    small.forward(ids[:5], cache)
    with monkeypatch.context() as patch:
        patch.setattr(small.layers[1].mlp, "forward", lambda x: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            small.forward(ids[:3] + 9, cache)
    assert cache.length == 5
    torch.testing.assert_close(small.forward(ids[5:], cache), expected[5:], **WIDE)


def test_a_cache_takes_type_and_size_from_its_model(small):
    cache = small.new_cache(7, batch=3)
    assert cache.store.shape == (2, 2, 3, 2, 7, 4)
    assert cache.store.dtype == torch.float64


# Rotary positions.
def test_rotary_tables_grow_and_change_type(small):
    rotary = Rotary(small.config)
    like = torch.zeros(1)
    whole = rotary.rows(0, 1000, like)[0].clone()
    fresh = Rotary(small.config)
    for start, stop in [(0, 3), (250, 300), (3, 7), (990, 1000)]:
        assert torch.equal(fresh.rows(start, stop, like)[0], whole[start:stop])
    assert fresh.rows(0, 2, like.double())[0].dtype == torch.float64
    assert fresh.rows(0, 2, like)[0].dtype == torch.float32


def test_rotation_keeps_lengths_and_depends_on_distance_only(small):
    cos, sin = Rotary(small.config).rows(0, 40, torch.zeros(1, dtype=torch.float64))
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 4, generator=g, dtype=torch.float64)
    at = lambda x, i: rotate(x, cos[i:i + 1], sin[i:i + 1])  # noqa: E731
    assert torch.isclose(at(q, 7).norm(), q.norm(), rtol=1e-6)
    assert torch.equal(at(q, 0), q)
    assert torch.isclose((at(q, 9) * at(k, 4)).sum(), (at(q, 35) * at(k, 30)).sum(),
                         rtol=1e-5)


def test_positions_go_on_where_the_cache_ends(small):
    """CASES 10: the next rotary position is the cache's length."""
    seen = []

    class Spy(Rotary):
        def rows(self, start, stop, like):
            seen.append((start, stop))
            return super().rows(start, stop, like)

    model = Decoder(small.config)
    model.rotary = Spy(small.config)
    cache = model.new_cache(20)
    model.forward(torch.arange(5), cache)
    for length in (3, 5, 4):
        cache.truncate(length)
        model.forward(torch.arange(3), cache)
    assert seen == [(0, 5), (3, 6), (5, 8), (4, 7)]


def test_a_config_read_from_a_folder_makes_a_decoder(peers):
    folder, _, _ = peers["qwen3, bias, tied"]
    model = Decoder(read_config(folder))
    assert model.lm_head.weight is model.embed_tokens.weight
    assert (model.vocab_size, model.max_length, model.end_token_ids) == (61, 128, (3,))


def test_a_decoder_just_made_can_use_a_cache_outside_no_grad(small):
    model = Decoder(small.config)
    cache, ids = model.new_cache(6), torch.arange(6)
    out = [model.forward(part, cache) for part in ids.split(2)]
    torch.testing.assert_close(torch.cat(out), model.forward(ids))
    assert not cache.store.requires_grad
