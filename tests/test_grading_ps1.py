"""Problem set 1: right answers get their points, wrong ones lose only their own.

The many wrong answers run in this process, as a kernel would run them. A dozen of them
go through nbgrader in tests/test_grading_course.py.
"""
import pytest
from grading import (
    altered,
    answered,
    cell,
    left_out,
    lost,
    number,
    numbers_of,
    points,
    problem_set,
    said,
)
from wrong_answers import ps1

NOTEBOOK = problem_set(ps1.NAME)
CASES = [pytest.param(question, source, id=f"{question}: {what}")
         for question, wrong in ps1.WRONG.items() for what, source in wrong]

# Answers may call an earlier one.
EARLIER = {"q4_verdict": ["q3_leftover"], "q7_fastest": ["q6_tokens"]}

# The same functions, written in another way.
OTHERWISE = {
    "q1_probabilities": """
def cut(p, keep):
    p = p * keep
    return p / p.sum(-1, keepdim=True)

@torch.no_grad()
def to_probabilities(logits, temperature=1.0, top_k=0, top_p=1.0):
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]) * 1.0
    p = torch.exp(logits.double() / temperature)
    rank = p.argsort(-1, descending=True).argsort(-1)
    p = cut(p, rank < (top_k or p.shape[-1]))
    likelier = torch.stack([(row * (row[None] > row[:, None])).sum(-1) for row in p])
    return cut(p, likelier < top_p) if top_p < 1 else p
""",
    "q4_verdict": """
def verdict(p, q, tokens, u):
    print("k =", len(tokens))
    accepted = 0
    while accepted < len(tokens):
        x = int(tokens[accepted])
        if float(u[accepted]) < min(1.0, float(p[accepted][x]) / float(q[accepted][x])):
            accepted += 1
        else:
            weights = leftover(p[accepted], q[accepted])
            return accepted, draw(weights, float(u[len(tokens)]))
    return accepted, draw(p[accepted], float(u[accepted]))
""",
    "q6_tokens": """
def tokens_per_round(alpha, k):
    return k + 1.0 if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)
""",
    "q7_fastest": """
import warnings

def fastest_k(alpha, c, limit):
    warnings.warn("a warning is no error")
    best, fastest = 0, 1.0
    for k in range(1, limit + 1):
        speed = tokens_per_round(alpha, k) / (1 + k * c)
        if speed > fastest * (1 + 1e-12):
            best, fastest = k, speed
    return best
""",
}


def test_the_reference_gets_all_points():
    assert lost(NOTEBOOK, points(NOTEBOOK)) == set()


@pytest.mark.filterwarnings("ignore:a warning is no error")
def test_right_answers_of_another_make_get_all_points():
    notebook = answered(NOTEBOOK, OTHERWISE)
    assert lost(notebook, points(notebook)) == set()


@pytest.mark.parametrize("question", ps1.WRONG)
def test_a_question_left_out_costs_its_own_points_only(question):
    notebook = answered(NOTEBOOK, {question: left_out(NOTEBOOK, question)})
    gone = lost(notebook, points(notebook))
    assert numbers_of(gone) == {number(question)}


@pytest.mark.parametrize("question, source", CASES)
def test_a_wrong_answer_costs_its_own_question_only(question, source):
    notebook = answered(NOTEBOOK, {question: source})
    gone = lost(notebook, points(notebook))
    number = question.partition("_")[0]
    assert gone and {name.partition("_")[0] for name in gone} == {number}


def test_checks_pass_the_reference_and_tell_most_wrong_answers():
    """A check may miss a mistake that the graded tests find; most it must tell."""
    told = 0
    for question, wrong in ps1.WRONG.items():
        reference = cell(NOTEBOOK, question).source
        earlier = EARLIER.get(question, ())
        assert said(NOTEBOOK, question, reference, *earlier).startswith("Passed")
        for _, source in wrong:
            told += "Not yet" in said(NOTEBOOK, question, source, *earlier)
    assert told >= 0.8 * len(CASES)


def test_alterations_must_change_something():
    with pytest.raises(AssertionError):
        altered(ps1.NAME, "q6_tokens", ("no such text", ""))
