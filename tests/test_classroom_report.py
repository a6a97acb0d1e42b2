"""The verdict of a check, whatever a student hands over or gives back."""
import functools
import re

import pytest
import torch

from nds_helpers.classroom.decode import check_generate_greedily
from nds_helpers.classroom.distribution import check_residual
from nds_helpers.classroom.on_ranks import on_ranks
from nds_helpers.classroom.report import check, same


class Nasty:
    """Equal to everything, and can't be shown."""

    def __eq__(self, other):
        return True

    def __repr__(self):
        raise RuntimeError("no")


class Arrays:
    """An equality that answers with an array."""

    def __eq__(self, other):
        return torch.tensor([True, False])


def verdict(capsys, answer, expected):
    """What a check prints of a function that gives `answer`."""
    def give():
        return answer

    assert not check(give, [((), expected, "think.")])
    return capsys.readouterr().out


def test_a_change_of_the_arguments_is_no_pass(capsys):
    def in_place(p, q):
        p -= q
        p.clamp_(min=0)
        return p / p.sum()

    p, q = torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5])
    case = ((p, q), torch.tensor([1.0, 0.0]), "think.")
    assert not check(in_place, [case, case])
    assert "changed its arguments" in capsys.readouterr().out
    assert p.tolist() == [0.75, 0.25]


def test_an_expected_value_that_is_an_argument_stays_as_it_was(capsys):
    def scrambled(p):
        return p.mul_(2)

    p = torch.tensor([0.75, 0.25])
    assert not check(scrambled, [((p,), p, "think.")])
    assert "came     [1.5, 0.5]" in capsys.readouterr().out
    assert p.tolist() == [0.75, 0.25]


def test_residual_in_place(capsys):
    def in_place(p, q):
        p.sub_(q).clamp_(min=0)
        return p.div_(p.sum())

    for _ in range(2):  # the second time the cases are what they were
        assert not check_residual(in_place)
        assert "Not yet" in capsys.readouterr().out


@pytest.mark.parametrize("came, expected, right", [
    (1.0 + 5e-7, 1.0, True),
    (1.0 + 5e-6, 1.0, False),
    (1000.0 + 5e-6, 1000.0, False),
    (torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]).double(), True),
    (torch.tensor([1 + 0j]), torch.tensor([1.0]), False),
    (1 + 1j, 1, False),
    ((9, 8), [9, 8], True),
    (None, None, True),
    ("a", "a", True),
    (Nasty(), 1, False),
    (Nasty(), "a", False),
    (Arrays(), "a", False),
])
def test_same(came, expected, right):
    assert same(came, expected) is right


def test_a_tensor_for_a_list_is_named(capsys):
    said = verdict(capsys, torch.tensor([9, 8]), [9, 8])
    assert "expected the list [9, 8], came a tensor\n" in said


@pytest.mark.parametrize("answer, shown", [
    (Nasty(), "a Nasty that can't be shown"), (None, "None"), (1 + 1j, "(1+1j)"),
    ([Nasty()], "a list that can't be shown")])
def test_any_answer_is_shown(capsys, answer, shown):
    assert f"came     {shown}\n" in verdict(capsys, answer, [1])


def faulty(x):
    """An error in a line of its own, behind a line of somebody else's."""
    return torch.stack([x,
                        torch.tensor([1.0])[x]])


@pytest.mark.parametrize("function, words", [
    (faulty, r"in your line \d+: torch.tensor\(\[1.0\]\)\[x\]\]\)\n"),
    (torch.inference_mode()(faulty), r"in your line \d+: torch.tensor"),
    (lambda: 1, r"other arguments than yours takes, <lambda>\(\); keep the first"),
])
def test_an_error_in_the_first_case_gets_the_line_at_fault(capsys, function, words):
    assert not check(function, [((5,), 2, "think.")])
    said = capsys.readouterr().out
    assert re.search(words, said) and "think." not in said


def test_an_error_outside_of_every_line_gets_the_cases_hint(capsys):
    bare = type("Bare", (), {"__call__": max})()
    assert not check(bare, [((5,), 2, "think.")])
    assert capsys.readouterr().out.count("Hint") == 1


def wrong_side(me, x):
    return x @ torch.ones(3, 3)


def gathers_nothing(me, x):
    return me.group.all_gather(None if me.rank else x)


def wrong_dtype(me, x):
    return me.group.all_reduce(torch.ones(2, dtype=torch.long) @ x)


@pytest.mark.parametrize("function, line", [
    (wrong_side, "return x @ torch.ones(3, 3)"),
    (gathers_nothing, "return me.group.all_gather(None if me.rank else x)"),
    (wrong_dtype, "return me.group.all_reduce(torch.ones(2, dtype=torch.long) @ x)"),
])
def test_an_error_on_a_rank_gets_the_line_at_fault(capsys, function, line):
    assert not check(on_ranks(function), [((2, torch.ones(2)), None, "think.")])
    said = capsys.readouterr().out
    assert "raised RuntimeError: on rank " in said
    assert re.search(r"Hint: it happened in your line \d+: " + re.escape(line), said)
    assert said.count("Hint") == 1


def test_a_call_on_a_rank_that_does_not_fit_is_told_the_arguments(capsys):
    assert not check(on_ranks(lambda me: 1), [((1, 2), None, "think.")])
    said = capsys.readouterr().out
    assert "other arguments than yours takes, <lambda>(me); keep the first" in said


def test_a_rank_that_stays_away_gets_the_cases_hint(capsys):
    def absent(me):
        return me.group.all_reduce(torch.ones(1)) if me.rank else 1

    assert not check(on_ranks(absent), [((2,), None, "think.")])
    said = capsys.readouterr().out
    assert "every rank must take part" in said
    assert re.findall("Hint: (.*)", said) == ["think."]


def test_an_error_in_a_later_case_gets_its_hint_too(capsys):
    cases = [((1,), 1, "begin."), ((0,), 0, "think.")]
    assert not check(lambda x: 1 // x, cases)
    said = capsys.readouterr().out
    assert "in your line" in said and "think." in said and "begin." not in said


@pytest.mark.parametrize("came, expected, words", [
    (torch.tensor([9, 8]), [9, 8], "a list of 2"), (3, (1, 2), "a tuple of 2"),
    ("a", 1, "a plain int"), (torch.ones(2), torch.ones(3), r"shape (3,)"),
    (None, [1], "does every path end in a return?"),
    ([9], [9, 8], "think."), (2, 1, "think."), ((1, 3), (1, 2), "think."),
    (torch.zeros(3), torch.ones(3), "think.")])
def test_an_answer_of_the_wrong_type_is_told_the_type(capsys, came, expected, words):
    said = verdict(capsys, came, expected)
    assert words.lower() in said.lower()
    assert said.count("Hint") == 1


def test_a_hint_may_depend_on_what_came(capsys):
    assert not check(lambda: 3, [((), 2, lambda came: f"{came} is one too many.")])
    assert "Hint: 3 is one too many.\n" in capsys.readouterr().out


def test_nothing_came(capsys):
    assert not check_generate_greedily(lambda *_: None)
    assert "came     None\n" in capsys.readouterr().out


@pytest.mark.parametrize("checks", [
    lambda function: check(function, [((1,), 2, "think.")]), check_generate_greedily])
@pytest.mark.parametrize("given", [3, None, "double", [1]])
def test_what_is_no_function_gets_one_sentence(capsys, checks, given):
    assert not checks(given)
    said = capsys.readouterr().out
    assert said == f"Not yet: the check wants your function, and got {given!r}.\n"


def test_a_function_needs_no_name(capsys):
    class Doubler:
        def __call__(self, x):
            return 2 * x

    cases = [((1,), 2, "think.")]
    assert check(functools.partial(int.__mul__, 2), cases) and check(Doubler(), cases)
    said = capsys.readouterr().out
    assert "Passed: partial does" in said and "Passed: Doubler does" in said
