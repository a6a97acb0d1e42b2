"""Chapter 02: checks catch the plausible mistakes, cells agree with the package."""
import pytest
import torch
from helpers import Recorder, TableModel, load_chapter, random_rule, stub

from nds_helpers.classroom.draft import (
    check_commit,
    check_count_accepted,
    check_look_up,
)
from nds_helpers.decoding import (
    ModelDrafter,
    NGramDrafter,
    Sampling,
    autoregressive,
    speculative,
)
from nds_helpers.lab.rounds import settle
from nds_helpers.models import load_pair

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def chapter():
    """What the chapter's cells and solutions define."""
    return load_chapter("02_draft_then_verify", settle=settle)


@pytest.fixture(scope="module")
def pair():
    """The tiny pair in float64, where wide and narrow forwards choose alike."""
    return load_pair("tiny", dtype=torch.float64)


def kept(rounds):
    """What the rounds of two loops can be compared by."""
    return [(r.k, r.guesses, r.accepted, r.kind, r.tokens) for r in rounds]


@pytest.mark.parametrize("k", [0, 1, 2, 4, 7])
def test_loop_equals_the_package_on_the_tiny_pair(chapter, pair, k):
    prompt = pair.encode("HELENA.\nO, that my lord")
    settings = dict(max_new_tokens=16, sampling=GREEDY)
    rounds = chapter.speculate(pair.target, pair.draft, prompt, k, 16)
    theirs = speculative(pair.target, ModelDrafter(pair.draft), prompt, k=k, **settings)
    plain = autoregressive(pair.target, prompt, **settings)
    assert chapter.tokens_of(rounds) == plain.tokens.tolist()
    assert kept(rounds) == kept(theirs.trace)


@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("seed", range(10))
def test_loop_equals_the_package_with_end_tokens(chapter, seed, k):
    """Two end tokens of seven ids; the draft agrees with the target now and then."""
    rules = random_rule(seed, 7), random_rule(100 + seed, 7)
    target = TableModel(rules[0], 7, end_token_ids=(5, 6))
    draft = TableModel(lambda prefix: rules[len(prefix) % 3 == 0](prefix), 7)
    for prompt in (torch.tensor([1, 2, seed % 5]), torch.tensor([3])):
        for count in (1, 4, 15):
            rounds = chapter.speculate(target, draft, prompt, k, count, {5, 6})
            theirs = speculative(target, ModelDrafter(draft), prompt, k=k,
                                 max_new_tokens=count, sampling=GREEDY)
            assert kept(rounds) == kept(theirs.trace)
            assert chapter.tokens_of(rounds) == theirs.tokens.tolist()


def test_one_target_forward_a_round_and_a_draft_that_catches_up(chapter):
    """Draft equal to target: every round commits K + 1, the draft then reads two."""
    rule = random_rule(3, 7)
    target, draft = Recorder(TableModel(rule, 7)), Recorder(TableModel(rule, 7))
    rounds = chapter.speculate(target, draft, torch.tensor([1, 2]), 3, 12)
    assert [len(r.tokens) for r in rounds] == [4, 4, 4]
    assert target.widths == [1, 4, 4, 4]  # the prompt but its last token, then rounds
    assert draft.widths == [2, 1, 1, 2, 1, 1, 2, 1, 1]


def test_a_draft_that_misses_a_token_costs_rounds_only(chapter):
    rule = random_rule(4, 7)
    target, prompt = TableModel(rule, 7), torch.tensor([1, 2])
    right = chapter.speculate(target, target, prompt, 3, 40)
    wrong = chapter.speculate(target, chapter.LastOnly(target), prompt, 3, 40)
    assert chapter.tokens_of(wrong) == chapter.tokens_of(right)
    assert len(wrong) > len(right) == 10


@pytest.mark.parametrize("seed", range(30))
def test_the_exercise_commits_what_the_package_settles(chapter, seed):
    g = torch.Generator().manual_seed(seed)
    choices = torch.randint(4, (1 + seed % 5,), generator=g).tolist()
    noise = torch.randint(4, (len(choices),), generator=g).tolist()
    guesses = [c if n else n for c, n in zip(choices[:-1], noise)]
    ours = chapter.commit(guesses, choices, {3}, len(choices))
    theirs = settle(guesses, choices, {3})
    assert ours == theirs.tokens
    assert chapter.count_accepted(guesses, choices) >= theirs.accepted


@pytest.mark.parametrize("n", [1, 2, 3])
def test_look_up_agrees_with_the_package(chapter, n):
    drafter = NGramDrafter(longest=n, shortest=n)
    for seed in range(60):
        g = torch.Generator().manual_seed(seed)
        sequence = torch.randint(3, (1 + seed % 13,), generator=g)
        for k in (1, 2, 5):
            theirs = drafter.propose(sequence, k, GREEDY, None).tokens.tolist()
            assert chapter.look_up(sequence.tolist(), k, n) == theirs


def test_solutions_pass_and_stubs_do_not(chapter, capsys):
    for name, check in (("count_accepted", check_count_accepted),
                        ("commit", check_commit), ("look_up", check_look_up)):
        assert check(getattr(chapter, name))
        assert f"Passed: {name}" in capsys.readouterr().out
        assert not check(stub)
        assert "Not yet: stub is still to be written." in capsys.readouterr().out


def run(guesses, choices):
    """Length of the agreeing run, written once more."""
    differ = [i for i, guessed in enumerate(guesses) if guessed != choices[i]]
    return (differ + [len(guesses)])[0]


def whole(guesses, choices):
    """What a round commits where nothing can end."""
    n = run(guesses, choices)
    return guesses[:n] + [choices[n]]


def upto_end(tokens, ends):
    """Tokens up to and with the first end token."""
    return tokens[:next((i + 1 for i, t in enumerate(tokens) if t in ends), None)]


def earlier(sequence, n, order):
    """Start positions of earlier occurrences of the last n ids."""
    starts = [i for i in range(len(sequence) - n)
              if sequence[i:i + n] == sequence[-n:]]
    return starts[::order]


WRONG_COUNTS = {
    "agreements anywhere": lambda g, c: sum(a == b for a, b in zip(g, c)),
    "guesses that occur": lambda g, c: sum(a in c for a in g),
    "shifted the wrong way": lambda g, c: run(g, c[1:]),
    "all or nothing": lambda g, c: len(g) * (g == c[:-1]),
    "the choice counted too": lambda g, c: run(g, c) + 1,
    "agreements from the end": lambda g, c: run(g[::-1], c[-2::-1]) if g else 0,
    "none at K = 0 not thought of": lambda g, c: next(
        (i for i, (a, b) in enumerate(zip(g, c)) if a != b), None),
}

WRONG_COMMITS = {
    "no end token": lambda g, c, ends, n: whole(g, c)[:n],
    "no budget": lambda g, c, ends, n: upto_end(whole(g, c), ends),
    "no bonus": lambda g, c, ends, n: upto_end(
        whole(g, c)[:len(g)] if run(g, c) == len(g) else whole(g, c), ends)[:n],
    "always the last row": lambda g, c, ends, n: upto_end(
        g[:run(g, c)] + c[-1:], ends)[:n],
    "one row too far": lambda g, c, ends, n: upto_end(
        g[:run(g, c)] + [(c + c[-1:])[run(g, c) + 1]], ends)[:n],
    "one row too early": lambda g, c, ends, n: upto_end(
        g[:run(g, c)] + [c[max(run(g, c) - 1, 0)]], ends)[:n],
    "the rejected guess": lambda g, c, ends, n: upto_end(
        g[:run(g, c) + 1] or c[:1], ends)[:n],
    "accepted guesses only": lambda g, c, ends, n: upto_end(g[:run(g, c)], ends)[:n],
    "all choices": lambda g, c, ends, n: upto_end(c, ends)[:n],
    "the end token dropped": lambda g, c, ends, n: [
        t for t in upto_end(whole(g, c), ends)[:n] if t not in ends],
    "ends where the draft guessed an end": lambda g, c, ends, n: (
        g[:g.index(0)] + [0] if 0 in g else whole(g, c))[:n],
    "the first end id only": lambda g, c, ends, n: upto_end(
        whole(g, c), {min(ends)})[:n],
    "the bonus behind an end": lambda g, c, ends, n: (
        whole(g, c) if g[-1:] == [0] else upto_end(whole(g, c), ends))[:n],
    "budget without the last token": lambda g, c, ends, n: upto_end(
        g[:run(g, c)][:n] + [c[run(g, c)]], ends),
    "budget from the back": lambda g, c, ends, n: upto_end(whole(g, c)[-n:], ends),
}

WRONG_LOOK_UPS = {
    "more than k": lambda s, k, n: (
        [s[i + n:] for i in earlier(s, n, -1)] + [[]])[0],
    "one more than k": lambda s, k, n: (
        [s[i + n:i + n + k + 1] for i in earlier(s, n, -1)] + [[]])[0],
    "the first time": lambda s, k, n: (
        [s[i + n:i + n + k] for i in earlier(s, n, 1)] + [[]])[0],
    "with the ending": lambda s, k, n: (
        [s[i:i + n + k] for i in earlier(s, n, -1)] + [[]])[0],
    "one token matches": lambda s, k, n: (
        [s[i + 1:i + 1 + k] for i in earlier(s, 1, -1)] + [[]])[0],
    "only the first token matches": lambda s, k, n: (
        [s[i + n:i + n + k] for i in range(len(s) - n)[::-1] if s[i] == s[-n]]
        + [[]])[0],
    "finds itself": lambda s, k, n: [],
    "without overlap": lambda s, k, n: (
        [s[i + n:i + n + k] for i in earlier(s, n, -1)
         if i + n <= len(s) - n] + [[]])[0],
    "filled up to k": lambda s, k, n: (
        [(s[i + n:i + n + k] + s[-1:] * k)[:k] for i in earlier(s, n, -1)] + [[]])[0],
    "invents where there's nothing": lambda s, k, n: (
        [s[i + n:i + n + k] for i in earlier(s, n, -1)] + [s[-1:]])[0],
}


@pytest.mark.parametrize("check, answer", [
    pytest.param(check, answer, id=f"{check.__name__}: {name}")
    for check, answers in ((check_count_accepted, WRONG_COUNTS),
                           (check_commit, WRONG_COMMITS),
                           (check_look_up, WRONG_LOOK_UPS))
    for name, answer in answers.items()])
def test_wrong_answers_are_caught(check, answer, capsys):
    assert not check(answer)
    assert "Hint:" in capsys.readouterr().out


@pytest.mark.parametrize("name, words", [
    ("agreements anywhere", "Do they count?"), ("the choice counted too", "isn't one"),
    ("all or nothing", "walk from the left")])
def test_the_hint_fits_the_mistake(name, words, capsys):
    assert not check_count_accepted(WRONG_COUNTS[name])
    assert words in capsys.readouterr().out


def test_one_too_many_at_a_disagreement_only(capsys):
    assert not check_count_accepted(lambda g, c: min(run(g, c) + 1, len(g)))
    assert "one guess less" in capsys.readouterr().out


def test_the_helpers_of_these_wrong_answers_are_right(capsys):
    """So each answer above is wrong for its own reason only."""
    assert check_count_accepted(run)
    assert check_commit(lambda g, c, ends, n: upto_end(whole(g, c), ends)[:n])
    assert check_look_up(lambda s, k, n: (
        [s[i + n:i + n + k] for i in earlier(s, n, -1)] + [[]])[0])
