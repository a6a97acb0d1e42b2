"""The early-exit drafter: the target's first layers guess, and nothing changes."""
import pytest
import torch
from helpers import VERIFIERS, Recorder, generator

from nds_helpers.decoding import (
    EarlyExitDrafter,
    Sampling,
    autoregressive,
    probabilities,
    speculative,
)
from nds_helpers.models import load_model


@pytest.fixture
def target(weights):
    return load_model(weights, torch.float64)


@pytest.mark.parametrize("verify", VERIFIERS)
@pytest.mark.parametrize("k", [1, 3, 6])
def test_greedy_text_is_that_of_plain_decoding(target, k, verify):
    settings = dict(max_new_tokens=50, sampling=Sampling(0.0))
    plain = autoregressive(target, [1, 2, 5], **settings)
    fast = speculative(target, EarlyExitDrafter(target, 1), [1, 2, 5], k=k,
                       verify=verify, **settings)
    assert fast.tokens.tolist() == plain.tokens.tolist()


def test_it_says_what_it_drew_from(target):
    drafter, sampling = EarlyExitDrafter(target, 1), Sampling(0.8, top_k=9)
    text = torch.tensor([4, 5, 6])
    draft = drafter.propose(text, 3, sampling, generator())
    seen = torch.cat([text, draft.tokens[:-1]])
    expected = probabilities(drafter.model.forward(seen)[2:], sampling)
    torch.testing.assert_close(draft.probs, expected)


def test_the_targets_cache_never_sees_its_guesses(target):
    """One forward of the whole target a round, and none for the drafts."""
    whole = Recorder(target)
    result = speculative(whole, EarlyExitDrafter(target, 1), [1, 2], k=3,
                         max_new_tokens=20, sampling=Sampling(0.0))
    drafted = [r.drafted for r in result.trace]
    assert whole.widths == [d + 1 for d in drafted]


def test_impossible_exits_are_refused(target):
    with pytest.raises(ValueError, match="early exit of 2 layers"):
        EarlyExitDrafter(target, 2)
