"""The speculative loop: the text, the forwards, the caches, the stops, the refusals."""
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import (
    Proposer,
    Recorder,
    TableModel,
    law_rule,
    next_rule,
    random_rule,
)

from nds_helpers.decoding import (
    Draft,
    ModelDrafter,
    NGramDrafter,
    Sampling,
    autoregressive,
    probabilities,
    speculative,
    speculative_rounds,
    verify_block,
    verify_tokens,
)

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"
GREEDY = Sampling(0.0)
WARM = Sampling(1.2, top_k=4, top_p=0.95)
VERIFIERS = [verify_tokens, verify_block]
COUNTING = next_rule(lambda prefix: (prefix[-1] + 1) % 5, lead=3.0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def run(model, drafter, prompt=(1, 2), k=3, n=12, sampling=GREEDY, seed=0, **more):
    return speculative(model, drafter, list(prompt), k=k, max_new_tokens=n,
                       sampling=sampling, generator=generator(seed), **more)


def plain(model, prompt=(1, 2), n=12, sampling=GREEDY, seed=0):
    return autoregressive(model, list(prompt), max_new_tokens=n, sampling=sampling,
                          generator=generator(seed)).tokens.tolist()


def target(**settings):
    return TableModel(random_rule(0), **settings)


DRAFTERS = {
    "itself": lambda: ModelDrafter(target()),
    "another model": lambda: ModelDrafter(TableModel(random_rule(9))),
    "n-grams": lambda: NGramDrafter(),
    "always 3": lambda: Proposer(lambda ids, k: [3] * k),
    "nothing": lambda: Proposer(lambda ids, k: []),
}


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


# Sampled: the same distribution.
def chi_square(counts, law):
    counts, expected = np.asarray(counts, float), np.asarray(law) * np.sum(counts)
    some = expected > 0
    assert (counts[~some] == 0).all()
    return ((counts - expected)[some] ** 2 / expected[some]).sum(), some.sum() - 1


@pytest.mark.parametrize("verify", VERIFIERS)
@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=str)
@pytest.mark.parametrize("drafter", ["model", "n-grams", "always 3"])
def test_every_token_follows_the_targets_law(verify, sampling, drafter):
    rule = random_rule(0)
    made = (ModelDrafter(TableModel(random_rule(9), order=1)) if drafter == "model"
            else DRAFTERS[drafter]())
    tokens = []
    for seed in range(4):
        result = run(TableModel(rule, order=1), made, (2,), k=3, n=500, seed=seed,
                     sampling=sampling, verify=verify)
        tokens += [2, *result.tokens.tolist()]
        assert 0.1 < result.trace.summary()["acceptance_rate"] < 0.95
    starts = range(0, len(tokens), 501)
    kept = [t for i, t in enumerate(tokens) if i not in starts]
    before = [t for i, t in enumerate(tokens) if i + 1 not in starts][:len(kept)]
    counts = np.zeros((5, 5))
    np.add.at(counts, (before, kept), 1)
    for row in range(5):
        law = probabilities(torch.tensor(rule((row,)), dtype=torch.float64), sampling)
        found, degrees = chi_square(counts[row], law.numpy())
        assert found < degrees + 4.9 * np.sqrt(2 * degrees) + 24  # p < 1e-5


@pytest.mark.parametrize("verify", VERIFIERS)
def test_one_round_runs_follow_the_targets_law(verify):
    """CASES 1: 20 000 draws of one token against p = (.2, .5, .3), q = (.6, .3, .1)."""
    p = torch.tensor([[.2, .5, .3]] * 2)
    q, g = torch.tensor([[.6, .3, .1]]), generator(1)
    drafted = torch.multinomial(q[0], 20_000, replacement=True, generator=g)
    counts = [0] * 3
    for token in drafted:
        draft = Draft(token[None], q)
        verdict = verify(p, draft, g)
        counts[token if verdict.accepted else verdict.next_token] += 1
    found, _ = chi_square(counts, [.2, .5, .3])
    assert found < 23  # 2 degrees of freedom, p = 1e-5


def test_a_token_that_the_draft_does_not_know_still_appears():
    """CASES 18: the target has 8 ids, the draft 6; token 7 has p = .2."""
    law = [.1, .1, .1, .1, .1, .1, .2, .2]
    model = TableModel(law_rule(law), 8)
    draft = ModelDrafter(TableModel(law_rule([1 / 6] * 6), 6))
    result = run(model, draft, (7, 6), k=3, n=1500, sampling=Sampling())
    counts = torch.bincount(result.tokens, minlength=8).numpy()
    found, _ = chi_square(counts, law)
    assert found < 37  # 7 degrees of freedom, p = 5e-6


@pytest.mark.parametrize("verify", VERIFIERS)
def test_the_seed_decides_and_nothing_else(verify):
    results = []
    for outside in (1, 2):
        torch.manual_seed(outside)
        before = torch.get_rng_state()
        results.append([run(target(), DRAFTERS["another model"](), n=30, sampling=WARM,
                            seed=seed, verify=verify).tokens.tolist()
                        for seed in range(4)])
        assert torch.equal(torch.get_rng_state(), before)
    assert results[0] == results[1]
    assert len({tuple(tokens) for tokens in results[0]}) > 1


@pytest.mark.parametrize("drafter", ["another model", "n-grams"])
def test_a_second_call_starts_afresh(drafter):
    """CASES 19."""
    model, made = target(), DRAFTERS[drafter]()
    first = run(model, made, (1, 2, 3), sampling=WARM)
    run(model, made, (1, 2, 4), n=30, sampling=WARM, seed=4)
    again = run(model, made, (1, 2, 3), sampling=WARM)
    assert torch.equal(first.tokens, again.tokens)
    assert [r.accepted for r in first.trace] == [r.accepted for r in again.trace]
    p, q = first.trace[0].p, first.trace[0].q
    assert (p, q) == (again.trace[0].p, again.trace[0].q)


def test_the_trace_tells_p_and_q_at_the_guesses():
    rule, guess = random_rule(0), random_rule(9)
    result = run(TableModel(rule), ModelDrafter(TableModel(guess)), sampling=WARM)
    text = [1, 2]
    for r in result.trace:
        for i, token in enumerate(r.guesses):
            prefix = tuple(text + r.guesses[:i])
            for law, said in ((rule, r.p), (guess, r.q)):
                logits = torch.tensor(law(prefix), dtype=torch.float64)
                row = probabilities(logits, WARM)
                assert abs(row[token] - said[i]) < 1e-12
        text += r.tokens
    certain = run(TableModel(rule), NGramDrafter(), (1, 2, 1, 2), sampling=WARM)
    assert {q for r in certain.trace for q in r.q} == {1.0}


# What goes wrong.
@pytest.mark.parametrize("n", [2, 3, 12])
@pytest.mark.parametrize("part", ["verify", "forward"])
def test_a_failure_inside_verification_leaves_the_cache_as_long_as_it_was(n, part):
    """CASES 12: near max_new_tokens too."""
    model = Recorder(TableModel(COUNTING))
    drafter = Proposer(lambda ids, k: [(ids[-1] + 1 + i) % 5 for i in range(k)])
    working = model.model.forward

    def verify(p, draft, g):
        if part == "verify" and (n < 4 or len(draft.tokens) < 3):
            raise RuntimeError("out of memory")
        return verify_tokens(p, draft, g)

    def forward(tokens, cache):
        out = working(tokens, cache)
        if part == "forward" and len(model.calls) > (1 if n < 4 else 3):
            raise RuntimeError("out of memory")
        return out

    model.model.forward = forward
    text = [0, 1, 2]
    with pytest.raises(RuntimeError, match="out of memory"):
        for r in speculative_rounds(model, drafter, text[:], k=3, max_new_tokens=n,
                                    sampling=GREEDY, verify=verify):
            text += r.tokens
            if n == 12 and len(text) == 11 and part == "verify":
                drafter.choose = lambda ids, k: [0]
    assert model.caches[0].tokens == text[:-1]


PROBS = torch.full((2, 5), 0.2, dtype=torch.float64)


@pytest.mark.parametrize("choice,message", [
    ([1, 2, 3, 4], "proposed 4 tokens, and k was 3"),
    ([1, 5], "an id outside the target's 5"), ([-1], "an id outside the target's 5"),
    (([1], PROBS), r"shape \(2, 5\), for 1 tokens of 5"),
    (([1, 2, 3], PROBS), r"shape \(2, 5\), for 3 tokens of 5"),
    (([1, 2], PROBS[0]), r"shape \(5,\), for 2 tokens"),
    (([1, 2], torch.full((2, 6), 1 / 6)), r"shape \(2, 6\), for 2 tokens of 5")],
    ids=str)
def test_a_drafter_that_breaks_its_contract_is_told_so(choice, message):
    model = Recorder(target())
    with pytest.raises(ValueError, match=message):
        run(model, Proposer(lambda ids, k: choice), (1,))
    assert not model.calls


@pytest.mark.parametrize("tokens,probs,message", [
    ([1], None, "tokens are a LongTensor.k., not list"), (None, None, "not NoneType"),
    (np.array([1]), None, "not ndarray"), (torch.tensor(1), None, r"shape \(\)"),
    (torch.tensor([[1]]), None, r"shape \(1, 1\)"),
    (torch.tensor([1.0]), None, "not torch.float32"),
    (torch.tensor([1, 2]), PROBS.tolist(), "probs must be a FloatTensor.* not list"),
    (torch.tensor([1, 2]), PROBS * 1.01, "row 0 .* isn't a distribution: .* 1.01"),
    (torch.tensor([1, 2]), PROBS.log(), "isn't a distribution"),
    (torch.tensor([1]), torch.tensor([[0.5, 0.7, -0.2]]), "its least is -0.2"),
    (torch.tensor([1]), torch.tensor([[0.5, float("nan")]]), "it sums to nan"),
    (torch.tensor([1]), torch.tensor([[0.5, float("inf")]]), "it sums to inf")],
    ids=lambda x: str(x)[:30])
def test_a_draft_of_another_kind_is_refused_in_one_sentence(tokens, probs, message):
    drafter = Proposer(lambda ids, k: [])
    drafter.propose = lambda *request: Draft(tokens, probs)
    with pytest.raises(ValueError, match=message) as caught:
        run(target(), drafter)
    assert "\n" not in str(caught.value)


def test_a_drafter_that_returns_no_draft_is_told_so():
    drafter = Proposer(lambda ids, k: [])
    drafter.propose = lambda *request: None
    with pytest.raises(ValueError, match="must return a Draft"):
        run(target(), drafter)


def test_a_drafter_that_writes_into_the_text_changes_nothing():
    class Scribbler(NGramDrafter):
        def propose(self, sequence, k, sampling, generator):
            sequence.fill_(0)
            return Draft(sequence[:1])

    result = run(target(), Scribbler())
    assert result.tokens.tolist() == plain(target())


@pytest.mark.parametrize("choice", [[], [2], ([], PROBS[:0]), ([4], PROBS[:1]),
                                    ([1, 2], PROBS.float()),
                                    ([1], PROBS[:1, :3] / 0.6)],
                         ids=str)
def test_a_drafter_may_return_fewer(choice):
    result = run(target(), Proposer(lambda ids, k: choice if k > 1 else []))
    assert result.tokens.tolist() == plain(target())
    assert result.trace[0].k == 3 and result.trace[0].drafted == len(
        choice[0] if isinstance(choice, tuple) else choice)


def test_a_drafter_is_reset_once_a_generation_and_asked_only_where_it_can_help():
    drafter = Proposer(lambda ids, k: [1] * k)
    run(target(), drafter, k=lambda trace: len(trace) % 2, n=6)
    assert drafter.resets == 1 and 0 not in drafter.asked


def test_a_draft_with_a_smaller_context_leaves_the_rest_to_the_target():
    draft = Recorder(TableModel(random_rule(0), max_length=9))
    result = run(target(max_length=40), ModelDrafter(draft), k=3, n=30)
    assert result.tokens.tolist() == plain(target(), n=30)
    assert [r.drafted for r in result.trace][-5:] == [0] * 5
    assert max(cache.length for cache in draft.caches) <= 9
    long = run(target(max_length=40), ModelDrafter(draft), [1] * 20, n=5)
    assert [r.drafted for r in long.trace] == [0] * 5


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(sampling, bad):
    broken = TableModel(lambda prefix: [0.0, bad, 0, 0, 0])
    for model, drafter in ((broken, NGramDrafter()), (broken, DRAFTERS["always 3"]()),
                           (target(), ModelDrafter(broken))):
        with pytest.raises(ValueError, match="logits are probably not finite"):
            run(model, drafter, sampling=sampling)
    with pytest.raises(ValueError, match="logits are probably not finite"):
        plain(broken, sampling=sampling)
