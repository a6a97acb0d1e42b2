"""nbgrader's steps around the run: mend a submission, hide tests, sign a release."""
import re

from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbgrader.api import Gradebook
from nbgrader.preprocessors import ClearHiddenTests, NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution

from .grading_precheck import digest, first_line, grade_id

MISSING = "This cell was missing from the submission, and was added back."
BEGIN, END = "BEGIN HIDDEN TESTS", "END HIDDEN TESTS"


class MendCells(NbGraderPreprocessor):
    """Gives every cell of the problem set back its metadata, and missing ones back.

    Without it nbgrader leaves a submission with a duplicated cell ungraded, and one
    without a test cell too. Of a duplicated cell the last copy is the one that
    counts, as for Python. A missing cell returns to its place, before the next cell
    that is still there; but no answer in code does: it may stand in a cell that has
    lost its metadata, and the empty one would undo it.
    """

    def preprocess(self, nb, resources):
        """Mends the whole notebook."""
        place = resources["nbgrader"]
        with Gradebook(place["db_url"]) as gradebook:
            notebook = gradebook.find_notebook(place["notebook"], place["assignment"])
            points = {cell.name: cell.max_score for cell in notebook.grade_cells}
            answers = {cell.name for cell in notebook.solution_cells}
            known = {cell.name: as_cell(cell, points, answers)
                     for cell in notebook.source_cells}
        self._restore_metadata(nb, known)
        self._add_missing(nb, list(known.values()))
        return nb, resources

    def _restore_metadata(self, nb, known):
        """The last copy of each known cell gets its metadata, all others none."""
        seen = set()
        for cell in reversed(nb.cells):
            name = grade_id(cell)
            cell.metadata.pop("nbgrader", None)
            if name in known and name not in seen:
                cell.metadata.nbgrader = known[name].metadata.nbgrader
                seen.add(name)

    def _add_missing(self, nb, known):
        """Puts missing cells in, from the last to the first."""
        where = len(nb.cells)
        for cell in reversed(known):
            names = [grade_id(c) for c in nb.cells]
            if grade_id(cell) in names:
                where = names.index(grade_id(cell))
            elif cell.cell_type == "markdown" or not is_solution(cell):
                self.log.warning("%s was missing and is added back", grade_id(cell))
                nb.cells.insert(where, cell)


def as_cell(source, points, answers):
    """A cell as the problem set has it, from its record in the gradebook."""
    name = source.name
    kind = dict(grade_id=name, grade=name in points, solution=name in answers,
                locked=source.locked, task=False, schema_version=3,
                cell_type=source.cell_type, checksum=source.checksum)
    if name in points:
        kind["points"] = points[name]
    if source.cell_type == "code":
        return new_code_cell(source.source, metadata={"nbgrader": kind})
    # With the sentence, a written answer differs from the empty one: it isn't given
    # 0 points, but waits for the teacher, who may find the text in another cell.
    note = f"{MISSING}\n\n" if name in answers else ""
    return new_markdown_cell(note + source.source, metadata={"nbgrader": kind})


class HideTests(NbGraderPreprocessor):
    """Takes hidden tests out of a feedback page, and all that could show them."""

    def preprocess(self, nb, resources):
        """Cleans the whole notebook."""
        secrets = {line for cell in nb.cells for line in hidden_lines(cell.source)}
        clear = ClearHiddenTests(parent=self)
        for cell in nb.cells:
            if cell.cell_type != "code":
                continue
            if BEGIN in cell.source:
                cell.outputs = [verdict(o) for o in cell.outputs
                                if o.output_type == "error"]
                clear.preprocess_cell(cell, resources, 0)
            else:
                cell.outputs = [o for o in cell.outputs
                                if not any(line in text_of(o) for line in secrets)]
        return nb, resources


def hidden_lines(source):
    """The lines of a cell's hidden tests that are long enough to know them again."""
    inside = source.partition(BEGIN)[2].partition(END)[0]
    return [line.strip() for line in inside.splitlines() if len(line.strip()) > 12]


def text_of(output):
    """All text that an output shows, without colours."""
    parts = [output.get("text", ""), *output.get("traceback", []),
             *map(str, output.get("data", {}).values())]
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(parts))


def verdict(error):
    """An error without its traceback, which quotes the test's lines."""
    said = f"{error.ename}: {error.evalue}"
    return new_output("error", ename=error.ename, evalue=error.evalue,
                      traceback=[said])


class SignRelease(NbGraderPreprocessor):
    """Writes into a release what the pre-check needs to know about its cells."""

    def preprocess(self, nb, resources):
        """Adds `metadata.problem_set`: its name, and its cells in their order."""
        cells = [describe(cell) for cell in nb.cells if grade_id(cell)]
        name = resources["nbgrader"]["notebook"]
        nb.metadata["problem_set"] = {"name": name, "cells": cells}
        return nb, resources


def describe(cell):
    """What a cell is for, and how to know it again."""
    role = "answer" if is_solution(cell) else "test" if is_grade(cell) else "given"
    return {"name": grade_id(cell), "role": role, "type": cell.cell_type,
            "sha256": digest(cell.source), "first": first_line(cell.source)}
