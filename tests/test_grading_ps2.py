"""Problem set 2: right answers get their points, wrong ones lose only their own.

The many wrong answers run in this process, as a kernel would run them; one of each
question, the reference and the release go through nbgrader.
"""
import pytest
from grading import (
    Class,
    answered,
    cell,
    left_out,
    lost,
    maximum,
    number,
    numbers_of,
    points,
    problem_set,
    said,
)
from wrong_answers import ps2

NOTEBOOK = problem_set(ps2.NAME)
CASES = [pytest.param(question, source, id=f"{question}: {what}")
         for question, wrong in ps2.WRONG.items() for what, source in wrong]

# The same functions, written in another way.
OTHERWISE = {
    "q1_cut": """
def cut(count, size, block=1):
    starts, shares, begin = list(range(0, count, block)), [], 0
    for part in torch.tensor(starts).tensor_split(size):
        end = min(begin + len(part) * block, count)
        shares.append(range(begin, end))
        begin = end
    return shares
""",
    "q3_row": """
def row_linear(me, x, weight, bias):
    mine = split_evenly(weight.shape[1], me.size)[me.rank]
    term = torch.nn.functional.linear(x, weight[:, list(mine)])
    return bias + me.group.all_reduce(term)
""",
    "q5_attention": """
import torch.nn.functional as F

@torch.no_grad()
def attention_step(me, x, weights, d, plan, past):
    def rows(heads):
        return [h * d + i for h in heads for i in range(d)]

    wq, wk, wv, wo = weights
    T, P = len(x), past[0].shape[1]
    q = F.linear(x, wq[rows(plan[0])]).reshape(T, len(plan[0]), d)
    new = [F.linear(x, w[rows(plan[1])]).reshape(T, len(plan[1]), d).permute(1, 0, 2)
           for w in (wk, wv)]
    k, v = (torch.cat(both, dim=1) for both in zip(past, new))
    seen = torch.ones(T, P + T, dtype=torch.bool).tril(P)
    heads = [F.scaled_dot_product_attention(q[:, i], k[r], v[r], attn_mask=seen)
             for i, r in enumerate(plan[2])]
    y = F.linear(torch.cat(heads, -1), wo[:, rows(plan[0])])
    return me.group.all_reduce(y), [k, v]
""",
    "q7_bytes": """
def ring_bytes(count, itemsize, size):
    pieces = list(map(len, split_evenly(count, size)))
    following = pieces[1:] + pieces[:1]
    return [itemsize * (count - a + count - b) for a, b in zip(pieces, following)]
""",
}
IMPORTED = {
    "q1_cut": "def cut(count, size, block=1):\n    return split_evenly(count, size)",
    "q2_column": """
from nds_helpers.models.linear import multiply
def column_linear(me, x, weight, bias):
    spans = split_evenly(len(weight), me.size)
    own = slice(spans[me.rank].start, spans[me.rank].stop)
    y = multiply(x, weight[own], bias[own])
    return me.group.all_gather(y, -1, [len(span) for span in spans])""",
    "q4_heads": """
from nds_helpers.parallel.partitions import split_heads
def heads_of(heads, kv_heads, size, rank):
    queries, keys = split_heads(heads, kv_heads, size)[rank]
    reads = [h // (heads // kv_heads) - keys.start for h in queries]
    return queries, keys, reads""",
    "q6_norm": """
from nds_helpers.parallel.layers import SequenceParallel
def add_and_norm(me, term, stream, gain, eps):
    scheme = SequenceParallel(me.group)
    scheme.start(len(term))
    stream = stream + scheme.reduce(term)
    x = stream / (stream.square().mean(-1, keepdim=True) + eps).sqrt() * gain
    return stream, scheme.gather(x)""",
    "q7_bytes": """
def ring_bytes(count, itemsize, size):
    def sent(me):
        me.group.all_reduce(torch.zeros(count, dtype=torch.uint8))
        return me.group.calls[-1].bytes * itemsize
    return simulate(sent, size)""",
}
# Answers that know the values of the tests that a student can see.
COPIED = {
    "q1_cut": """
def cut(count, size, block=1):
    return [range(0, 2), range(2, 4)] if count == 4 else [range(8), range(8, 10)]""",
    "q3_row": "def row_linear(*given):\n    return torch.tensor([[2.0, 4.0]])",
    "q5_attention": """
def attention_step(*given):
    return torch.ones(1, 1), (torch.ones(1, 1, 1), torch.ones(1, 1, 1))""",
    "q6_norm": """
def add_and_norm(*given):
    return torch.full((1, 2), 2.0), torch.ones(1, 2)""",
    "q7_bytes": "def ring_bytes(count, itemsize, size):\n    return [8, 8]",
}


def test_the_reference_gets_all_points():
    assert lost(NOTEBOOK, points(NOTEBOOK)) == set()


def test_right_answers_of_another_make_get_all_points():
    assert lost(NOTEBOOK, points(answered(NOTEBOOK, OTHERWISE))) == set()


@pytest.mark.parametrize("question", ps2.WRONG)
def test_a_question_left_out_costs_its_own_points_only(question):
    notebook = answered(NOTEBOOK, {question: left_out(NOTEBOOK, question)})
    gone = lost(notebook, points(notebook))
    assert numbers_of(gone) == {number(question)}


@pytest.mark.parametrize("question, source", CASES)
def test_a_wrong_answer_costs_its_own_question_only(question, source):
    gone = lost(NOTEBOOK, points(answered(NOTEBOOK, {question: source})))
    assert numbers_of(gone) == {number(question)}


@pytest.mark.parametrize("answers", [IMPORTED, COPIED], ids=["imported", "copied"])
def test_answers_that_are_not_the_students_get_nothing(answers):
    gone = lost(NOTEBOOK, points(answered(NOTEBOOK, answers)))
    assert gone == {t for t in maximum(NOTEBOOK) if number(t) in numbers_of(answers)}


def test_checks_pass_the_reference_and_tell_most_wrong_answers():
    """A check may miss a mistake that the graded tests find; most it must tell."""
    told = 0
    for question, wrong in ps2.WRONG.items():
        reference = cell(NOTEBOOK, question).source
        assert said(NOTEBOOK, question, reference).startswith("Passed")
        for _, source in wrong:
            told += "Not yet" in said(NOTEBOOK, question, source)
    assert told >= 0.8 * len(CASES)


@pytest.mark.slow
def test_nbgrader_gives_the_same_marks(tmp_path):
    """The reference, the release, one wrong answer of each question, and cheats."""
    course = Class(tmp_path / "course")
    wrong = {question: answers[0][1] for question, answers in ps2.WRONG.items()}
    few = dict(list(wrong.items())[::2])
    for student, notebook, gone in [
        ("reference", NOTEBOOK, {}), ("wrong", answered(NOTEBOOK, few), few),
        ("imported", answered(NOTEBOOK, IMPORTED), IMPORTED),
    ]:
        marks = course.marks(student, ps2.NAME, notebook)
        assert not marks.note
        assert numbers_of(lost(NOTEBOOK, marks.points)) == numbers_of(gone)
        assert marks.by_hand == ["q8_written"]
    marks = course.marks("untouched", ps2.NAME, course.released(ps2.NAME))
    assert (marks.total, marks.by_hand, marks.note) == (0, [], "")
