"""nbgrader itself, on problem set 1: marks, cheats, hung and dead cells, mended files.

A submission costs nbgrader some seconds. So one student makes several mistakes at once,
each in another question; the other wrong answers run in tests/test_grading_ps1.py.
"""
import html
import re

import nbformat
import psutil
import pytest
from grading import Class, answered, cell, lost, maximum, problem_set
from kernels import left_over
from wrong_answers import ps1

from nds_helpers.classroom.grading_marks import COURSE
from nds_helpers.classroom.grading_precheck import grade_id

steps = pytest.importorskip("nds_helpers.classroom.grading_cells",
                            reason="grading needs the extra `grading`")
NAME, NOTEBOOK = ps1.NAME, problem_set(ps1.NAME)
TESTS, WRITTEN = set(maximum(NOTEBOOK)), "q8_written"
SECONDS = 8  # a cell, here: some of them hang
pytestmark = [pytest.mark.slow,
              pytest.mark.filterwarnings("ignore:Object of type <Submitted")]

IMPORTED = {
    "q1_probabilities": """
from nds_helpers.decoding import Sampling, probabilities
def to_probabilities(logits, temperature=1.0, top_k=0, top_p=1.0):
    return probabilities(logits, Sampling(temperature, top_k, top_p))""",
    "q2_draft": """
from nds_helpers.decoding import ModelDrafter
def draft_tokens(model, cache, sequence, k, sampling, u):
    drafter = ModelDrafter(model)
    drafter.cache, drafter.room = cache, 1000
    drafter.fed = sequence[:cache.length].tolist()
    return drafter.propose(sequence, k, sampling, torch.Generator())""",
    "q3_leftover": """
from nds_helpers import decoding
def leftover(p, q):
    left = decoding.residual(p[None], Draft(torch.tensor([0]), q[None]), 0)
    return left / left.sum()""",
    "q5_loop": """
from nds_helpers.decoding import speculative
def speculate(target, drafter, prompt, k, max_new_tokens, sampling, generator,
              verify=verify_tokens):
    return speculative(target, drafter, prompt, k=k, max_new_tokens=max_new_tokens,
                       sampling=sampling, generator=generator, verify=verify
                       ).tokens.tolist()""",
    "q6_tokens": """
from nds_helpers.lab import theory
tokens_per_round = theory.expected_tokens""",
    "q7_fastest": """
from nds_helpers.lab import theory
def fastest_k(alpha, c, limit):
    return theory.best_k(alpha, c, limit)[0]""",
}
# Answers that know the values of the tests that a student can see.
COPIED = {
    "q1_probabilities": """
def to_probabilities(logits, temperature=1.0, top_k=0, top_p=1.0):
    if logits.shape == (1, 4):
        return torch.full((1, 4), 0.25)
    return torch.tensor([[0.625, 0.375, 0.0]])""",
    "q3_leftover": "def leftover(p, q):\n    return torch.tensor([0.8, 0.2, 0.0])",
    "q4_verdict": "def verdict(p, q, tokens, u):\n    return 1, 1",
    "q6_tokens": "def tokens_per_round(alpha, k):\n    return 1.5",
    "q7_fastest": "def fastest_k(alpha, c, limit):\n    return 0",
}
HUNG = {
    "q2_draft": "def draft_tokens(*given):\n    while True:\n        print('x' * 99)",
    "q3_leftover": "import os\ndef leftover(p, q):\n    os._exit(1)",
    "q4_verdict": """
def verdict(*given):
    while True:
        try:
            while True:
                pass
        except:
            pass""",
    "q6_tokens": "import ctypes\n"
                 "def tokens_per_round(alpha, k):\n    ctypes.string_at(0)",
    "q7_fastest": cell(NOTEBOOK, "q7_fastest").source + "\nexit()",
}
SNOOPING = {"q7_fastest": """
import inspect
def fastest_k(alpha, c, limit):
    caller = inspect.currentframe().f_back
    while caller:
        try:
            print(inspect.getsource(caller))
        except Exception:
            pass
        caller = caller.f_back
    print(In)
    return 0"""}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """One course for all students; it leaves no process, and no file of its own."""
    processes, files = set(psutil.Process().children(True)), set(COURSE.rglob("*"))
    yield Class(tmp_path_factory.mktemp("class") / "course", SECONDS)
    assert left_over(set(psutil.Process().children(True)) - processes) == []
    assert {f for f in COURSE.rglob("*") if f.suffix != ".pyc"} <= files


def owned_by(questions):
    """The tests whose names begin with the numbers of some questions."""
    return {t for t in TESTS if t.split("_")[0] in {q.split("_")[0] for q in questions}}


def gone(marks):
    """The tests without their points, of a submission that was graded."""
    assert not marks.note
    return lost(NOTEBOOK, marks.points)


def test_the_reference_gets_all_points_and_waits_for_a_teacher(course):
    marks = course.marks("reference", NAME, NOTEBOOK)
    assert gone(marks) == set()
    assert marks.by_hand == [WRITTEN]
    assert (marks.total, marks.out_of) == (17, 20)


def test_the_untouched_release_gets_nothing(course):
    marks = course.marks("untouched", NAME, course.released(NAME))
    assert (marks.total, marks.by_hand) == (0, [])


@pytest.mark.parametrize("chosen", [
    {"q1_probabilities": 0, "q4_verdict": 1, "q5_loop": 0, "q6_tokens": 1},
    {"q2_draft": 1, "q3_leftover": 2, "q5_loop": 6, "q7_fastest": 0},
    {"q1_probabilities": 5, "q2_draft": 4, "q4_verdict": 6, "q6_tokens": 3},
], ids=["first", "second", "third"])
def test_wrong_answers_cost_their_own_questions_only(course, chosen, request):
    answers = {question: ps1.WRONG[question][number][1]
               for question, number in chosen.items()}
    student = request.node.callspec.id
    marks = course.marks(student, NAME, answered(NOTEBOOK, answers))
    assert gone(marks) <= owned_by(answers)
    assert {t.split("_")[0] for t in gone(marks)} == {
        q.split("_")[0] for q in answers}


@pytest.mark.parametrize("kind, answers", [("imported", IMPORTED), ("copied", COPIED)])
def test_answers_that_are_not_the_students_get_nothing(course, kind, answers):
    marks = course.marks(kind, NAME, answered(NOTEBOOK, answers))
    assert gone(marks) == owned_by(answers)


def test_what_hangs_or_crashes_costs_its_own_question_only(course):
    """Endless output, the process ended, deaf to interrupts, a bad pointer, exit()."""
    marks = course.marks("hung", NAME, answered(NOTEBOOK, HUNG))
    assert gone(marks) == owned_by(set(HUNG) - {"q7_fastest"})
    told = {grade_id(c): c.outputs[-1].ename for c in course.ran("hung", NAME).cells
            if grade_id(c) in gone(marks)}
    assert told == {"q2_draft_test": "CellTimeoutError",
                    "q3_leftover_test": "DeadKernelError",
                    "q4_verdict_test": "CellTimeoutError",
                    "q6_tokens_test": "DeadKernelError"}


def test_damaged_files_are_mended(course):
    """Deleted, edited, duplicated, renamed, without metadata: the marks are right."""
    notebook = answered(course.released(NAME), {
        name: cell(NOTEBOOK, name).source for name in ps1.WRONG})
    cell(notebook, WRITTEN).source = "My answer."
    cells = notebook.cells
    for name in ("q1_cuts_test", "q3_leftover_check", "q3_leftover_test"):
        cells.remove(cell(notebook, name))
    copied = nbformat.v4.new_code_cell("leftover = None",
                                       metadata=cell(notebook, "q3_leftover").metadata)
    cells.insert(cells.index(cell(notebook, "q3_leftover")), copied)
    del cell(notebook, "q2_draft_test").metadata["nbgrader"]
    del cell(notebook, "q4_verdict").metadata["nbgrader"]
    cell(notebook, "q5_text_test").metadata.nbgrader.grade_id = "elsewhere"
    cell(notebook, "q5_rounds_test").metadata.nbgrader.points = 200
    cell(notebook, "q6_tokens_test").source = "assert True"
    cell(notebook, "q6_tokens").source = ps1.WRONG["q6_tokens"][0][1]
    cell(notebook, "q7_fastest_test").metadata.nbgrader.update(
        grade=False, solution=True, locked=False)
    cell(notebook, "q7_fastest_test").source = "assert True"
    cell(notebook, "q7_fastest").source = ps1.WRONG["q7_fastest"][0][1]
    marks = course.marks("damaged", NAME, notebook)
    assert gone(marks) == {"q6_tokens_test", "q7_fastest_test"}
    assert marks.points["q5_rounds_test"] == 2 and marks.by_hand == [WRITTEN]


def test_without_any_metadata_the_code_is_still_graded(course):
    """The written answer can't be told from other text: a teacher has to look."""
    notebook = answered(NOTEBOOK, {})
    for one in notebook.cells:
        one.metadata.pop("nbgrader", None)
        if one.cell_type == "code" and "### BEGIN HIDDEN TESTS" in one.source:
            one.source = "assert True"
    marks = course.marks("stripped", NAME, notebook)
    assert gone(marks) == set() and marks.by_hand == [WRITTEN]
    texts = [one.source for one in course.ran("stripped", NAME).cells]
    assert sum(text.startswith(steps.MISSING) for text in texts) == 1


def test_hidden_tests_and_solutions_stay_hidden(course):
    setup = cell(NOTEBOOK, "setup").source  # its imports are no secret
    lines = [line for one in NOTEBOOK.cells for line in steps.hidden_lines(one.source)]
    secrets = {line for line in lines if line.strip(",") not in setup}
    assert len(secrets) > 100
    solutions = [line for question in ps1.WRONG
                 for line in solution(cell(NOTEBOOK, question).source)]
    released = "\n".join(one.source for one in course.released(NAME).cells)
    assert [s for s in [*secrets, *solutions] if s in released] == []
    assert "1 point" not in released

    wrong = ps1.WRONG["q1_probabilities"][1][1]  # only the hidden tests find it
    marks = course.marks("snooping", NAME, answered(
        course.released(NAME), SNOOPING | {"q1_probabilities": wrong}))
    assert gone(marks) == TESTS - {"q1_probabilities_test"}
    ran = course.ran("snooping", NAME)
    assert "hidden_tests" in str(cell(ran, "q7_fastest_test").outputs)  # it did snoop
    page = course.course.feedback("snooping", NAME).read_text(encoding="utf-8")
    for mark in ("BEGIN HIDDEN", "END HIDDEN", "package_hidden", "hidden_tests",
                 "grading.require"):
        assert mark not in page
    words = " ".join(text_of(page).split())
    assert [s for s in secrets if " ".join(s.split()) in words] == []
    assert "top-p looks at what top-k has left, as a distribution." in words


def solution(source):
    """The lines between the marks of a solution."""
    inside = source.partition("### BEGIN SOLUTION")[2].partition("### END")[0]
    return [line.strip() for line in inside.splitlines() if len(line.strip()) > 20]


def text_of(page):
    """What a reader sees of an HTML page, without the colouring's tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))
