"""The speculative loop, sampled: the target's law, by the seed alone, and its trace."""
import numpy as np
import pytest
import torch
from helpers import VERIFIERS, TableModel, generator, law_rule, random_rule
from speculation import DRAFTERS, WARM, run, target

from nds_helpers.decoding import (
    Draft,
    ModelDrafter,
    NGramDrafter,
    Sampling,
    probabilities,
)


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
