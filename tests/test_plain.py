"""Plain decoding: the baseline that speculation is compared with."""
import pytest
import torch
from helpers import Recorder, TableModel, law_rule, next_rule, random_rule

from nds_helpers.decoding import Sampling, autoregressive, autoregressive_rounds


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def target(**settings):
    return TableModel(random_rule(0), **settings)


def test_one_forward_a_token():
    model = Recorder(target(end_token_ids=(3,)))
    result = autoregressive(model, [1, 2, 4], max_new_tokens=40, generator=generator())
    assert model.widths == [2] + [1] * len(result.tokens)
    assert result.tokens[-1] == 3 and 3 not in result.tokens[:-1]
    assert len(result.trace) == len(result.tokens)


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_greedy_follows_the_argmax_for_exactly_n_tokens(n):
    model = TableModel(next_rule(lambda prefix: (prefix[-1] + 2) % 5))
    result = autoregressive(model, [4, 1], max_new_tokens=n, sampling=Sampling(0.0))
    assert result.tokens.tolist() == [3, 0, 2, 4, 1, 3, 0][:n]
    assert result.tokens.dtype == torch.long


def test_tokens_follow_the_law():
    law = torch.tensor([.5, .2, 0, .3])
    result = autoregressive(TableModel(law_rule(law.tolist()), 4), [0],
                            max_new_tokens=1500, generator=generator())
    counts = torch.bincount(result.tokens, minlength=4)
    expected = 1500 * law
    assert counts[2] == 0
    assert ((counts - expected) ** 2 / expected)[law > 0].sum() < 23  # 2 df, p = 1e-5


def test_without_a_generator_the_seed_is_zero():
    same = [autoregressive(target(), [1], max_new_tokens=20, generator=g).tokens
            for g in (None, None, generator(0))]
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], same[2])


def test_tokens_come_one_by_one():
    model = Recorder(target())
    rounds = autoregressive_rounds(model, [1], max_new_tokens=5)
    for made in range(1, 4):
        assert len(next(rounds).tokens) == 1 and len(model.calls) == made


def test_a_model_without_rollback_can_decode_plainly():
    model = target()
    working = model.new_cache

    def new_cache(length):
        cache = working(length)
        cache.truncate = None
        return cache

    model.new_cache = new_cache
    assert len(autoregressive(model, [1, 2], max_new_tokens=3).tokens) == 3
