"""What the tests of problem sets share: answers changed, cells run, files handed in.

`points` runs a notebook's cells in this process, as a kernel would, for the many
wrong answers; `Class` hands files in and grades them with nbgrader itself.
"""
import contextlib
import copy
import io
import re
from pathlib import Path

import nbformat
import pytest

from nds_helpers.classroom.grading_marks import COURSE, Course
from nds_helpers.classroom.grading_precheck import grade_id


def problem_set(name):
    """A problem set as its authors wrote it, with solutions and hidden tests."""
    return nbformat.read(COURSE / "source" / name / f"{name}.ipynb", as_version=4)


def cell(notebook, name):
    """The cell of that name."""
    return next(c for c in notebook.cells if grade_id(c) == name)


def answered(notebook, answers):
    """A copy of a notebook with other sources in some cells, {name: source}."""
    notebook = copy.deepcopy(notebook)
    for name, source in answers.items():
        cell(notebook, name).source = source
    return notebook


def left_out(notebook, question):
    """The source of an answer cell as students get it: nothing is answered."""
    solution = re.compile(r"^( *)### BEGIN SOLUTION.*?### END SOLUTION", re.S | re.M)
    return solution.sub(r"\1raise NotImplementedError", cell(notebook, question).source)


def altered(name, question, *changes):
    """A reference answer in which (old, new) pieces are exchanged.

    Args:
        name: of the problem set.
        question: of the answer cell.
        changes: pairs; each old piece occurs exactly once.
    """
    source = cell(problem_set(name), question).source
    for old, new in changes:
        assert source.count(old) == 1, (question, old)
        source = source.replace(old, new)
    return source


def wrong(name, question, *answers):
    """Wrong answers to a question, made from the reference.

    Args:
        name: of the problem set.
        question: of the answer cell.
        answers: tuples (what is wrong, old, new, old, new, ...).

    Returns:
        list of (what is wrong, source).
    """
    return [(what, altered(name, question, *zip(pieces[::2], pieces[1::2])))
            for what, *pieces in answers]


def number(name):
    """The question that a cell belongs to, "q1"."""
    return name.partition("_")[0]


def numbers_of(names):
    """The questions that cells belong to."""
    return set(map(number, names))


def maximum(notebook):
    """{test: its points} of all cells that are marked by running them."""
    return {grade_id(c): c.metadata.nbgrader.points for c in notebook.cells
            if c.cell_type == "code" and c.metadata.nbgrader.get("grade")}


def points(notebook):
    """{test: points earned}: the cells run in this process, one after the other.

    The checks for students are left out: they are no part of a mark.
    """
    space, earned = {"__name__": "__main__"}, {}
    for number, one in enumerate(notebook.cells):
        name = grade_id(one)
        if one.cell_type != "code" or str(name).endswith("_check"):
            continue
        try:
            code = compile(one.source, f"ipykernel_0/{number}.py", "exec")
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, space)
            earned[name] = one.metadata.get("nbgrader", {}).get("points", 0)
        except Exception:
            earned[name] = 0
    return {name: earned[name] for name in maximum(notebook)}


def said(notebook, question, source, *earlier):
    """What the student's check prints about an answer.

    Args:
        notebook: the problem set.
        question: of the answer cell.
        source: the answer.
        earlier: answer cells whose functions it may call.
    """
    space, text = {"__name__": "__main__"}, io.StringIO()
    for name in ("setup", *earlier):
        exec(cell(notebook, name).source, space)
    exec(source, space)
    with contextlib.redirect_stdout(text):
        exec(cell(notebook, f"{question}_check").source, space)
    return text.getvalue()


def lost(notebook, earned):
    """The tests without their points."""
    return {name for name, most in maximum(notebook).items() if earned[name] < most}


class Class:
    """A course in a temporary folder, in which students hand in and get marks."""

    def __init__(self, folder, seconds=None):
        pytest.importorskip("nbgrader", reason="grading needs the extra `grading`")
        folder.mkdir()
        self.course = Course(folder)
        if seconds:
            self.course.config.RunEveryCell.timeout = seconds
        self.folder = folder

    def released(self, name):
        """The notebook that students get."""
        return nbformat.read(self.course.release(name), as_version=4)

    def marks(self, student, name, notebook):
        """Hands a notebook in and grades it; returns Marks."""
        file = self.folder / f"{student}.ipynb"
        nbformat.write(notebook, file)
        return self.course.grade(student, name, file)

    def ran(self, student, name):
        """The notebook as it is after grading, with its outputs."""
        path = Path(self.folder, "autograded", student, name, f"{name}.ipynb")
        return nbformat.read(path, as_version=4)
