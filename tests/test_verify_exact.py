"""Verification is exact: every outcome of a round is enumerated, in float64."""
import itertools

import numpy as np
import pytest
import torch
from enumeration import (
    EXACT,
    SAMPLINGS,
    THEORY,
    Feed,
    V,
    chance_and_uniforms,
    every_draft,
    honest,
    laws,
    variation,
)
from helpers import VERIFIERS

from nds_helpers.decoding import (
    Draft,
    Sampling,
    acceptance,
    verify,
    verify_block,
    verify_tokens,
)


@pytest.fixture
def feed(monkeypatch):
    return Feed(monkeypatch)


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("k", [0, 1, 2, 3, 4])
def test_a_round_has_exactly_the_targets_distribution(feed, verifier, sampling, k):
    law, guess = laws(1, sampling), laws(2, sampling)
    assert variation(feed, verifier, law, honest(guess), k) < EXACT


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_certain_draft_is_exact(feed, verifier, sampling, k):
    """CASES 6: an n-gram or argmax proposal is a point mass."""
    law = laws(1, sampling)

    def step(prefix):
        one = np.eye(V)[(sum(prefix) + len(prefix)) % V]
        return one, one

    assert variation(feed, verifier, law, step, k, certain=True) < EXACT
    assert variation(feed, verifier, law, step, k) < EXACT  # the same, as one-hot rows


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_draft_that_stops_when_it_likes_is_exact(feed, verifier):
    law, guess = laws(1, Sampling(1.0)), laws(2, Sampling(1.0))

    def step(prefix):
        return None if prefix[-1:] in ((0,), (3,)) else (guess(prefix), guess(prefix))

    assert variation(feed, verifier, law, step, 3) < EXACT


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_draft_equal_to_the_target_is_always_accepted(feed, verifier):
    law = laws(1, Sampling(1.0))
    assert variation(feed, verifier, law, honest(law), 3) < EXACT
    for tokens, _, q in every_draft(honest(law), 3):
        p = torch.tensor(np.stack([*q, law(tokens)]))
        draft = Draft(torch.tensor(tokens), torch.tensor(np.stack(q)))
        t, following, kind = feed.outcome(verifier, p, draft, [1 - 1e-9] * 3)
        assert (t, kind) == (3, "bonus")
        assert abs(following - law(tokens)).max() < EXACT


# The same enumeration must see each of the known faults.
def argmax_step(law):
    """CASES 1: the likeliest token is drafted, the softmax is handed over."""
    return lambda prefix: (np.eye(V)[law(prefix).argmax()], law(prefix))


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_argmax_draft_with_softmax_q_is_seen(feed, verifier):
    law, guess = laws(1, Sampling(1.0)), laws(2, Sampling(1.0))
    assert variation(feed, verifier, law, argmax_step(guess), 2) > 0.05


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("drawn_by", [Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.6),
                                      Sampling(0.5)], ids=str)
def test_q_of_another_sampling_is_seen(feed, verifier, drawn_by):
    """CASES 2, 3 and 7: top-k, top-p or temperature on one side only."""
    law, drawn, said = laws(1, Sampling(1.0)), laws(2, drawn_by), laws(2, Sampling(1.0))
    step = lambda prefix: (drawn(prefix), said(prefix))  # noqa: E731
    assert variation(feed, verifier, law, step, 2) > 0.02


right_conclude = verify.conclude


def late_bonus(p, *rest):
    return right_conclude(torch.cat([p[:-1], p[-2:-1]]), *rest)


FAULTS = {
    "residual not subtracted": ("residual", lambda p, draft, i, weight=1.0: p[i]),
    "bonus from the row before": ("conclude", late_bonus),
    "everything accepted": ("at_drafted", lambda p, draft: 2 * (
        torch.ones(len(draft.tokens), dtype=torch.float64),)),
}


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_verification_are_seen(feed, monkeypatch, verifier, fault):
    monkeypatch.setattr(verify, *FAULTS[fault])
    law, guess = laws(1, Sampling(1.0)), laws(2, Sampling(1.0))
    assert variation(feed, verifier, law, honest(guess), 2) > 0.02


def test_a_residual_without_its_weight_is_seen_in_a_block(feed, monkeypatch):
    right = verify.residual
    monkeypatch.setattr(verify, "residual", lambda p, d, i, weight=1.0: right(p, d, i))
    law, guess = laws(1, Sampling(1.0)), laws(2, Sampling(1.0))
    assert variation(feed, verify_block, law, honest(guess), 2) > 0.005


@pytest.mark.parametrize("verifier,expected", [(verify_tokens, 10 / 9),
                                               (verify_block, 11 / 9)])
def test_expected_accepted_of_the_papers_example(verifier, expected):
    """THEORY 2.1: Mb = (1/3, 2/3), Ms = (2/3, 1/3), two tokens."""
    big, small = np.array([1, 2]) / 3, np.array([2, 1]) / 3
    thresholds, kept = THEORY[verifier]
    p, q = torch.tensor(np.stack([big] * 3)), torch.tensor(np.stack([small] * 2))
    mean = 0.0
    for tokens in itertools.product(range(2), repeat=2):
        limits = thresholds([big] * 3, [small] * 2, tokens)
        draft = Draft(torch.tensor(tokens), q)
        theirs = (acceptance(p, draft) if verifier is verify_tokens else
                  verify.prefix_acceptance(p, draft, verify.prefix_weights(p, draft)))
        assert np.allclose(theirs.numpy(), limits, atol=EXACT)
        for passed in itertools.product((True, False), repeat=2):
            chance, _ = chance_and_uniforms(passed, limits)
            mean += np.prod(small[list(tokens)]) * chance * kept(list(passed))
    assert abs(mean - expected) < EXACT


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_block_never_accepts_less(feed, k):
    law, guess = laws(1, Sampling(1.0)), laws(2, Sampling(1.0))
    mean = {}
    for verifier, (thresholds, _) in THEORY.items():
        mean[verifier] = 0.0
        for tokens, weight, q in every_draft(honest(guess), k):
            rows = [law(tokens[:i]) for i in range(k + 1)]
            limits = thresholds(rows, q, tokens)
            for passed in itertools.product((True, False), repeat=k):
                chance, u = chance_and_uniforms(passed, limits)
                if chance > 0:
                    t, _, _ = feed.outcome(
                        verifier, torch.tensor(np.stack(rows)),
                        Draft(torch.tensor(tokens), torch.tensor(np.stack(q))), u)
                    mean[verifier] += weight * chance * t
    assert mean[verify_block] >= mean[verify_tokens] - EXACT
    assert k == 1 or mean[verify_block] > mean[verify_tokens] + 1e-3
