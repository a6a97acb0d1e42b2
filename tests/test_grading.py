"""What hidden tests rely on: own work only, the package out of reach, right results."""
import functools

import pytest
import torch
from helpers import generator

from nds_helpers.classroom import grading
from nds_helpers.decoding import (
    Draft,
    ModelDrafter,
    probabilities,
    residual,
    speculative,
    verify_tokens,
)
from nds_helpers.decoding.verify import conclude

CELL = "ipykernel_1/2.py"


def written(source, filename=CELL, name="f", **given):
    """The function that a cell defines."""
    space = {"__name__": "__main__", **given}
    exec(compile(source, filename, "exec"), space)
    return space[name]


def test_a_function_of_the_notebook_is_its_own():
    own = written("def f(x):\n    return x")
    assert grading.own(own) is own
    assert grading.own(torch.no_grad()(own))(3) == 3
    cached = functools.lru_cache(own)
    assert grading.own(cached) is cached
    grading.own(written("f = lambda x: x"))
    grading.own(written("def f(x): pass", filename="<timed exec>"))


@pytest.mark.parametrize("answer", [
    residual,
    probabilities,
    functools.partial(residual, None),
    torch.softmax,
    written("def f(x): pass", filename="<string>"),
    written("def f(x): pass", filename="/somewhere/answers.py"),
    ModelDrafter.propose,
    None,
    3,
], ids=str)
def test_anything_else_is_not(answer):
    with pytest.raises(AssertionError, match="wasn't written in|isn't a function"):
        grading.own(answer)


def test_the_package_is_out_of_reach_under_every_name():
    draft = Draft(torch.tensor([0]), torch.tensor([[1.0, 0.0]]))
    left = torch.full((2, 2), 0.5), draft, 0
    wrapped = written("def f(*given):\n    return it(*given)", it=residual)
    with grading.package_hidden(residual, speculative, ModelDrafter.propose, conclude):
        for call, given in [(residual, left), (wrapped, left), (conclude, (*left, 0.5)),
                            (verify_tokens, (left[0], draft, generator())),
                            (ModelDrafter.propose, (None, left[0], 1, None, None))]:
            with pytest.raises(AssertionError, match="the package's function"):
                call(*given)
    assert residual(*left).tolist() == [0.0, 0.5]


def test_the_package_comes_back_after_an_error():
    code = verify_tokens.__code__
    with pytest.raises(ZeroDivisionError), grading.package_hidden(verify_tokens):
        raise ZeroDivisionError
    assert verify_tokens.__code__ is code


def test_a_right_version_stands_in_for_an_earlier_answer():
    answer = written("def g(x):\n    return -1\n\ndef f(x):\n    return g(x)")
    with grading.standing_in(answer, g=lambda x: x + 1, new=3):
        assert answer(1) == 2
    assert answer(1) == -1
    assert "new" not in answer.__globals__


def test_require_tells_the_idea_and_not_the_case():
    answer = written("def f(x):\n    return x + 1")
    grading.require(answer, [((1,), 2, "add one.")])
    with pytest.raises(AssertionError) as told:
        grading.require(answer, [((41,), 43, "add two.")])
    assert str(told.value) == "f: add two."


def test_require_wants_the_arguments_unchanged():
    answer = written("def f(x):\n    x += 1\n    return x")
    with pytest.raises(AssertionError, match="f changes its arguments"):
        grading.require(answer, [((torch.ones(2),), torch.ones(2) + 1, "add one.")])
