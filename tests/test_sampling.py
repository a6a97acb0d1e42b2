"""Logits to probabilities, probabilities to a token."""
import math

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from nds_helpers.decoding import Sampling, draw, probabilities, uniforms

NAN, INF = math.nan, math.inf


def logits(*shape, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(*shape, generator=g, dtype=dtype)


@pytest.mark.parametrize("sampling", [
    Sampling(), Sampling(0.7), Sampling(1.5, top_k=3), Sampling(1.0, top_k=1),
    Sampling(1.0, top_k=99), Sampling(1.0, top_p=0.8), Sampling(0.3, top_p=0.05),
    Sampling(1.3, top_k=7, top_p=0.6)], ids=str)
def test_equals_the_warpers_of_transformers(sampling):
    scores = logits(6, 20)
    ours = probabilities(scores, sampling)
    for warper in [TemperatureLogitsWarper(sampling.temperature),
                   TopKLogitsWarper(sampling.top_k or 20),
                   TopPLogitsWarper(sampling.top_p)]:
        scores = warper(None, scores)
    assert torch.allclose(ours, scores.softmax(-1), atol=1e-14)


def test_top_k_leaves_k_and_a_sum_of_one():
    """CASES 2: six tokens, top_k=2."""
    q = probabilities(logits(4, 6), Sampling(1.0, top_k=2))
    assert ((q > 0).sum(-1) == 2).all()
    assert torch.allclose(q.sum(-1), torch.ones(4, dtype=torch.float64))


def test_temperature_is_used():
    """CASES 3: the slider's value changes what is sampled."""
    row = torch.tensor([0.0, math.log(2)], dtype=torch.float64)
    for temperature in (0.5, 1.0, 2.0):
        p = probabilities(row, Sampling(temperature))
        assert math.isclose(p[1] / p[0], 2 ** (1 / temperature))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(dtype):
    p = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=dtype)
    for top_p, kept in [(0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.95, 4),
                        (1e-9, 1), (1e-320, 1)]:
        q = probabilities(p.log(), Sampling(1.0, top_p=top_p))
        assert (q > 0).sum() == kept and q.argmax() == 1
        assert math.isclose(q.sum(), 1, rel_tol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("top_p,kept", [(0.4, 1), (0.7, 2), (0.9, 3)])
def test_a_sum_that_reaches_top_p_but_for_rounding_is_enough(dtype, top_p, kept):
    p = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=dtype)
    q = probabilities(p.log(), Sampling(top_p=top_p))
    assert (q > 0).sum() == kept


def test_temperature_zero_is_a_one_hot_of_the_first_argmax():
    rows = torch.tensor([[1.0, 5, 5, 2], [3, 1, 1, 0]])
    for sampling in [Sampling(0.0), Sampling(0, top_k=2, top_p=0.1)]:
        assert probabilities(rows, sampling).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("temperature", [1e-5, 1e-30, 1e-46, 5e-324])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_tiny_temperature_is_greedy_and_never_nan(temperature, dtype):
    rows = logits(3, 9).to(dtype)
    p = probabilities(rows, Sampling(temperature))
    assert torch.equal(p, probabilities(rows, Sampling(0.0)))
    tie = probabilities(torch.tensor([1.0, 1.0, 0.0]).to(dtype), Sampling(temperature))
    assert tie.tolist() == [0.5, 0.5, 0]


def test_a_huge_temperature_is_uniform():
    p = probabilities(logits(5), Sampling(1e300))
    assert torch.allclose(p, torch.full((5,), 0.2, dtype=torch.float64))


@pytest.mark.parametrize("width", [6, 5000])
def test_of_equal_tokens_top_k_and_top_p_keep_the_lowest_ids(width):
    row = torch.zeros(width)
    row[[1, 2, 3, 5]] = 9.0
    for k in (1, 2, 3):
        kept = probabilities(row, Sampling(1.0, top_k=k)).nonzero()[:, 0].tolist()
        assert kept == [1, 2, 3][:k]
    kept = probabilities(row, Sampling(1.0, top_k=4, top_p=0.6)).nonzero()[:, 0]
    assert kept.tolist() == [1, 2, 3]
    both = probabilities(row, Sampling(1.0, top_k=1)), probabilities(row, Sampling(0.0))
    assert torch.equal(*both)


@pytest.mark.parametrize("sampling", [Sampling(0.7), Sampling(0.7, 5),
                                      Sampling(1, 0, 0.7)], ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(sampling):
    rows = logits(5, 400).float()
    rows[:, ::3] = rows[:, :1]  # ties as well
    together = probabilities(rows, sampling)
    for i in range(5):
        assert torch.equal(together[i], probabilities(rows[i:i + 1], sampling)[0])


def test_types_and_shapes():
    assert probabilities(logits(2, 3, 4), Sampling()).shape == (2, 3, 4)
    assert probabilities(logits(4), Sampling()).dtype == torch.float64
    assert probabilities(logits(4).half(), Sampling()).dtype == torch.float32
    before = logits(4)
    probabilities(before, Sampling(0.5, 2, 0.5))
    assert torch.equal(before, logits(4))


def test_masked_logits_are_never_drawn():
    row = torch.tensor([1.0, -INF, 2.0])
    for sampling in [Sampling(), Sampling(0.0), Sampling(1.0, 2), Sampling(9, 0, 0.9)]:
        p = probabilities(row, sampling)
        assert p[1] == 0 and math.isclose(p.sum(), 1, rel_tol=1e-6)


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(), Sampling(1.0, 2),
                                      Sampling(1.0, 0, 0.5)], ids=str)
@pytest.mark.parametrize("row", [[1.0, NAN, 0.0], [INF, 0.0, 1.0], [-INF] * 3])
def test_logits_that_are_not_finite_are_refused(sampling, row):
    p = probabilities(torch.tensor(row), sampling)
    with pytest.raises(ValueError, match="logits are probably not finite"):
        draw(p, 0.5)


@pytest.mark.parametrize("settings", [
    dict(temperature=-0.1), dict(temperature=NAN), dict(temperature=INF),
    dict(top_k=-1), dict(top_k=2.5), dict(top_k=NAN), dict(top_k=INF), dict(top_k=True),
    dict(top_p=0), dict(top_p=1.1), dict(top_p=-1), dict(top_p=NAN),
    dict(temperature=None), dict(top_p=None), dict(top_p="1")], ids=str)
def test_settings_out_of_range_are_refused_by_name(settings):
    with pytest.raises(ValueError, match=f"^{next(iter(settings))} must be .*not"):
        Sampling(**settings)


def test_a_count_from_numpy_is_a_count():
    assert Sampling(top_k=np.int64(3)).top_k == 3


# Drawing.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 0.25, 2.0**-70])
def test_draw_inverts_the_cumulative_sum(dtype, scale):
    """Every token on exactly its own interval, for weights of any sum."""
    weights = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.0, 0.25, 0.0], dtype=dtype) * scale
    for token, start, stop in [(1, 0, 0.25), (3, 0.25, 0.75), (5, 0.75, 1)]:
        for u in (start, start + 1e-12, (start + stop) / 2, math.nextafter(stop, 0)):
            assert draw(weights, u) == token


def test_draw_never_takes_a_weight_of_zero_at_the_edges():
    weights = torch.tensor([0.0, 1.0, 0.0])
    assert draw(weights, 0.0) == draw(weights, math.nextafter(1, 0)) == 1
    tiny = torch.tensor([1.0, 1e-30, 0.0])  # lost in the sum
    assert draw(tiny, math.nextafter(1, 0)) == 0
    assert draw(torch.tensor([5e-324, 0.0], dtype=torch.float64), 0.99) == 0


@pytest.mark.parametrize("weights", [[0.0, 0.0], [NAN, 1.0], [INF, 1.0]])
def test_draw_refuses_weights_without_a_sum(weights):
    with pytest.raises(ValueError, match="weights sum to"):
        draw(torch.tensor(weights), 0.5)


def test_uniforms_come_from_their_generator_alone():
    a = uniforms(3, torch.Generator().manual_seed(1))
    torch.manual_seed(5)
    torch.rand(7)
    b = uniforms(3, torch.Generator().manual_seed(1))
    assert torch.equal(a, b) and a.dtype == torch.float64
