"""The linear layer gives the same result whichever way round it multiplies."""
import pytest
import torch
import torch.nn.functional as F

from nds_helpers.models import linear
from nds_helpers.models.linear import FEW, Linear, Stacked


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", range(FEW + 2))
def test_it_equals_the_plain_formula(count, bias):
    torch.manual_seed(0)
    layer = Linear(7, 11, bias=bias).double()
    x = torch.randn(count, 7, dtype=torch.float64)
    expected = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize("count", [1, 3])
def test_an_input_that_is_not_contiguous(count):
    layer = Linear(4, 3).double()
    x = torch.randn(4, count, dtype=torch.float64).t()
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias),
                               atol=1e-13, rtol=0)


def test_gradients_are_the_same():
    layer = Linear(5, 6).double()
    x = torch.randn(1, 5, dtype=torch.float64, requires_grad=True)
    ours = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    plain = F.linear(x, layer.weight, layer.bias).square().sum()
    for a, b in zip(ours, torch.autograd.grad(plain, [x, *layer.parameters()])):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_elsewhere_it_is_the_ordinary_linear(monkeypatch):
    layer, x = Linear(5, 6), torch.randn(1, 5)
    monkeypatch.setattr(linear, "MKL", False)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


def test_stacked_parts_equal_linears_of_their_own():
    layer = Stacked(5, dict(q=4, k=2, v=3), bias=True).double()
    x = torch.randn(2, 5, dtype=torch.float64)
    for part, name in zip(layer(x).split(tuple(layer.parts.values()), -1), layer.parts):
        rows = layer.rows(name)
        alone = F.linear(x, layer.weight[rows], layer.bias[rows])
        torch.testing.assert_close(part, alone, atol=1e-13, rtol=0)
