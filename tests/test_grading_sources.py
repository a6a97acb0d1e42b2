"""Every problem set keeps the rules of the house: cells, names, points, lines."""
import re

import pytest
from grading import maximum, problem_set

from nds_helpers.classroom.grading_marks import assignments
from nds_helpers.classroom.grading_precheck import grade_id
from notebooks import run


@pytest.fixture(params=assignments())
def notebook(request):
    """Each problem set in turn."""
    return problem_set(request.param)


def test_it_is_stripped_and_names_its_kernel(notebook):
    assert notebook.metadata.kernelspec == run.KERNEL
    for cell in notebook.cells:
        assert not cell.get("outputs") and not cell.get("execution_count")


def test_the_opening_says_what_it_takes(notebook):
    opening = notebook.cells[0].source
    for words in ("You will build", "You need", "Minutes", "20 points"):
        assert words in opening


def test_points_sum_to_twenty(notebook):
    points = [c.metadata.nbgrader.points for c in notebook.cells
              if c.metadata.get("nbgrader", {}).get("grade")]
    assert sum(points) == 20 and all(p > 0 for p in points)


def test_names_are_readable_and_unique(notebook):
    names = [grade_id(cell) for cell in notebook.cells if grade_id(cell)]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"setup\w*|q\d+_[a-z_]+", name) for name in names)
    assert all(c.metadata.nbgrader.schema_version == 3
               for c in notebook.cells if grade_id(c))


def test_all_code_belongs_to_the_problem_set(notebook):
    """A student's own cells are then known by their having no name."""
    assert all(grade_id(cell) for cell in notebook.cells if cell.cell_type == "code")


def test_answers_have_a_check_and_tests(notebook):
    names = [grade_id(cell) for cell in notebook.cells]
    tested = {name.split("_")[0] for name in maximum(notebook)}
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.metadata.nbgrader.solution:
            assert "### BEGIN SOLUTION" in cell.source
            assert f"{grade_id(cell)}_check" in names
            assert grade_id(cell).split("_")[0] in tested


def test_tests_hide_something(notebook):
    for cell in notebook.cells:
        if grade_id(cell) in maximum(notebook):
            assert cell.source.count("### BEGIN HIDDEN TESTS") == 1
            assert cell.source.endswith("### END HIDDEN TESTS")
            assert "grading.own(" in cell.source


def test_lines_fit_the_page(notebook):
    long = [line for cell in notebook.cells if cell.cell_type == "code"
            for line in cell.source.splitlines() if len(line) > 80]
    assert long == []
