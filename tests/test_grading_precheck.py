"""The pre-check names what keeps a problem set from being graded."""
import subprocess
import sys

import nbformat
import pytest
from grading import Class, answered, cell, problem_set
from wrong_answers import ps1

from nds_helpers.classroom.grading_precheck import problems

NAME, NOTEBOOK = ps1.NAME, problem_set(ps1.NAME)
WRITTEN = "q8_written"


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The handed-out notebook."""
    return Class(tmp_path_factory.mktemp("class") / "course").released(NAME)


@pytest.fixture
def done(released):
    """The handed-out notebook with all answers in it, to be damaged."""
    answers = {name: cell(NOTEBOOK, name).source for name in [*ps1.WRONG, WRITTEN]}
    return answered(released, answers)


@pytest.fixture
def check(tmp_path):
    """Saves a notebook under a name, and says what is wrong with the file."""
    def saved(notebook, name=f"{NAME}.ipynb"):
        nbformat.write(notebook, tmp_path / name)
        return problems(tmp_path / name)
    return saved


def test_a_complete_file_is_fine(done, check):
    assert check(done) == []


def test_unanswered_questions_are_listed(released, check):
    assert check(released) == [f"{name}: not answered yet."
                               for name in [*ps1.WRONG, WRITTEN]]


def test_a_file_needs_its_name(done, check):
    (said,) = check(done, "ps1 final (2).ipynb")
    assert said.startswith("The file is called ps1 final (2).ipynb; it has to be "
                           f"called {NAME}.ipynb")


def test_a_duplicated_cell_is_named(done, check):
    done.cells.append(nbformat.from_dict(dict(cell(done, "q7_fastest"), id="copy")))
    said = check(done)
    assert said[0].startswith("q7_fastest: this cell occurs 2 times, and only the last")


@pytest.mark.parametrize("name", ["q2_draft", "q3_leftover_test", "setup", WRITTEN])
def test_a_missing_cell_is_named(done, check, name):
    done.cells.remove(cell(done, name))
    (said,) = check(done)
    assert said.startswith(f"{name}: this cell is missing. Take the file that was")


@pytest.mark.parametrize("name", ["q2_draft", "q3_leftover_test", "setup"])
def test_stripped_metadata_is_named(done, check, name):
    place = done.cells.index(cell(done, name)) + 1
    del cell(done, name).metadata["nbgrader"]
    (said,) = check(done)
    assert said.startswith(f"{name}: cell {place} looks like it, but has lost its meta")


def test_a_file_without_its_metadata_is_no_problem_set(done, check):
    del done.metadata["problem_set"]
    (said,) = check(done)
    assert said.startswith(f"{NAME}.ipynb isn't a handed-out problem set, or a tool")


@pytest.mark.parametrize("name", ["q1_cuts_test", "q1_probabilities_check", "setup"])
def test_an_edited_cell_is_named(done, check, name):
    cell(done, name).source += "\npass"
    (said,) = check(done)
    assert said.startswith(f"{name}: this cell was edited. Grading puts the handed-out")


def test_a_cell_of_another_kind_is_named(done, check):
    one = cell(done, "q6_tokens")
    one.cell_type = "markdown"
    del one["outputs"], one["execution_count"]
    (said,) = check(done)
    assert said.startswith("q6_tokens: this was a code cell and is now a markdown cell")


def test_a_moved_cell_is_named(done, check):
    one = cell(done, "q4_verdict_test")
    done.cells.remove(one)
    done.cells.insert(0, one)
    (said,) = check(done)
    assert said.startswith("q4_verdict_test: this cell isn't where it was.")


def test_a_cell_of_another_problem_set_is_named(done, check):
    extra = nbformat.v4.new_code_cell("1", metadata={"nbgrader": {"grade_id": "other"}})
    done.cells.append(extra)
    (said,) = check(done)
    assert said == "other: this problem set has no cell of that name. Delete it."


def test_cells_of_the_students_own_are_welcome(done, check):
    done.cells.insert(3, nbformat.v4.new_code_cell("print('notes')"))
    done.cells.append(nbformat.v4.new_markdown_cell("Notes."))
    assert check(done) == []


@pytest.mark.parametrize("text", ["", "{", '{"cells": 3}', "no JSON"])
def test_a_broken_file_is_told(tmp_path, text):
    file = tmp_path / f"{NAME}.ipynb"
    file.write_text(text)
    (said,) = problems(file)
    assert said.startswith(f"{NAME}.ipynb isn't a notebook that can be read")
    assert problems(tmp_path / "x.ipynb") == [f"There is no file {tmp_path}/x.ipynb."]


def test_the_command_says_it_and_ends_with_1(done, released, tmp_path):
    for notebook, status, words in [
        (done, 0, f"{NAME}.ipynb is complete and can be handed in.\n"),
        (released, 1, "q1_probabilities: not answered yet.\n"),
    ]:
        nbformat.write(notebook, tmp_path / f"{NAME}.ipynb")
        told = subprocess.run(
            [sys.executable, "-m", "nds_helpers.classroom.grading_precheck",
             tmp_path / f"{NAME}.ipynb"], capture_output=True, text=True)
        assert (told.returncode, told.stderr) == (status, "")
        assert told.stdout.startswith(words)
