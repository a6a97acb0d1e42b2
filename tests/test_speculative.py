"""The speculative loop: the text, the forwards, the caches, K, the stops."""
import numpy as np
import pytest
import torch
from helpers import VERIFIERS, Proposer, Recorder, TableModel, generator
from speculation import COUNTING, DRAFTERS, GREEDY, WARM, plain, run, target

from nds_helpers.decoding import (
    ModelDrafter,
    NGramDrafter,
    Sampling,
    speculative_rounds,
)


# Greedy: the same text, token for token.
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("k", [0, 1, 2, 5])
@pytest.mark.parametrize("verify", VERIFIERS)
def test_greedy_equals_plain_greedy(drafter, k, verify):
    """CASES 4 and 9: from the first token on."""
    for prompt in ([4], [1, 2], [2, 2, 2, 2, 0]):
        for n in (0, 1, 2, 7, 23):
            result = run(target(), DRAFTERS[drafter](), prompt, k, n, verify=verify)
            assert result.tokens.tolist() == plain(target(), prompt, n)
            assert len(result.tokens) == n and result.tokens.dtype == torch.long


def test_a_tiny_temperature_is_greedy():
    result = run(target(), DRAFTERS["another model"](), sampling=Sampling(1e-30))
    assert result.tokens.tolist() == plain(target())


@pytest.mark.parametrize("verify", VERIFIERS)
def test_a_draft_equal_to_the_target_commits_k_plus_one_every_round(verify):
    """CASES 8."""
    result = run(target(), DRAFTERS["itself"](), k=3, n=16, verify=verify)
    assert [len(r.tokens) for r in result.trace] == [4] * 4
    assert {r.kind for r in result.trace} == {"bonus"}
    warm = run(target(), DRAFTERS["itself"](), k=3, n=16, sampling=WARM, verify=verify)
    assert [r.accepted for r in warm.trace] == [3] * 4


# Forwards, caches, positions.
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=str)
@pytest.mark.parametrize("prompt", [(1, 2, 3, 4), (1,)], ids=len)
def test_one_target_forward_a_round_of_width_k_plus_one(drafter, sampling, prompt):
    model = Recorder(target())
    result = run(model, DRAFTERS[drafter](), prompt, k=3, n=20, sampling=sampling)
    prefill = [len(prompt) - 1] if len(prompt) > 1 else []
    assert model.widths == prefill + [r.drafted + 1 for r in result.trace]
    text = list(prompt) + result.tokens.tolist()
    length = len(prompt)
    for call, r in zip(model.calls[len(prefill):], result.trace):
        assert call.start == length - 1  # CASES 10: where the committed text ends
        assert call.tokens == text[length - 1:length] + r.guesses
        length += len(r.tokens)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("verify", VERIFIERS)
def test_between_rounds_the_cache_lacks_the_last_token_only(drafter, verify):
    model = Recorder(target())
    text = [1, 2, 3]
    rounds = speculative_rounds(model, DRAFTERS[drafter](), text[:], k=4, verify=verify,
                                max_new_tokens=21, sampling=WARM, generator=generator())
    for r in rounds:
        text += r.tokens
        assert model.caches[0].tokens == text[:-1]
    assert len(text) == 24


@pytest.mark.parametrize("accepted", [0, 2, 4])
def test_forced_acceptances_move_positions_by_what_was_committed(accepted):
    """CASES 10."""
    def choose(ids, k):
        right = [(ids[-1] + 1 + i) % 5 for i in range(k)]
        return right[:accepted] + [(x + 1) % 5 for x in right[accepted:]]

    model = Recorder(TableModel(COUNTING))
    run(model, Proposer(choose), k=4, n=30)
    starts = [call.start for call in model.calls[1:]]
    steps = {b - a for a, b in zip(starts[:-2], starts[1:-1])}
    assert steps == {accepted + 1}


def test_the_draft_catches_up_after_rounds_of_zero():
    """CASES 13: 3, 0, 0, 3 with draft equal to target."""
    schedule = [3, 0, 0, 3]
    draft = Recorder(target())
    result = run(target(), ModelDrafter(draft), n=10,
                 k=lambda trace: schedule[len(trace)])
    assert [r.accepted for r in result.trace] == schedule
    assert [len(r.tokens) for r in result.trace] == [4, 1, 1, 4]
    assert draft.widths == [2, 1, 1, 4, 1, 1]  # its last guess and three committed


def test_a_draft_step_follows_full_acceptance_in_one_forward():
    draft = Recorder(target())
    run(target(), ModelDrafter(draft), (1, 2), k=2, n=9)
    assert draft.widths == [2, 1, 2, 1, 2, 1]


# K.
def test_k_of_zero_is_plain_decoding_with_the_same_seed():
    """CASES 20."""
    for seed in range(5):
        settings = dict(sampling=WARM, seed=seed)
        for verify in VERIFIERS:
            drafter = Proposer(lambda ids, k: 1 / 0)
            result = run(target(), drafter, k=0, verify=verify, **settings)
            assert result.tokens.tolist() == plain(target(), **settings)
            kinds = {(r.k, r.accepted, r.kind) for r in result.trace}
            assert kinds == {(0, 0, "bonus")}


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("k", [2, 9])
def test_k_shrinks_near_the_end(n, k):
    """The draft isn't asked for what can't be committed."""
    drafter = Proposer(lambda ids, k: [(ids[-1] + 1 + i) % 5 for i in range(k)])
    model = Recorder(TableModel(COUNTING))
    result = run(model, drafter, k=k, n=n)
    assert len(result.tokens) == n
    left = n
    for r in result.trace:
        assert r.k == min(k, left - 1)
        left -= len(r.tokens)
    assert drafter.asked == [r.k for r in result.trace if r.k]
    assert model.caches[0].length == 2 + n - 1


def test_a_policy_sees_the_trace_and_chooses():
    seen = []

    def policy(trace):
        seen.append([r.accepted for r in trace])
        return np.int64(trace[-1].accepted + 1 if trace else 1)

    result = run(target(), DRAFTERS["itself"](), k=policy, n=15)
    assert [r.k for r in result.trace] == [1, 2, 3, 4, 0]
    assert seen == [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]


@pytest.mark.parametrize("k", [-1, 2.5, None, "4", True, [1]])
def test_k_must_be_a_count(k):
    for asked in (k, lambda trace: k):
        model = Recorder(target())
        with pytest.raises(ValueError, match="^k must be a whole number, 0 or more"):
            run(model, NGramDrafter(), (1,), k=asked)
        assert not model.calls


# Ends.
@pytest.mark.parametrize("verify", VERIFIERS)
@pytest.mark.parametrize("ends", [(4,), (0, 4), {4}, [2, 4]], ids=str)
def test_an_end_token_inside_an_accepted_run_ends_the_text(ends, verify):
    """CASES 15 and 16: the text goes 2, 3, 4, and 4 ends it."""
    model = TableModel(COUNTING, end_token_ids=ends)
    drafter = Proposer(lambda ids, k: [(ids[-1] + 1 + i) % 5 for i in range(k)])
    result = run(model, drafter, (0, 1), k=5, verify=verify)
    stop = 1 if 2 in ends else 3
    assert result.tokens.tolist() == [2, 3, 4][:stop]
    (r,) = result.trace
    assert (r.accepted, r.kind, r.drafted, r.counted) == (stop, "ended", 5, stop)
    assert result.trace.summary()["committed_per_round"] == stop
    assert result.tokens.tolist() == plain(model, (0, 1))


@pytest.mark.parametrize("right,kind", [(True, "bonus"), (False, "corrected")])
def test_an_end_token_as_the_last_of_a_round_ends_the_text(right, kind):
    model = TableModel(COUNTING, end_token_ids=(4,))
    drafter = Proposer(lambda ids, k: [2, 3 if right else 1][:k])
    result = run(model, drafter, (0, 1), k=2)
    if not right:  # 2, then 3 in place of 1; the next round drafts 2 and gets 4
        assert [r.kind for r in result.trace] == ["corrected", "corrected"]
    assert result.tokens.tolist() == [2, 3, 4] and result.trace[-1].kind == kind


def test_an_end_token_in_the_prompt_or_behind_a_rejection_ends_nothing():
    model = TableModel(COUNTING, end_token_ids=(4,))
    result = run(model, Proposer(lambda ids, k: [1, 4, 4][:k]), (4, 4), k=3, n=4)
    assert result.tokens.tolist() == [0, 1, 2, 3]


def test_the_cache_ends_with_the_text():
    model = Recorder(TableModel(COUNTING, end_token_ids=(4,)))
    drafter = Proposer(lambda ids, k: [(ids[-1] + 1 + i) % 5 for i in range(k)])
    run(model, drafter, (0, 1), k=5)
    assert model.caches[0].tokens == [0, 1, 2, 3]
