"""From a folder of submissions to a table of marks: what `make grade` runs.

    python -m nds_helpers.classroom.grading_marks FOLDER marks.csv

nbgrader works in a temporary copy of the course; nothing else is written.
"""
import argparse
import csv
import re
import shutil
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

COURSE = Path(__file__).resolve().parents[2] / "notebooks" / "assignments"


@dataclass
class Marks:
    """What one submission has earned.

    Attributes:
        student, assignment: names.
        points: {question: points so far}; None where a teacher has to mark it.
        out_of: points of the whole problem set.
        note: why there are no marks, or an empty string.
    """

    student: str
    assignment: str
    points: dict = field(default_factory=dict)
    out_of: float = 0
    note: str = ""

    @property
    def total(self):
        """Points so far, without the questions that are still to be marked."""
        return sum(p for p in self.points.values() if p is not None)

    @property
    def by_hand(self):
        """The questions that a teacher has to mark."""
        return [question for question, p in self.points.items() if p is None]


class Course:
    """A copy of the nbgrader course in a folder of its own.

    Args:
        folder: where the copy goes; an empty folder.
        source: the course, with nbgrader_config.py and source/.
    """

    def __init__(self, folder, source=COURSE):
        from nbgrader.apps import NbGraderAPI
        from traitlets.config.loader import PyFileConfigLoader

        self.folder = Path(folder)
        shutil.copy(source / "nbgrader_config.py", self.folder)
        shutil.copytree(source / "source", self.folder / "source")
        loader = PyFileConfigLoader("nbgrader_config.py", path=str(self.folder))
        self.config = loader.load_config()
        self.api = NbGraderAPI(config=self.config)
        self.released = set()

    def release(self, assignment):
        """Makes the students' version, once; returns its file."""
        if assignment not in self.released:
            done = self.api.generate_assignment(assignment)
            if not done["success"]:
                raise RuntimeError(f"{assignment} can't be released: {done['error']}")
            self.released.add(assignment)
        return self.folder / "release" / assignment / f"{assignment}.ipynb"

    def grade(self, student, assignment, file):
        """Autogrades one file; whatever is wrong with it is told in the note.

        Returns:
            Marks.
        """
        self.release(assignment)
        marks = Marks(student, assignment)
        try:
            nbformat.read(file, as_version=4)
        except Exception as error:
            marks.note = f"not a notebook that can be read: {first_line(error)}"
            return marks
        place = self.folder / "submitted" / student / assignment
        place.mkdir(parents=True)
        shutil.copy(file, place / f"{assignment}.ipynb")
        done = self.api.autograde(assignment, student)
        if not done["success"]:
            marks.note = f"nbgrader couldn't grade it: {last_error(done['log'])}"
            return marks
        with self.api.gradebook as gradebook:
            notebook = gradebook.find_submission_notebook(assignment, assignment,
                                                          student)
            for grade in sorted(notebook.grades, key=lambda g: natural(g.name)):
                marks.points[grade.name] = grade.auto_score
                marks.out_of += grade.max_score
        return marks

    def feedback(self, student, assignment):
        """Makes the page that the student gets back; returns its file."""
        done = self.api.generate_feedback(assignment, student)
        if not done["success"]:
            raise RuntimeError(f"no feedback for {student}: {done['error']}")
        return self.folder / "feedback" / student / assignment / f"{assignment}.html"


def natural(name):
    """A key that sorts q10 behind q2."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def first_line(error):
    """What an exception says, in at most one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def last_error(log):
    """The last exception that a log of nbgrader tells."""
    raised = r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception|Entry)\b.*)$"
    told = re.findall(raised, log, re.M)
    return told[-1] if told else "its log names no exception"


def assignments(course=COURSE):
    """The names of all problem sets."""
    return sorted(path.name for path in (course / "source").iterdir() if path.is_dir())


def submissions(folder, known):
    """What lies in a folder of submissions.

    Args:
        folder: holds STUDENT/psN_name.ipynb or STUDENT/psN_name/psN_name.ipynb.
        known: names of the problem sets.

    Returns:
        list of (student, assignment, file, note): file is None, and note says why,
        where there is nothing to grade.

    Raises:
        ValueError: no such folder, or no student in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}: name the one that holds one "
                         "folder a student.")
    students = sorted(path for path in folder.iterdir()
                      if path.is_dir() and path.name[0] != ".")
    if not students:
        raise ValueError(f"{folder} holds no submission: it needs one folder a "
                         "student, with the notebook in it, as in anna/psN_name.ipynb.")
    found = []
    for student in students:
        files = sorted([*student.glob("*.ipynb"), *student.glob("[!.]*/*.ipynb")])
        if not files:
            found.append((student.name, "", None, "no notebook in this folder"))
        for file in files:
            known_name = file.stem in known
            note = "" if known_name else f"{file.name} isn't the name of a problem set"
            found.append((student.name, file.stem, file if known_name else None, note))
    return found


def grade(folder, source=COURSE, tell=print):
    """Grades all submissions of a folder.

    Args:
        folder: see `submissions`.
        source: the course.
        tell: called with one line a submission.

    Returns:
        list of Marks, one a submission.
    """
    todo = submissions(folder, assignments(source))
    done = []
    with (tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as copy,
          warnings.catch_warnings()):
        warnings.simplefilter("ignore")  # nbgrader's use of its database
        course = Course(copy, source)
        for number, (student, assignment, file, note) in enumerate(todo, start=1):
            start = time.perf_counter()
            # The gradebook knows students by number: any folder's name is fine.
            marks = (course.grade(f"s{number}", assignment, file) if file
                     else Marks(student, assignment, note=note))
            marks.student = student
            done.append(marks)
            tell(f"[{number}/{len(todo)}] {student} {assignment}: {in_words(marks)} "
                 f"({time.perf_counter() - start:.0f} s)")
    return done


def in_words(marks):
    """One submission's marks in a few words."""
    if marks.note:
        return f"NOT GRADED, {marks.note}"
    hand = f", to mark by hand: {' '.join(marks.by_hand)}" if marks.by_hand else ""
    return f"{marks.total:g} of {marks.out_of:g}{hand}"


def write(marks, path):
    """Writes a CSV: a row a submission, a column a question."""
    questions = []
    for one in marks:
        questions += [name for name in one.points if name not in questions]
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["student", "assignment", "total", "out_of", "mark_by_hand",
                        "note", *questions])
        for one in marks:
            total = "" if one.note else f"{one.total:g}"
            out_of = "" if one.note else f"{one.out_of:g}"
            row = [one.points.get(name) for name in questions]
            table.writerow([one.student, one.assignment, total, out_of,
                            " ".join(one.by_hand), one.note,
                            *("" if p is None else f"{p:g}" for p in row)])


def main():
    """Grades a folder and writes the table; the exit status is 1 where one is left."""
    parser = argparse.ArgumentParser(description="Grade a folder of submissions.")
    parser.add_argument("folder", help="one folder a student, with the notebooks in it")
    parser.add_argument("out", nargs="?", default="marks.csv", help="the table")
    asked = parser.parse_args()
    try:
        marks = grade(asked.folder)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] != "nbgrader":
            raise
        sys.exit("Grading needs nbgrader: pip install -e '.[grading]'")
    except ValueError as error:
        sys.exit(str(error))
    write(marks, asked.out)
    left = sum(bool(one.note) for one in marks)
    print(f"Submissions: {len(marks)}, not graded: {left}. The table is {asked.out}")
    sys.exit(min(left, 1))


if __name__ == "__main__":
    main()
