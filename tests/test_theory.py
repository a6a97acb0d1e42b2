"""The closed forms have the reference values and agree with a simulated run."""
import math
import random

import pytest

from nds_helpers.lab import theory

ALPHAS = (0.0, 0.1, 0.5, 0.8, 0.95, 1.0)


@pytest.mark.parametrize("k, tokens", [
    (0, 1.0), (1, 1.8), (2, 2.44), (3, 2.952), (4, 3.362), (5, 3.689), (8, 4.329)])
def test_expected_tokens_at_eight_tenths(k, tokens):
    assert theory.expected_tokens(0.8, k) == pytest.approx(tokens, abs=6e-4)


def test_other_reference_values():
    assert theory.expected_tokens(0.9, 5) == pytest.approx(4.686, abs=6e-4)
    assert theory.accepted_per_drafted(0.8, 5) == pytest.approx(0.538, abs=6e-4)


@pytest.mark.parametrize("alpha, c, k, gain", [
    (0.8, 0.05, 8, 3.09), (0.8, 0.1, 6, 2.47), (0.8, 0.3, 3, 1.55),
    (0.9, 0.05, 13, 4.67), (0.9, 0.1, 10, 3.43), (0.9, 0.3, 5, 1.87),
    (0.5, 0.05, 3, 1.63), (0.5, 0.1, 2, 1.46), (0.5, 0.3, 1, 1.15)])
def test_best_k(alpha, c, k, gain):
    best, speedup = theory.best_k(alpha, c)
    assert best == k and speedup == pytest.approx(gain, abs=6e-3)


@pytest.mark.parametrize("alpha", ALPHAS[:-1])
@pytest.mark.parametrize("k", [0, 1, 4, 20])
def test_sum_equals_the_closed_form(alpha, k):
    closed = (1 - alpha ** (k + 1)) / (1 - alpha)
    assert theory.expected_tokens(alpha, k) == pytest.approx(closed, rel=1e-12)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("k", [0, 1, 4, 20])
def test_equal_rates_are_one_alpha(alpha, k):
    by_position = theory.expected_tokens_by_position([alpha] * k)
    assert by_position == pytest.approx(theory.expected_tokens(alpha, k), rel=1e-12)


def test_rates_by_position():
    assert theory.expected_tokens_by_position([]) == 1.0
    assert theory.expected_tokens_by_position([0.9, 0.5]) == pytest.approx(2.35)
    assert theory.expected_tokens_by_position([0.0, 1.0, 1.0]) == 1.0
    assert theory.expected_tokens_by_position((1.0,) * 3) == 4.0


def test_k_zero_is_plain_decoding():
    for alpha in ALPHAS:
        assert theory.speedup(alpha, 0, c=0.3) == 1.0
    assert theory.best_k(0.1, 0.3) == (0, 1.0)


@pytest.mark.parametrize("c", [0.05, 0.2, 0.6])
def test_some_k_pays_exactly_if_alpha_exceeds_c(c):
    """Leviathan et al. 2023, corollary 3.9: then at least (1 + alpha) / (1 + c)."""
    above, below = c + 0.01, c - 0.01
    assert theory.best_k(above, c)[1] >= (1 + above) / (1 + c) > 1
    assert theory.best_k(below, c) == (0, 1.0)


def test_limit_may_be_chosen():
    assert theory.best_k(1.0, 0.2, limit=8)[0] == 8


def test_a_wide_pass_that_costs_more_slows_down():
    assert theory.speedup(0.8, 4, 0.1, wide=2.0) == pytest.approx(3.3616 / 2.4)


def test_simulated_rounds_commit_as_many():
    luck, alpha, k, rounds = random.Random(0), 0.7, 4, 40_000
    committed = accepted = rejected = 0
    for _ in range(rounds):
        run = next((i for i in range(k) if luck.random() >= alpha), k)
        accepted, rejected = accepted + run, rejected + (run < k)
        committed += run + 1
    error = 4 * k / math.sqrt(rounds)
    assert abs(committed / rounds - theory.expected_tokens(alpha, k)) < error
    assert abs(accepted / (accepted + rejected) - alpha) < error / k
    kept = theory.accepted_per_drafted(alpha, k)
    assert abs(accepted / (k * rounds) - kept) < error / k
