"""Chapter 04: checks catch the plausible mistakes, cells agree with the package."""
import pytest
import torch
from helpers import TableModel, generator, load_chapter, random_rule, said, stub

from nds_helpers.classroom.choose import (
    check_alpha_hat,
    check_best_k,
    check_expected_committed,
    rounds,
)
from nds_helpers.decoding import ModelDrafter, speculative
from nds_helpers.lab import theory

ALPHAS = (0.0, 0.2, 0.5, 0.8, 0.95, 1.0)


@pytest.fixture(scope="module")
def chapter():
    """What the chapter's cells and solutions define."""
    return load_chapter("04_choose_k_and_temperature")


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("k", [0, 1, 5, 12])
def test_formulas_agree(chapter, alpha, k):
    expected = theory.expected_tokens(alpha, k)
    assert chapter.expected_tokens(alpha, k) == pytest.approx(expected, abs=1e-12)
    assert chapter.expected_committed([alpha] * k) == pytest.approx(expected)
    for c in (0.02, 0.3):
        ours = chapter.speedup(alpha, k, c, 1.4)
        assert ours == pytest.approx(theory.speedup(alpha, k, c, 1.4), abs=1e-12)
        assert chapter.speedup(alpha, k, c) == pytest.approx(
            theory.speedup(alpha, k, c), abs=1e-12)


@pytest.mark.parametrize("c", [0.02, 0.05, 0.1, 0.3, 0.9])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_best_k_agrees(chapter, alpha, c):
    assert chapter.best_k(alpha, c, 16) == theory.best_k(alpha, c, 16)[0]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ends", [(), (2,)])
def test_metrics_agree_on_real_traces(chapter, seed, ends):
    target = TableModel(random_rule(seed), end_token_ids=ends)
    drafter = ModelDrafter(TableModel(random_rule(seed + 50)))
    trace = speculative(target, drafter, [1], k=4, max_new_tokens=60,
                        generator=generator(seed)).trace
    assert chapter.by_position(trace) == trace.by_position()
    summary = trace.summary()
    assert chapter.alpha_hat(trace) == pytest.approx(summary["acceptance_rate"])


@pytest.mark.parametrize("alpha, k, c, words", [
    (0.8, 5, 0.1, "pays"), (0.8, 0, 0.1, "pays"),
    (0.6, 12, 0.2, "K is too large, 2 would pay"),
    (0.7, 4, 1.5, "the draft costs too much"),
    (0.1, 3, 0.1, "too few guesses stand")])
def test_verdict_gives_the_reason(chapter, alpha, k, c, words):
    wide = [1.0] + [1.2 + 0.02 * n for n in range(12)]
    sentence = chapter.verdict(alpha, k, c, wide)
    assert words in sentence
    assert sentence.startswith(f"{theory.speedup(alpha, k, c, wide[k]):.2f}")


@pytest.mark.parametrize("check, name", [
    (check_alpha_hat, "alpha_hat"), (check_best_k, "best_k"),
    (check_expected_committed, "expected_committed")])
def test_solutions_pass(chapter, check, name, capsys):
    assert said(check, getattr(chapter, name), capsys).startswith("Passed")


@pytest.mark.parametrize("check", [check_alpha_hat, check_best_k,
                                   check_expected_committed])
def test_stub_is_not_yet(check, capsys):
    assert said(check, stub, capsys).startswith("Not yet")


def test_a_trace_prints_in_one_line():
    trace = rounds((4, 2, "corrected"), (4, 4, "bonus"))
    assert repr(trace) == "2/4 corrected, 4/4 bonus"


def accepted(trace):
    return sum(r.accepted for r in trace)


def mean_of_rounds(trace):
    rates = [r.accepted / (r.accepted + (r.kind == "corrected")) for r in trace
             if r.accepted or r.kind == "corrected"]
    return sum(rates) / len(rates)


ALPHA_HAT = {
    "accepted per drafted": lambda t: accepted(t) / sum(r.drafted for r in t),
    "committed per round": lambda t: sum(len(r.tokens) for r in t) / len(t),
    "accepted per committed": lambda t: accepted(t) / sum(len(r.tokens) for r in t),
    "every round a rejection": lambda t: accepted(t) / (accepted(t) + len(t)),
    "fewer than drafted is a rejection": lambda t: accepted(t) / (
        accepted(t) + sum(r.accepted < r.drafted for r in t)),
    "not a bonus is a rejection": lambda t: accepted(t) / (
        accepted(t) + sum(r.kind != "bonus" for r in t)),
    "mean of the rounds' rates": mean_of_rounds,
    "share of rounds without rejection": lambda t: sum(
        r.kind == "bonus" for r in t) / len(t),
    "bonus tokens count as accepted": lambda t: (
        accepted(t) + sum(r.kind == "bonus" for r in t)) / (accepted(t) + len(t)),
}


@pytest.mark.parametrize("wrong", ALPHA_HAT.values(), ids=ALPHA_HAT)
def test_wrong_alpha_hat(wrong, capsys):
    assert said(check_alpha_hat, wrong, capsys).startswith("Not yet")


def mean_formula(rates):
    alpha = sum(rates) / len(rates) if rates else 0.0
    return theory.expected_tokens(alpha, len(rates))


def product_only(rates):
    return 1.0 + float(torch.tensor(rates, dtype=torch.float64).prod())


EXPECTED = {
    "no bonus token": lambda r: theory.expected_tokens_by_position(r) - 1,
    "added up without the products": lambda r: 1 + sum(r),
    "mean rate in the formula": mean_formula,
    "only full acceptance counts": product_only,
    "accepted per drafted": lambda r: (
        (theory.expected_tokens_by_position(r) - 1) / max(len(r), 1)),
    "reversed": lambda r: theory.expected_tokens_by_position(r[::-1]),
    "first rate for all": lambda r: theory.expected_tokens(
        r[0] if r else 0.0, len(r)),
    "closed form": lambda r: (1 - r[0] ** (len(r) + 1)) / (1 - r[0]),
    "two tokens more": lambda r: theory.expected_tokens_by_position(r) + 1,
}


@pytest.mark.parametrize("wrong", EXPECTED.values(), ids=EXPECTED)
def test_wrong_expected_committed(wrong, capsys):
    assert said(check_expected_committed, wrong, capsys).startswith("Not yet")


def closed_form(alpha, c, limit):
    return max(range(limit + 1), key=lambda k: (
        (1 - alpha ** (k + 1)) / (1 - alpha) / (k * c + 1)))


def best_of(ks, alpha, score):
    return max(ks, key=lambda k: score(theory.expected_tokens(alpha, k), k))


BEST_K = {
    "draft's cost forgotten": lambda a, c, n: best_of(
        range(n + 1), a, lambda e, k: e),
    "target's pass forgotten": lambda a, c, n: best_of(
        range(1, n + 1), a, lambda e, k: e / (k * c)),
    "accepted per drafted": lambda a, c, n: best_of(
        range(1, n + 1), a, lambda e, k: (e - 1) / k),
    "bonus token forgotten": lambda a, c, n: best_of(
        range(n + 1), a, lambda e, k: (e - 1) / (k * c + 1)),
    "one draft step only": lambda a, c, n: best_of(
        range(n + 1), a, lambda e, k: e / (c + 1)),
    "never 0": lambda a, c, n: best_of(
        range(1, n + 1), a, lambda e, k: e / (k * c + 1)),
    "limit left out": lambda a, c, n: best_of(
        range(n), a, lambda e, k: e / (k * c + 1)),
    "closed form": closed_form,
    "the speedup, not K": lambda a, c, n: theory.best_k(a, c, n)[1],
    "both": theory.best_k,
    "zero or the limit": lambda a, c, n: n if a > c else 0,
}


@pytest.mark.parametrize("wrong", BEST_K.values(), ids=BEST_K)
def test_wrong_best_k(wrong, capsys):
    assert said(check_best_k, wrong, capsys).startswith("Not yet")
