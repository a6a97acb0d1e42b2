"""What a request must be, before anything runs; and caches that can't go back."""
import numpy as np
import pytest
import torch
from helpers import Proposer, Recorder, TableModel, TokenCache, next_rule, random_rule

from nds_helpers.decoding import (
    ModelDrafter,
    NGramDrafter,
    Sampling,
    autoregressive,
    speculative,
    speculative_rounds,
)

GREEDY = Sampling(0.0)


def target(**settings):
    return TableModel(random_rule(0), **settings)


BAD = [
    (dict(prompt=[]), "at least one token id"),
    (dict(prompt="To be"), "must be token ids; use pair.encode"),
    (dict(prompt=["To", "be"]), "must be token ids; use pair.encode"),
    (dict(prompt=None), "must be token ids; use pair.encode"),
    (dict(prompt=[[1, 2]]), r"not a tensor of shape \(1, 2\)"),
    (dict(prompt=3), r"not a tensor of shape \(\)"),
    (dict(prompt=[1.0, 2.0]), "whole ids, not torch.float32"),
    (dict(prompt=[True]), "whole ids, not torch.bool"),
    (dict(prompt=[1j]), "whole ids, not torch.complex64"),
    (dict(prompt=[1, 5]), r"id 5 is outside the model's vocabulary \(0 to 4\)"),
    (dict(prompt=[-1]), "id -1 is outside"),
    (dict(max_new_tokens=-1), "max_new_tokens must be a whole number, 0 or .* not -1"),
    (dict(max_new_tokens=2.5), "max_new_tokens must be a whole number"),
    (dict(max_new_tokens=None), "max_new_tokens must be a whole number"),
    (dict(prompt=[1] * 6, max_new_tokens=5), r"prompt \(6 tokens\) plus max_new_tokens "
                                            r"\(5\) exceeds the model's context of 10"),
]


@pytest.mark.parametrize("request_,message", BAD, ids=str)
def test_a_bad_request_is_one_clear_sentence_before_anything_runs(request_, message):
    """CASES 20 among them: a prompt that doesn't fit."""
    asked = dict(prompt=[1, 2, 3], max_new_tokens=4) | request_
    prompt = asked.pop("prompt")
    for speculate in (False, True):
        model, draft = Recorder(target(max_length=10)), Recorder(target())
        with pytest.raises(ValueError, match=message) as caught:
            if speculate:
                speculative(model, ModelDrafter(draft), prompt, k=2, **asked)
            else:
                autoregressive(model, prompt, **asked)
        assert "\n" not in str(caught.value) and caught.value.__cause__ is None
        assert not model.calls + draft.calls + model.caches


@pytest.mark.parametrize("n", [0, 1, 6])
def test_the_context_may_be_filled_to_the_last_token(n):
    model = Recorder(target(max_length=8))
    result = speculative(model, ModelDrafter(target()), [1] * (8 - n), k=5,
                         max_new_tokens=n, sampling=GREEDY)
    assert len(result.tokens) == n


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor,
                                  lambda x: np.array(x, dtype=np.uint16),
                                  lambda x: torch.tensor(x, dtype=torch.int32)])
def test_a_prompt_may_be_any_row_of_ids(kind):
    results = [speculative(target(), NGramDrafter(), prompt, k=2, max_new_tokens=12)
               for prompt in (kind([1, 2, 3]), [1, 2, 3])]
    assert torch.equal(results[0].tokens, results[1].tokens)


def test_the_prompt_is_left_alone():
    prompt = torch.tensor([1, 2, 3])
    speculative(target(), NGramDrafter(), prompt, k=2, max_new_tokens=5)
    assert prompt.tolist() == [1, 2, 3]


class NoTruncate:
    length = 0


class Refusing(TokenCache):
    def truncate(self, length):
        raise NotImplementedError


class Stuck(TokenCache):
    def truncate(self, length):
        pass


@pytest.mark.parametrize("cache", [NoTruncate, Refusing])
def test_a_cache_without_rollback_is_refused_before_the_first_round(cache):
    """CASES 11."""
    model = Recorder(target())
    model.model.new_cache = lambda length: cache()
    with pytest.raises(ValueError, match=f"{cache.__name__} can't be truncated"):
        speculative(model, NGramDrafter(), [1, 2, 3], k=3, max_new_tokens=9)
    assert not model.calls  # not even the prompt was fed


@pytest.mark.parametrize("ends,same", [(None, ()), (3, (3,)), ([3, 4], (3, 4)),
                                       (torch.tensor([3]), (3,))], ids=str)
def test_end_tokens_may_be_none_one_or_many(ends, same):
    for run in (lambda m: autoregressive(m, [1], max_new_tokens=30),
                lambda m: speculative(m, NGramDrafter(), [1], k=2, max_new_tokens=30)):
        a, b = run(target(end_token_ids=ends)), run(target(end_token_ids=same))
        assert torch.equal(a.tokens, b.tokens)


def test_a_cache_whose_rollback_does_nothing_emits_nothing():
    """CASES 11: seen at the first token that would have to be taken back."""
    model = TableModel(next_rule(lambda prefix: (prefix[-1] + 1) % 5))
    model.new_cache = lambda length: Stuck()
    rounds = speculative_rounds(model, Proposer(lambda ids, k: [0] * k), [1], k=3,
                                max_new_tokens=9, sampling=GREEDY)
    with pytest.raises(ValueError, match="rollback doesn't work"):
        next(rounds)
