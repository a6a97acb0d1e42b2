"""Weights of eight bits: close to the whole ones, and no row looks at another."""
import pytest
import torch
import torch.nn.functional as F
from helpers import generator

from nds_helpers.decoding import (
    ModelDrafter,
    Sampling,
    autoregressive,
    probabilities,
    speculative,
)
from nds_helpers.models import int8, load_pair
from nds_helpers.models.int8 import Int8Linear, quantise
from nds_helpers.models.linear import FEW, Linear

pytestmark = pytest.mark.skipif(not int8.works(), reason="no int8 on this processor")
FLOATS = [torch.float64, torch.float32, torch.bfloat16]


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed))


def layer(bias=False):
    linear = Linear(64, 96, bias=bias).requires_grad_(False)
    linear.weight.copy_(numbers(96, 64, seed=1))
    return linear


def neighbours():
    """Rows that stand beside the same first one, huge and tiny ones among them."""
    first = numbers(1, 64)
    for size in (1e-6, 1.0, 1e6):
        for count in (1, 2, 4, FEW, 40):
            yield first, torch.cat([first, size * numbers(count, 64, seed=count)])


# A row's result never depends on its neighbours.
def test_no_row_depends_on_its_neighbours_in_int8():
    """Exactly, at every width: quantised sums are whole numbers."""
    quantised = Int8Linear(layer())
    for first, rows in neighbours():
        assert torch.equal(quantised(rows)[:1], quantised(first))
        assert torch.equal(quantised(rows.flip(0))[-1:], quantised(first))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_no_row_depends_on_its_neighbours_in_floating_point(dtype):
    """Exactly at one width; between widths up to the order of the sums."""
    linear = layer().to(dtype)
    known = {}
    for first, rows in neighbours():
        result = linear(rows.to(dtype))[:1]
        assert torch.equal(known.setdefault(len(rows), result), result)
        torch.testing.assert_close(result, linear(first.to(dtype)))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8], ids=str)
def test_no_token_depends_on_those_behind_it(dtype):
    target = load_pair("tiny", dtype=dtype).target
    one, other = torch.tensor([[5, 6, 7, 8], [5, 6, 900, 3]])
    assert torch.equal(target.forward(one)[:2], target.forward(other)[:2])


def test_torch_own_dynamic_quantisation_fails_this():
    """What the layer is there for: the check above can tell."""
    packed = int8.pack(layer().weight)
    first, rows = list(neighbours())[-1]
    dynamic = torch.ops.quantized.linear_dynamic
    assert not torch.allclose(dynamic(rows, packed)[:1], dynamic(first, packed),
                              rtol=0.01)


# How close it is.
def relative_error(linear, x):
    exact = F.linear(x, linear.weight, linear.bias)
    return ((Int8Linear(linear)(x) - exact).norm(dim=-1) / exact.norm(dim=-1)).max()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("largest", [1, 100])
def test_it_is_close_even_where_one_element_is_large(largest, bias):
    x = numbers(5, 64)
    x[:, 3] *= largest
    assert relative_error(layer(bias), x) < 0.01


def test_large_numbers_do_not_overflow():
    """On processors with AVX2 only, the engine adds pairs of products in 16 bits."""
    linear = Linear(64, 8, bias=False).requires_grad_(False)
    linear.weight.fill_(1.0)
    torch.testing.assert_close(Int8Linear(linear)(torch.ones(2, 64)),
                               torch.full((2, 8), 64.0))


def test_zeros_stay_zeros_and_give_the_bias():
    linear = layer(bias=True)
    expected = linear.bias.expand(2, -1)
    assert torch.equal(Int8Linear(linear)(torch.zeros(2, 64)), expected)


# Whole models.
@pytest.fixture(scope="module")
def pair():
    return load_pair("tiny", dtype=torch.int8)


def test_a_pair_in_int8_speaks_almost_as_in_float32(pair):
    whole, tokens = load_pair("tiny"), torch.arange(40, 140)
    for name in ("target", "draft"):
        p, q = (probabilities(getattr(each, name).forward(tokens), Sampling())
                for each in (whole, pair))
        assert torch.minimum(p, q).sum(-1).mean() > 0.97
    assert not [m for m in pair.target.modules() if isinstance(m, Linear)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_decodes_and_speculates(pair, temperature):
    settings = dict(max_new_tokens=24, sampling=Sampling(temperature))
    plain = autoregressive(pair.target, [5, 6], **settings)
    fast = speculative(pair.target, ModelDrafter(pair.draft), [5, 6], k=3, **settings)
    assert len(plain.tokens) == 24 == len(fast.tokens)
    assert fast.trace.summary()["accepted"] > 0


def test_without_an_engine_it_stays_float32_and_says_so(monkeypatch):
    def missing(digits, packed):
        raise RuntimeError("not implemented for this packed parameter type")

    monkeypatch.setattr(int8, "multiply", missing)
    target, tokens = load_pair("tiny").target, torch.arange(5)
    before = target.forward(tokens)
    with pytest.warns(UserWarning, match="stay float32"):
        assert quantise(target) is target
    assert torch.equal(target.forward(tokens), before)


def test_other_devices_are_refused():
    with pytest.raises(ValueError, match="CPU only, not on cuda"):
        load_pair("tiny", dtype=torch.int8, device="cuda")
