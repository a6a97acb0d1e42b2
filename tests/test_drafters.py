"""Drafters: what they propose, and that a draft model's cache follows the text."""
import pytest
import torch
from helpers import (
    Recorder,
    TableModel,
    TokenCache,
    law_rule,
    next_rule,
    random_rule,
    random_transformer,
)

from nds_helpers.decoding import (
    EitherDrafter,
    ModelDrafter,
    NGramDrafter,
    Sampling,
    probabilities,
)
from nds_helpers.decoding.drafters import common_prefix
from nds_helpers.models import load_model

GREEDY, WARM = Sampling(0.0), Sampling(0.9, top_k=4, top_p=0.95)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def ids(*tokens):
    return torch.tensor(tokens, dtype=torch.long)


def recorded(*arguments, **settings):
    return Recorder(TableModel(*arguments, **settings))


# The draft model.
@pytest.mark.parametrize("sampling", [GREEDY, WARM, Sampling(2.0, top_k=2)], ids=str)
def test_probs_are_what_was_drawn_from_bit_for_bit(sampling):
    """CASES 2, 3: the user's temperature, top-k and top-p, and q with all of them."""
    rule = random_rule(3)
    drafter = ModelDrafter(TableModel(rule))
    draft = drafter.propose(ids(1, 2), 4, sampling, generator())
    prefix = [1, 2]
    for token, row in zip(draft.tokens.tolist(), draft.probs):
        logits = torch.tensor(rule(tuple(prefix)), dtype=torch.float64)
        assert torch.equal(row, probabilities(logits, sampling))
        assert row[token] > 0
        prefix.append(token)


def test_tokens_are_drawn_not_taken_by_argmax():
    """CASES 1: q = (.6, .3, .1)."""
    law = [.6, .3, .1]
    drafter, g = ModelDrafter(TableModel(law_rule(law), 3)), generator()
    drawn = [drafter.propose(ids(0), 1, Sampling(), g).tokens.item()
             for _ in range(3000)]
    counts = torch.bincount(torch.tensor(drawn), minlength=3)
    expected = 3000 * torch.tensor(law)
    assert ((counts - expected) ** 2 / expected).sum() < 18.4  # chi2, 2 df, p = 1e-4


def test_one_forward_a_token_and_the_last_guess_is_fed_to_nobody():
    model = recorded(random_rule(0))
    drafter = ModelDrafter(model)
    draft = drafter.propose(ids(1, 2, 3), 3, WARM, generator())
    a, b, _ = draft.tokens.tolist()
    assert [call.tokens for call in model.calls] == [[1, 2, 3], [a], [b]]
    assert model.caches[-1].tokens == [1, 2, 3, a, b]


def test_after_full_acceptance_both_missing_tokens_go_in_one_forward():
    """CASES 8."""
    model = recorded(random_rule(0))
    drafter = ModelDrafter(model)
    sequence = ids(1, 2, 3)
    guesses = drafter.propose(sequence, 3, WARM, generator()).tokens
    model.calls.clear()
    drafter.propose(torch.cat([sequence, guesses, ids(4)]), 2, WARM, generator())
    assert model.calls[0].tokens == [guesses[-1].item(), 4]
    assert model.calls[0].start == 5
    assert model.widths == [2, 1]


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_after_a_rejection_only_the_new_token_is_fed(accepted):
    model = recorded(random_rule(0))
    drafter = ModelDrafter(model)
    sequence = ids(1, 2, 3)
    guesses = drafter.propose(sequence, 3, WARM, generator()).tokens
    model.calls.clear()
    new = ids((guesses[accepted] + 1) % 5)
    sequence = torch.cat([sequence, guesses[:accepted], new])
    drafter.propose(sequence, 1, WARM, generator())
    assert [(call.start, call.tokens) for call in model.calls] == [
        (3 + accepted, new.tolist())]


def test_tokens_committed_without_it_are_caught_up():
    """CASES 13: K was 0 for some rounds."""
    model = recorded(random_rule(0))
    drafter = ModelDrafter(model)
    drafter.propose(ids(1, 2), 1, WARM, generator())
    drafter.propose(ids(1, 2, 4, 4, 4), 2, WARM, generator())
    assert model.calls[1].tokens == [4, 4, 4] and model.calls[1].start == 2
    fresh = ModelDrafter(TableModel(random_rule(0)))
    again = fresh.propose(ids(1, 2, 4, 4, 4), 2, WARM, generator(5))
    assert torch.equal(
        drafter.propose(ids(1, 2, 4, 4, 4), 2, WARM, generator(5)).tokens, again.tokens)


def test_another_text_is_not_taken_for_the_old_one():
    """CASES 19: the same drafter, with reset and without."""
    expected = ModelDrafter(TableModel(random_rule(0))).propose(
        ids(3, 1, 4), 3, WARM, generator())
    for reset in (True, False):
        drafter = ModelDrafter(TableModel(random_rule(0)))
        drafter.propose(ids(3, 1, 2, 2, 2, 2), 3, WARM, generator())
        if reset:
            drafter.reset()
        draft = drafter.propose(ids(3, 1, 4), 3, WARM, generator())
        assert torch.equal(draft.probs, expected.probs)


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_draft_that_failed_halfway_starts_from_what_its_cache_holds(fails_at):
    model = TableModel(random_rule(0))
    drafter, working = ModelDrafter(model), model.forward
    drafter.propose(ids(1, 2, 3, 4), 3, GREEDY, generator())
    left = [fails_at]

    def failing(tokens, cache):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return working(tokens, cache)

    model.forward = failing
    with pytest.raises(KeyboardInterrupt):
        drafter.propose(ids(1, 2, 0, 0), 3, GREEDY, generator())
    model.forward = working
    fresh = ModelDrafter(TableModel(random_rule(0)))
    for text in (ids(1, 2, 3, 4), ids(1, 2, 0, 0, 1)):
        draft = drafter.propose(text, 3, GREEDY, generator())
        assert torch.equal(draft.tokens,
                           fresh.propose(text, 3, GREEDY, generator()).tokens)


def test_the_cache_grows_seldom_and_keeps_the_text():
    model = recorded(random_rule(0))
    drafter, sequence = ModelDrafter(model), ids(1, 2)
    for _ in range(200):
        draft = drafter.propose(sequence, 2, WARM, generator(len(sequence)))
        sequence = torch.cat([sequence, draft.tokens])
    fresh = ModelDrafter(TableModel(random_rule(0)))
    assert torch.equal(drafter.propose(sequence, 2, WARM, generator()).probs,
                       fresh.propose(sequence, 2, WARM, generator()).probs)
    assert len(model.caches) == 2


@pytest.mark.parametrize("length,expected", [(5, 3), (6, 3), (7, 2), (8, 1), (9, 0),
                                             (10, 0)])
def test_the_drafts_own_context_bounds_what_it_proposes(length, expected):
    """Eight positions: the last token that it draws needs none."""
    model = recorded(random_rule(0), max_length=8)
    draft = ModelDrafter(model).propose(ids(*[1] * length), 3, WARM, generator())
    assert len(draft.tokens) == expected
    assert all(len(cache.tokens) <= 8 for cache in model.caches)


def test_a_context_of_none_is_no_limit():
    model = TableModel(random_rule(0))
    model.max_length = None
    assert len(ModelDrafter(model).propose(ids(1), 9, WARM, generator()).tokens) == 9


def test_a_cache_that_cannot_go_back_is_refused_at_once():
    """CASES 11."""
    model = recorded(random_rule(0))
    model.model.new_cache = lambda length: object()
    with pytest.raises(ValueError, match="object can't be truncated"):
        ModelDrafter(model).propose(ids(1, 2), 3, WARM, generator())
    assert not model.calls


def test_a_cache_whose_truncate_does_nothing_is_refused():
    class Stuck(TokenCache):
        def truncate(self, length):
            pass

    model = TableModel(random_rule(0))
    model.new_cache = lambda length: Stuck()
    drafter = ModelDrafter(model)
    drafter.propose(ids(1, 2), 3, WARM, generator())
    with pytest.raises(ValueError, match="rollback doesn't work"):
        drafter.propose(ids(1, 3), 3, WARM, generator())


def test_an_id_that_the_draft_does_not_know_is_fed_as_its_last():
    model = recorded(random_rule(0), vocab_size=5)
    ModelDrafter(model).propose(ids(7, 1, 9), 1, WARM, generator())
    assert model.calls[0].tokens == [4, 1, 4]


def test_a_draw_takes_one_uniform():
    a, b = generator(3), generator(3)
    ModelDrafter(TableModel(random_rule(0))).propose(ids(1), 3, WARM, a)
    torch.rand(3, generator=b, dtype=torch.float64)
    assert torch.equal(a.get_state(), b.get_state())


def test_a_real_draft_model_computes_no_logits_for_the_prompt(tmp_path):
    random_transformer("llama").save_pretrained(tmp_path)
    model = load_model(tmp_path, torch.float64)
    widths, working = [], model.logits
    model.logits = lambda x: widths.append(x.shape[1]) or working(x)
    prompt = torch.arange(40)
    draft = ModelDrafter(model).propose(prompt, 3, WARM, generator())
    assert widths == [1, 1, 1]
    logits = model.forward(torch.cat([prompt, draft.tokens[:-1]]))[-3:]
    assert torch.allclose(draft.probs, probabilities(logits, WARM), atol=1e-12)


def test_logits_that_are_not_finite_are_refused():
    model = TableModel(lambda prefix: [float("nan")] * 5)
    for sampling in (GREEDY, WARM):
        with pytest.raises(ValueError, match="not finite"):
            ModelDrafter(model).propose(ids(1), 2, sampling, generator())


@pytest.mark.parametrize("a,b,expected", [
    ([], [], 0), ([1], [], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 2], 2),
    ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([9], [1, 2], 0)])
def test_common_prefix(a, b, expected):
    assert common_prefix(a, b) == expected


# Look-up.
@pytest.mark.parametrize("text,k,expected", [
    ([1, 2, 3, 4, 1, 2], 2, [3, 4]),  # two tokens match
    ([1, 2, 3, 4, 1, 2], 9, [3, 4, 1, 2]),  # as far as the text goes
    ([1, 2, 3, 0, 2, 4, 0, 1, 2], 1, [3]),  # the longer match, though an older one
    ([1, 2, 0, 1, 3, 0, 1], 1, [3]),  # the later of two equally long ones
    ([7, 7], 3, [7]), ([7, 7, 7, 7], 3, [7]),  # overlapping itself
    ([1, 2, 3], 3, []), ([5], 3, []), ([1, 1], 0, [])])
def test_lookup_copies_what_followed(text, k, expected):
    draft = NGramDrafter().propose(torch.tensor(text), k, WARM, None)
    assert draft.tokens.tolist() == expected
    assert draft.probs is None and draft.tokens.dtype == torch.long


def test_lookup_keeps_to_its_lengths():
    text = torch.tensor([1, 2, 3, 9, 3, 5, 2, 3])
    assert NGramDrafter(1).propose(text, 1, WARM, None).tokens.tolist() == [5]
    assert NGramDrafter(2).propose(text, 1, WARM, None).tokens.tolist() == [9]
    assert NGramDrafter(4, 3).propose(text, 1, WARM, None).tokens.tolist() == []
    for lengths in [(0, 0), (2, 3), (3, 0)]:
        with pytest.raises(ValueError, match="1 <= shortest <= longest"):
            NGramDrafter(*lengths)


def test_a_proposal_does_not_share_memory_with_the_text():
    text = torch.tensor([1, 2, 1])
    draft = NGramDrafter().propose(text, 2, WARM, None)
    text[1] = 4
    assert draft.tokens.tolist() == [2, 1]


def test_a_greedy_draft_follows_its_model():
    rule = next_rule(lambda prefix: (prefix[-1] + 1) % 5)
    draft = ModelDrafter(TableModel(rule)).propose(ids(2), 4, GREEDY, generator())
    assert draft.tokens.tolist() == [3, 4, 0, 1]
    assert torch.equal(draft.probs, torch.eye(5, dtype=torch.float64)[draft.tokens])


# One, and where it is silent another.
def test_the_second_is_asked_only_where_the_first_is_silent():
    model = recorded(law_rule([0.0, 1.0, 0.0]), 3)
    drafter = EitherDrafter(NGramDrafter(2, 2), ModelDrafter(model))
    copied = drafter.propose(ids(1, 2, 0, 1, 2), 2, GREEDY, generator())
    assert copied.tokens.tolist() == [0, 1] and copied.probs is None
    assert not model.calls
    guessed = drafter.propose(ids(1, 2, 0, 1), 2, WARM, generator())
    assert guessed.tokens.tolist() == [1, 1] and guessed.probs.shape == (2, 3)
    drafter.reset()
    assert drafter.second.fed == []
