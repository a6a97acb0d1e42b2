"""Sharded layers, one by one: against the plain ones, and against DTensor."""
import pytest
import torch
import torch.nn.functional as F
from helpers import generator
from shards import ODD, SHAPES, WIDE, random_decoder
from torch import nn

from nds_helpers.distributed import launch
from nds_helpers.models.decoder import causal_mask
from nds_helpers.models.linear import Linear, Stacked
from nds_helpers.parallel import SoloGroup, shard_model, simulate
from nds_helpers.parallel.layers import (
    SCHEMES,
    ColumnParallel,
    GatheringNorm,
    RowParallel,
    VocabularyParallelEmbedding,
)
from nds_helpers.parallel.partitions import as_slice, split_evenly


def random(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def weighted(module, weight, bias=None):
    """The module with these weights."""
    module.weight.data = weight
    if bias is not None:
        module.bias.data = bias
    return module.requires_grad_(False)


def rows_of(me, x):
    """A rank's rows of the stream, in the scheme "sequence"."""
    return x.split([len(part) for part in split_evenly(len(x), me.size)])[me.rank]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 5, 12])
@pytest.mark.parametrize("name", SCHEMES)
def test_columns_then_rows_make_the_whole_product(size, rows, name):
    """A bias on both; the second is added once. 7 columns, for any number of ranks."""
    x, a, b = random(rows, 6), random(7, 6, seed=1), random(5, 7, seed=2)
    a_bias, b_bias = random(7, seed=3), random(5, seed=4)
    expected = F.linear(F.silu(F.linear(x, a, a_bias)), b, b_bias)

    def on_ranks(me):
        scheme = SCHEMES[name](me.group)
        scheme.start(rows)
        own = as_slice(split_evenly(7, me.size)[me.rank])
        count = own.stop - own.start
        first = weighted(ColumnParallel(Stacked(6, {"a": count}, True), scheme),
                         a[own], a_bias[own])
        second = weighted(RowParallel(Linear(count, 5, True), scheme),
                          b[:, own], b_bias)
        return second(F.silu(first(rows_of(me, x) if name == "sequence" else x)))

    found = simulate(on_ranks, size)
    for y in ([torch.cat(found)] if name == "sequence" else found):
        torch.testing.assert_close(y, expected, **WIDE)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", SCHEMES)
def test_every_word_has_its_vector(size, name):
    """CASES 25: 97 words, so that the last rank has fewer."""
    table, tokens = random(97, 6), torch.randperm(97, generator=generator())

    def on_ranks(me):
        scheme = SCHEMES[name](me.group)
        scheme.start(97)
        words = split_evenly(97, me.size)[me.rank]
        embedding = VocabularyParallelEmbedding(words, 97, 6, scheme)
        return weighted(embedding, table[as_slice(words)])(tokens)

    found = simulate(on_ranks, size)
    for vectors in ([torch.cat(found)] if name == "sequence" else found):
        assert torch.equal(vectors, table[tokens])


@pytest.mark.parametrize("token", [7, 100, -1])
def test_a_word_that_nobody_holds_has_no_vector(token):
    def on_ranks(me):
        scheme = SCHEMES["all-reduce"](me.group)
        words = split_evenly(7, me.size)[me.rank]
        embedding = VocabularyParallelEmbedding(words, 7, 6, scheme)
        with pytest.raises(IndexError):
            embedding(torch.tensor([0, token]))
        return True

    assert simulate(on_ranks, 3) == [True] * 3


def test_the_last_norm_gives_all_rows_to_all():
    x = random(5, 32)
    plain = random_decoder(ODD).norm

    def on_ranks(me):
        scheme = SCHEMES["sequence"](me.group)
        scheme.start(5)
        return weighted(GatheringNorm(ODD, scheme), plain.weight.data)(rows_of(me, x))

    for y in simulate(on_ranks, 3):
        torch.testing.assert_close(y, plain(x), **WIDE)


def attention_of(model, x):
    """The first layer's attention over T positions, without a cache: [T, D]."""
    cos, sin = model.rotary.rows(0, len(x), x)
    mask = causal_mask(0, len(x), model.config.heads // model.config.kv_heads, x)
    return model.layers[0].self_attn(x, cos, sin, mask, None, 0)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_attention_and_mlp_of_a_shard_equal_the_whole_ones(name, size):
    model = random_decoder(SHAPES[name])
    x = random(6, model.config.width)

    def on_ranks(me):
        shard = shard_model(model, me.group)
        return attention_of(shard, x), shard.layers[0].mlp(x)

    for attention, mlp in simulate(on_ranks, size):
        torch.testing.assert_close(attention, attention_of(model, x), **WIDE)
        torch.testing.assert_close(mlp, model.layers[0].mlp(x), **WIDE)


def test_a_layer_of_one_rank_does_the_plain_sum():
    scheme = SCHEMES["all-reduce"](SoloGroup())
    weight, bias, x = random(5, 7), random(5, seed=1), random(3, 7, seed=2)
    layer = weighted(RowParallel(Linear(7, 5, True), scheme), weight, bias)
    torch.testing.assert_close(layer(x), F.linear(x, weight, bias), **WIDE)


# PyTorch's own tensor parallelism, over plain linears as it expects them.
class PlainMLP(nn.Module):
    def __init__(self, mlp):
        super().__init__()
        gate, up = mlp.gate_up.weight.chunk(2)
        self.gate, self.up = as_linear(gate), as_linear(up)
        self.down = as_linear(mlp.down_proj.weight)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class PlainAttention(nn.Module):
    def __init__(self, attention, rotation):
        super().__init__()
        qkv, self.width = attention.qkv, attention.head_width
        self.q, self.k, self.v = (
            as_linear(qkv.weight[rows], qkv.bias[rows])
            for rows in map(qkv.rows, ("q_proj", "k_proj", "v_proj")))
        self.o = as_linear(attention.o_proj.weight, attention.o_proj.bias)
        self.rotation = rotation  # cos and signed sin, [T, d] each

    def forward(self, x):
        q, k, v = (f(x).view(len(x), -1, self.width).transpose(0, 1)
                   for f in (self.q, self.k, self.v))  # [heads, T, d], as many as here
        cos, sin = self.rotation
        q, k = (y * cos + y.roll(self.width // 2, -1) * sin for y in (q, k))
        sharing = len(q) // len(k)
        k, v = (y.repeat_interleave(sharing, 0) for y in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(0, 1).flatten(1))


def as_linear(weight, bias=None):
    """A plain nn.Linear with these weights."""
    linear = nn.Linear(*weight.shape[::-1], bias is not None, dtype=weight.dtype)
    return weighted(linear, weight.clone(), bias)


def beside_dtensor(me, model, x):
    """(ours, DTensor's) for the attention and the MLP of the first layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (me.size,))
    layer, shard = model.layers[0], shard_model(model, me.group)
    attention = PlainAttention(layer.self_attn, model.rotary.rows(0, len(x), x))
    parallelize_module(attention, mesh, {
        **{name: ColwiseParallel() for name in "qkv"}, "o": RowwiseParallel()})
    mlp = parallelize_module(PlainMLP(layer.mlp), mesh, {
        "gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()})
    return [(attention_of(shard, x), attention(x) + 0),  # + 0 waits for the result
            (shard.layers[0].mlp(x), mlp(x) + 0)]


def test_two_ranks_equal_dtensor():
    """A bias on q, k, v and on the output: PyTorch too adds that one once."""
    model = random_decoder(SHAPES["llama, bias, tied"])
    x = random(6, model.config.width)
    expected = [attention_of(model, x), model.layers[0].mlp(x)]
    for pairs in launch(beside_dtensor, 2, model, x, backend="gloo"):
        for (ours, theirs), whole in zip(pairs, expected, strict=True):
            torch.testing.assert_close(ours, theirs, **WIDE)
            torch.testing.assert_close(ours, whole, **WIDE)
