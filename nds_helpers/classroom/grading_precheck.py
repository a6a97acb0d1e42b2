"""Whether a problem set can be graded as it stands: what `make precheck` runs.

    python -m nds_helpers.classroom.grading_precheck psN_name.ipynb

It needs neither nbgrader nor the course: a handed-out notebook says itself, in
`metadata.problem_set`, which cells it has.
"""
import argparse
import hashlib
import sys
from collections import Counter
from pathlib import Path

import nbformat

BACK = "Take the file that was handed out, and paste your answers into its cells."


def grade_id(cell):
    """The name of a cell of the problem set, or None."""
    kind = cell.metadata.get("nbgrader")
    return kind.get("grade_id") if isinstance(kind, dict) else None


def digest(source):
    """A short fingerprint of a cell's text."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def first_line(source):
    """The first line of a cell's text."""
    return source.strip().partition("\n")[0]


def problems(path):
    """What is wrong with a file, or not done yet.

    Args:
        path: the notebook.

    Returns:
        list of sentences; an empty one means that it can be handed in.
    """
    path = Path(path)
    try:
        notebook = nbformat.read(path, as_version=4)
    except FileNotFoundError:
        return [f"There is no file {path}."]
    except Exception as error:
        return [f"{path.name} isn't a notebook that can be read: it isn't JSON, or was "
                f"cut off ({type(error).__name__}). {BACK}"]
    signed = notebook.metadata.get("problem_set")
    if not signed:
        return [f"{path.name} isn't a handed-out problem set, or a tool has removed "
                f"the notebook's metadata. {BACK}"]
    known = {described["name"]: described for described in signed["cells"]}
    found = wrong_name(path, signed["name"])
    found += miscounted(notebook.cells, known) + misplaced(notebook.cells, known)
    for cell in notebook.cells:
        if grade_id(cell) in known:
            found += changed(cell, known[grade_id(cell)])
    return found


def wrong_name(path, name):
    """The file must be called as it was handed out."""
    if path.name == f"{name}.ipynb":
        return []
    return [f"The file is called {path.name}; it has to be called {name}.ipynb, or "
            "it isn't found."]


def miscounted(cells, known):
    """Cells that are missing, lost their metadata, occur twice or don't belong."""
    counts, found = Counter(grade_id(cell) for cell in cells), []
    for name in known:
        if counts[name] > 1:
            found.append(f"{name}: this cell occurs {counts[name]} times, and only the "
                         "last counts. Delete the others.")
        elif not counts[name]:
            found.append(f"{name}: {lost(cells, known[name])}")
    strange = [name for name in counts if name is not None and name not in known]
    return found + [f"{name}: this problem set has no cell of that name. Delete it."
                    for name in strange]


def lost(cells, described):
    """What became of a cell whose name doesn't occur."""
    for number, cell in enumerate(cells, start=1):
        same_text = first_line(cell.source) == described["first"] != ""
        if grade_id(cell) is None and same_text:
            return (f"cell {number} looks like it, but has lost its metadata, and so "
                    f"won't be marked. {BACK}")
    return f"this cell is missing. {BACK}"


def misplaced(cells, known):
    """Cells that were moved: a test must run behind its answer."""
    here = [name for name in map(grade_id, cells) if name in known]
    here = [name for i, name in enumerate(here) if name not in here[i + 1:]]
    there = [name for name in known if name in here]
    if here == there:
        return []
    first = next(a for a, b in zip(here, there) if a != b)
    return [f"{first}: this cell isn't where it was. Put the cells back in their "
            "order."]


def changed(cell, described):
    """A cell that should be as it was, or an answer that is as it was."""
    name, as_it_was = grade_id(cell), digest(cell.source) == described["sha256"]
    if cell.cell_type != described["type"]:
        return [f"{name}: this was a {described['type']} cell and is now a "
                f"{cell.cell_type} cell. Change it back."]
    if described["role"] != "answer":
        return [] if as_it_was else [
            f"{name}: this cell was edited. Grading puts the handed-out one in its "
            "place: undo your change, and see what your answer really does."]
    if as_it_was or "raise NotImplementedError" in cell.source:
        return [f"{name}: not answered yet."]
    return []


def main():
    """Says what is wrong with a file; the exit status is 1 if anything is."""
    parser = argparse.ArgumentParser(description="Check a problem set.")
    parser.add_argument("file", help="the notebook")
    file = parser.parse_args().file
    found = problems(file)
    print("\n".join(found) or f"{Path(file).name} is complete and can be handed in.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
