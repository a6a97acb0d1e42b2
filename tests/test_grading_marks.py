"""From a folder of submissions to a table of marks."""
import csv
import subprocess
import sys

import nbformat
import pytest
from grading import answered, problem_set
from wrong_answers import ps1

from nds_helpers.classroom import grading_marks
from nds_helpers.classroom.grading_marks import Marks, submissions, write

NAME, NOTEBOOK = ps1.NAME, problem_set(ps1.NAME)


def hand_in(folder, student, notebook, *places, name=NAME):
    """Puts a notebook where a student hands it in."""
    place = folder.joinpath(student, *places)
    place.mkdir(parents=True)
    nbformat.write(notebook, place / f"{name}.ipynb")


def test_both_layouts_are_found(tmp_path):
    hand_in(tmp_path, "anna", NOTEBOOK)
    hand_in(tmp_path, "ben", NOTEBOOK, NAME)
    hand_in(tmp_path, "ben", NOTEBOOK, ".ipynb_checkpoints")
    (tmp_path / "notes.txt").write_text("not a student")
    (tmp_path / "cleo").mkdir()
    hand_in(tmp_path, "dan", NOTEBOOK, name="homework")
    assert submissions(tmp_path, [NAME]) == [
        ("anna", NAME, tmp_path / "anna" / f"{NAME}.ipynb", ""),
        ("ben", NAME, tmp_path / "ben" / NAME / f"{NAME}.ipynb", ""),
        ("cleo", "", None, "no notebook in this folder"),
        ("dan", "homework", None, "homework.ipynb isn't the name of a problem set"),
    ]


def test_a_missing_or_empty_folder_is_told(tmp_path):
    with pytest.raises(ValueError, match="There is no folder .*nowhere"):
        submissions(tmp_path / "nowhere", [NAME])
    with pytest.raises(ValueError, match="holds no submission: it needs one folder a"):
        submissions(tmp_path, [NAME])


def test_the_table(tmp_path):
    marks = [Marks("anna", "ps1", {"q1": 2.0, "q2": 0.0, "q3": None}, 6.0),
             Marks("ben", "ps2", {"q1": 1.5}, 2.0),
             Marks("cleo", "ps1", note="no notebook")]
    write(marks, tmp_path / "marks.csv")
    with open(tmp_path / "marks.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    common = ("student", "assignment", "total", "out_of", "mark_by_hand", "note")
    assert tuple(rows[0]) == (*common, "q1", "q2", "q3")
    assert [list(row.values()) for row in rows] == [
        ["anna", "ps1", "2", "6", "q3", "", "2", "0", ""],
        ["ben", "ps2", "1.5", "2", "", "", "1.5", "", ""],
        ["cleo", "ps1", "", "", "", "no notebook", "", "", ""],
    ]


def test_questions_are_sorted_as_people_do():
    names = ["q10_a", "q2_b", "q2_a"]
    assert sorted(names, key=grading_marks.natural) == ["q2_a", "q2_b", "q10_a"]


@pytest.mark.slow
def test_the_command_grades_what_it_can(tmp_path):
    """A name that no shell likes, an unreadable file, a wrong name, an edited copy."""
    pytest.importorskip("nbgrader", reason="grading needs the extra `grading`")
    folder = tmp_path / "handed in"
    wrong = ps1.WRONG["q6_tokens"][0][1]
    hand_in(folder, "Åsa [x] & Co", answered(NOTEBOOK, {"q6_tokens": wrong}))
    hand_in(folder, "broken", NOTEBOOK)
    (folder / "broken" / f"{NAME}.ipynb").write_text("{")
    hand_in(folder, "named", NOTEBOOK, name="homework")
    told = subprocess.run(
        [sys.executable, "-m", "nds_helpers.classroom.grading_marks", folder,
         tmp_path / "marks.csv"], capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 1 and told.stderr == ""
    lines = told.stdout.splitlines()
    assert len(lines) == 4 and lines[0].startswith("[1/3] broken")
    assert "NOT GRADED, not a notebook that can be read" in lines[0]
    assert "NOT GRADED, homework.ipynb isn't the name of a problem set" in lines[1]
    assert f"Åsa [x] & Co {NAME}: 16 of 20, to mark by hand: q8_written" in lines[2]
    assert lines[3].startswith("Submissions: 3, not graded: 2.")
    with open(tmp_path / "marks.csv", newline="", encoding="utf-8") as file:
        asa = list(csv.DictReader(file))[2]
    assert (asa["total"], asa["q6_tokens_test"], asa["q8_written"]) == ("16", "0", "")
    assert {path.name for path in tmp_path.iterdir()} == {"handed in", "marks.csv"}


def test_the_command_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["grade", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match="There is no folder"):
        grading_marks.main()
    hand_in(tmp_path, "anna", NOTEBOOK)
    monkeypatch.setattr(sys, "argv", ["grade", str(tmp_path)])
    monkeypatch.setitem(sys.modules, "nbgrader", None)
    monkeypatch.delitem(sys.modules, "nbgrader.apps", raising=False)
    with pytest.raises(SystemExit, match="Grading needs nbgrader: pip install"):
        grading_marks.main()


def test_nbgraders_log_is_read_for_the_last_error():
    log = ("Traceback (most recent call last):\n    nbformat.ValidationError: first\n"
           "[ERROR] There was an error\n  KeyError: 'second'\n")
    assert grading_marks.last_error(log) == "KeyError: 'second'"
    assert grading_marks.last_error("") == "its log names no exception"


