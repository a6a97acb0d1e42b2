"""Chapter 03: checks catch the plausible mistakes, cells agree with the package."""
import itertools
import math

import pytest
import torch
from helpers import chapter_cells, generator, load_chapter, said, stub

from nds_helpers.classroom.distribution import (
    check_acceptance,
    check_residual,
    check_verify,
)
from nds_helpers.decoding import (
    Draft,
    ModelDrafter,
    Sampling,
    acceptance,
    draw,
    residual,
    speculative,
    verify_tokens,
)
from nds_helpers.decoding.verify import prefix_acceptance, prefix_weights
from nds_helpers.lab.tokens import token_fates
from nds_helpers.models import load_pair

CHAPTER = "03_keep_the_distribution"


@pytest.fixture(scope="module")
def chapter():
    """What the chapter's cells and solutions define."""
    return load_chapter(CHAPTER, draw=draw)


def random_table(seed, rows, width=7):
    """FloatTensor[rows, width], some entries 0, each row summing to 1."""
    g = generator(seed)
    table = torch.rand(rows, width, generator=g, dtype=torch.float64) ** 3
    table[table < 0.01] = 0.0
    return table / table.sum(-1, keepdim=True)


def random_round(seed, k=4):
    """(p, Draft) of k tokens, each drawn from its row of q."""
    p, q = random_table(seed, k + 1), random_table(1000 + seed, k)
    g = generator(5000 + seed)
    tokens = torch.multinomial(q, 1, generator=g)[:, 0] if k else torch.empty(0).long()
    return p, Draft(tokens, q)


@pytest.mark.parametrize("seed", range(40))
def test_accept_and_residual_agree(chapter, seed):
    p, draft = random_round(seed)
    passed = [chapter.accept(p[i], draft.probs[i], x)
            for i, x in enumerate(draft.tokens.tolist())]
    rows = torch.stack([chapter.acceptance_row(a, b)[x]
                        for a, b, x in zip(p, draft.probs, draft.tokens)])
    torch.testing.assert_close(torch.tensor(passed).double(), acceptance(p, draft),
                               rtol=1e-6, atol=0)
    torch.testing.assert_close(rows, acceptance(p, draft), rtol=0, atol=1e-15)
    for i in range(len(draft.tokens)):
        theirs = residual(p, draft, i)
        theirs = theirs / theirs.sum()
        for name in ("residual", "safe_residual"):
            ours = getattr(chapter, name)(p[i], draft.probs[i])
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-15)


def test_residual_agrees_where_p_equals_q(chapter):
    p = random_table(0, 2)
    draft = Draft(torch.tensor([0]), p[:1].clone())
    assert torch.equal(residual(p, draft, 0), p[0])
    torch.testing.assert_close(chapter.safe_residual(p[0], p[0]), p[0])


@pytest.mark.parametrize("k", [0, 1, 4])
def test_verify_agrees(chapter, k):
    accepted = set()
    for seed in range(60):
        p, draft = random_round(seed, k)
        u = torch.rand(k + 1, generator=generator(seed), dtype=torch.float64)
        ours = chapter.verify(p, draft.probs, draft.tokens, u)
        theirs = verify_tokens(p, draft, generator(seed))
        assert ours == (theirs.accepted, theirs.next_token)
        accepted.add(theirs.accepted)
    assert len(accepted) >= min(k + 1, 4)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_block_tests_agree(chapter, k):
    for seed in range(40):
        p, draft = random_round(seed, k)
        ours = chapter.block_tests(p, draft.probs, draft.tokens.tolist())
        theirs = prefix_acceptance(p, draft, prefix_weights(p, draft))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("i", [1, 2, 3])
def test_a_prefix_stands_with_probability_w(chapter, i):
    """Averaged over what the draft says behind it (Sun et al. 2024)."""
    V, k = 3, 3
    p, q = random_table(1, k + 1, V), random_table(2, k, V)  # rows by position
    for prefix in itertools.product(range(V), repeat=i):
        stands = 0.0
        for rest in itertools.product(range(V), repeat=k - i):
            h = chapter.block_tests(p, q, [*prefix, *rest])
            chance = math.prod(q[i + j, x].item() for j, x in enumerate(rest))
            stands += chance * (1 - (1 - h[i - 1:]).prod().item())
        w = chapter.account(p, q, prefix)[-1].item()
        assert stands == pytest.approx(w, abs=1e-12)


def test_the_page_of_verse_is_long(chapter):
    """The chapter's cell, as it stands; `fates` holds the prompt and what is new."""
    source = next(cell.source for cell in chapter_cells(CHAPTER)
                  if cell.source.startswith("prompt = pair.encode("))
    space = dict(pair=load_pair("tiny"), torch=torch, speculative=speculative,
                 ModelDrafter=ModelDrafter, Sampling=Sampling, token_fates=token_fates,
                 tokens_figure=lambda *_, **__: None)
    exec(source, space)
    assert len(space["run"].tokens) >= 100


def test_enumeration_of_the_chapter_is_exact_and_finds_faults(chapter):
    P, Q = random_table(1, 5, 5), random_table(2, 5, 5)
    gap = chapter.round_texts(P, Q, 0, 2) - chapter.target_texts(P, 0, 3)
    assert gap.abs().max() < 1e-12
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    q = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    left, picked = chapter.residual(p, q), torch.tensor([1.0, 0.0, 0.0]).double()
    one_token = chapter.one_token
    torch.testing.assert_close(one_token(p, q, q, left), p, rtol=0, atol=1e-15)
    sure = one_token(p, picked, picked, chapter.residual(p, picked))
    torch.testing.assert_close(sure, p, rtol=0, atol=1e-15)
    for fault in (one_token(p, picked, q, left), one_token(p, q, q, p)):
        assert (fault - p).abs().max() > 0.05


@pytest.mark.parametrize("check, name", [
    (check_acceptance, "acceptance_row"), (check_residual, "safe_residual"),
    (check_verify, "verify")])
def test_solutions_pass(chapter, check, name, capsys):
    assert said(check, getattr(chapter, name), capsys).startswith("Passed")


@pytest.mark.parametrize("check", [check_acceptance, check_residual, check_verify])
def test_stub_is_not_yet(check, capsys):
    assert said(check, stub, capsys).startswith("Not yet")


ACCEPTANCE = {
    "not clamped": lambda p, q: torch.where(q > 0, p / q, 0.0),
    "swapped": lambda p, q: torch.where(q > 0, q / p, 0.0).clamp(max=1.0),
    "divided by zero": lambda p, q: (p / q).clamp(max=1.0),
    "nan made zero, inf kept": lambda p, q: (p / q).nan_to_num(0.0).clamp(max=1.0),
    "one where q is zero": lambda p, q: torch.where(q > 0, p / q, 1.0).clamp(max=1.0),
    "the area": torch.minimum,
    "rounded to yes or no": lambda p, q: (p >= q).double(),
    "alpha only": lambda p, q: torch.minimum(p, q).sum(),
}


@pytest.mark.parametrize("wrong", ACCEPTANCE.values(), ids=ACCEPTANCE)
def test_wrong_acceptance(wrong, capsys):
    assert said(check_acceptance, wrong, capsys).startswith("Not yet")


def normalised(left):
    return left / left.sum()


def only_exact_equality(p, q):
    return p if torch.equal(p, q) else normalised((p - q).clamp(min=0))


def uniform_when_equal(p, q):
    left = (p - q).clamp(min=0)
    return normalised(left if left.sum() > 0 else torch.ones_like(p))


def not_normalised(p, q):
    left = (p - q).clamp(min=0)
    return left if left.sum() > 0 else p


RESIDUAL = {
    "divides by zero": lambda p, q: normalised((p - q).clamp(min=0)),
    "nan made zero": lambda p, q: normalised((p - q).clamp(min=0)).nan_to_num(0.0),
    "epsilon in the divisor": lambda p, q: (
        (p - q).clamp(min=0) / ((p - q).clamp(min=0).sum() + 1e-12)),
    "only exact equality": only_exact_equality,
    "uniform when equal": uniform_when_equal,
    "not normalised": not_normalised,
    "negative": lambda p, q: p - q,
    "absolute": lambda p, q: normalised((p - q).abs()),
    "swapped": lambda p, q: normalised((q - p).clamp(min=0)),
    "forgotten": lambda p, q: p,
    "softmax of the difference": lambda p, q: (p - q).softmax(-1),
}


@pytest.mark.parametrize("wrong", RESIDUAL.values(), ids=RESIDUAL)
def test_wrong_residual(wrong, capsys):
    assert said(check_residual, wrong, capsys).startswith("Not yet")


def walk(p, q, tokens, u, *, ratio=None, refill=None, bonus=None, last=None):
    """The right answer, with one part exchanged."""
    ratio = ratio or (lambda i, x: p[i, x] / q[i, x])
    refill = refill or (lambda i: (p[i] - q[i]).clamp(min=0))
    k = len(tokens)
    for i, x in enumerate(tokens.tolist()):
        if u[i] >= ratio(i, x):
            return i, draw(refill(i), u[k if last is None else last(i)].item())
    return k, draw(p[k] if bonus is None else bonus(k), u[k].item())


def accepts_after_a_rejection(p, q, tokens, u):
    k = len(tokens)
    passed = [bool(u[i] < p[i, x] / q[i, x]) for i, x in enumerate(tokens.tolist())]
    left = p[k] if all(passed) else (p[passed.index(False)]
                                     - q[passed.index(False)]).clamp(min=0)
    return sum(passed), draw(left, u[k].item())


def drops_the_bonus(p, q, tokens, u):
    accepted, word = walk(p, q, tokens, u)
    return (accepted, None) if accepted == len(tokens) else (accepted, word)


VERIFY = {
    "swapped": lambda p, q, t, u: walk(
        p, q, t, u, ratio=lambda i, x: q[i, x] / p[i, x]),
    "p alone": lambda p, q, t, u: walk(p, q, t, u, ratio=lambda i, x: p[i, x]),
    "the next row": lambda p, q, t, u: walk(
        p, q, t, u, ratio=lambda i, x: p[i + 1, x] / q[i, x]),
    "threshold at one": lambda p, q, t, u: walk(
        p, q, t, u, ratio=lambda i, x: float(p[i, x] >= q[i, x])),
    "residual forgotten": lambda p, q, t, u: walk(p, q, t, u, refill=lambda i: p[i]),
    "bonus from its residual": lambda p, q, t, u: walk(
        p, q, t, u, bonus=lambda k: (p[k] - q[k - 1]).clamp(min=0)),
    "bonus from the last residual": lambda p, q, t, u: walk(
        p, q, t, u, bonus=lambda k: (p[k - 1] - q[k - 1]).clamp(min=0)),
    "bonus from the last row": lambda p, q, t, u: walk(
        p, q, t, u, bonus=lambda k: p[k - 1]),
    "drawn with the test's number": lambda p, q, t, u: walk(
        p, q, t, u, last=lambda i: i),
    "accepts after a rejection": accepts_after_a_rejection,
    "drops the bonus": drops_the_bonus,
}


@pytest.mark.parametrize("wrong", VERIFY.values(), ids=VERIFY)
def test_wrong_verify(wrong, capsys):
    assert said(check_verify, wrong, capsys).startswith("Not yet")


@pytest.mark.parametrize("name, words", [
    ("swapped", "number of accepted drafts is wrong"),
    ("accepts after a rejection", "all behind it is void"),
    ("residual forgotten", "word 0 is what p would give"),
    ("drawn with the test's number", "u[K] is kept for the last word"),
    ("bonus from its residual", "nothing is subtracted")])
def test_the_hint_names_the_part_that_is_wrong(name, words, capsys):
    assert words in said(check_verify, VERIFY[name], capsys)


def test_one_number_for_two(capsys):
    assert "two numbers" in said(check_verify, lambda *_: (1, 2, 3), capsys)
