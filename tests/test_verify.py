"""Verification, case by case; that it is exact is for test_verify_exact.py."""
import pytest
import torch
from helpers import VERIFIERS, generator, random_rule

from nds_helpers.decoding import (
    Draft,
    Sampling,
    acceptance,
    probabilities,
    residual,
    verify,
)


def table(*lists):
    return torch.tensor(lists, dtype=torch.float64)


def rows(seed, *prefixes):
    """The probabilities behind these prefixes, from random logits."""
    rule = random_rule(seed)
    return probabilities(table(*map(rule, prefixes)), Sampling(1.0))


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_greedy_rejects_always_where_the_argmax_differs(verifier):
    """CASES 4: p(1)/q(1) is .9, and still temperature 0 never takes 1."""
    greedy = Sampling(0.0)
    p = probabilities(table([.1, .40, .5], [.1, .40, .5]).log(), greedy)
    q = probabilities(table([.2, .45, .35]).log(), greedy)
    for seed in range(50):
        verdict = verifier(p, Draft(torch.tensor([1]), q), generator(seed))
        assert (verdict.accepted, verdict.next_token) == (0, 2)
        assert verdict.kind == "corrected"


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_empty_residual_gives_a_token_of_p(monkeypatch, verifier, dtype):
    """CASES 5: p equals q, and a rejection is forced."""
    p = table([.3, .7, 0], [.3, .7, 0]).to(dtype)
    draft = Draft(torch.tensor([1]), p[:1].clone())
    monkeypatch.setattr(verify, "uniforms", lambda count, g: torch.tensor([1.0, 0.99]))
    verdict = verifier(p, draft, None)
    assert (verdict.accepted, verdict.next_token, verdict.kind) == (0, 1, "corrected")
    assert torch.equal(residual(p, draft, 0), p[0])


def test_a_point_mass_is_accepted_as_often_as_p_says():
    """CASES 6: p(x) = .3."""
    p = table([.5, .3, .2], [1, 0, 0])
    draft = Draft(torch.tensor([1]))
    assert acceptance(p, draft).tolist() == [.3]
    assert residual(p, draft, 0).tolist() == [.5, 0, .2]


def test_a_token_that_q_rules_out_is_refused():
    draft = Draft(torch.tensor([2]), table([.5, .5, 0]))
    assert acceptance(table([.2, .2, .6], [1, 0, 0]), draft).tolist() == [0]


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("k", [0, 1, 3])
def test_k_plus_one_uniforms_are_taken(verifier, k):
    """The stream moves on by the same count, whatever the verdict."""
    p = torch.full((k + 1, 4), 0.25, dtype=torch.float64)
    a, b = generator(7), generator(7)
    verifier(p, Draft(torch.zeros(k, dtype=torch.long), p[:k]), a)
    torch.rand(k + 1, generator=b, dtype=torch.float64)
    assert torch.equal(a.get_state(), b.get_state())


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_arguments_are_left_as_they_were(verifier):
    p, q = table([.2, .8], [.6, .4], [.5, .5]), table([.7, .3], [.4, .6])
    before = p.clone(), q.clone()
    verifier(p, Draft(torch.tensor([0, 1]), q), generator())
    assert torch.equal(p, before[0]) and torch.equal(q, before[1])


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("certain", [True, False])
def test_float32_rows_are_decided_like_float64_ones(verifier, certain):
    p, q = rows(1, (), (1,), (1, 4)), rows(2, (), (1,))
    for seed in range(40):
        wide = Draft(torch.tensor([1, 4]), None if certain else q)
        narrow = Draft(torch.tensor([1, 4]), None if certain else q.float())
        assert (verifier(p, wide, generator(seed))
                == verifier(p.float(), narrow, generator(seed)))


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("bad", [float("nan"), 0.0])
def test_rows_without_probabilities_are_refused(verifier, bad):
    p = torch.full((2, 3), bad, dtype=torch.float64)
    with pytest.raises(ValueError, match="not finite"):
        verifier(p, Draft(torch.tensor([1]), torch.full((1, 3), 1 / 3)), generator())
