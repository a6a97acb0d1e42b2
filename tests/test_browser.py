"""Chapters in a real browser: Run All, then somebody moves the sliders.

Skipped where there is no Chromium or no playwright. Screenshots, and how long the
picture took to follow, go to tests/artefacts.
"""
import shutil

import nbformat
import pytest

pytest.importorskip("playwright", reason="pip install -e '.[dev]' brings playwright")
from browser import ARTEFACTS, COURSE, FAILED, Notebook, browser, browser_path, lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser_path() is None, reason="no Chromium on this system"),
]
CHOOSE = "04_choose_k_and_temperature"
SLIDERS = [CHOOSE, "10_measure_the_speedup"]
LOOKS = [("wide", 1400, "Light"), ("1024", 1024, "Light"), ("dark", 1024, "Dark")]
BREAK = """
def broken(**values):
    raise RuntimeError("the draft got lost")
explorer.compute = broken"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """JupyterLab over a copy of the chapters: the course's own outputs stay."""
    folder = tmp_path_factory.mktemp("course")
    shutil.copytree(COURSE / "notebooks", folder / "notebooks",
                    ignore=shutil.ignore_patterns("assignments", ".ipynb_checkpoints"))
    break_explorer(folder / "notebooks")
    ARTEFACTS.mkdir(exist_ok=True)
    (ARTEFACTS / "seconds.txt").unlink(missing_ok=True)
    with lab(folder) as url:
        yield lambda name: url.format(f"notebooks/{name}.ipynb")


def break_explorer(folder):
    """Writes broken.ipynb: chapter 04 up to its explorer, which fails from then on."""
    notebook = nbformat.read(folder / f"{CHOOSE}.ipynb", as_version=4)
    index = next(i for i, cell in enumerate(notebook.cells)
                 if "speculation_explorer(" in cell.source)
    notebook.cells[index].source = notebook.cells[index].source.replace(
        "\nexplorer", f"{BREAK}\nexplorer")
    del notebook.cells[index + 1:]
    nbformat.write(notebook, folder / "broken.ipynb")


def note(line):
    """Prints a figure and keeps it with the screenshots."""
    print(line)
    with open(ARTEFACTS / "seconds.txt", "a") as file:
        print(line, file=file)


def test_first_page_runs_and_asks_nothing(server):
    with browser() as page:
        notebook = Notebook(page, server("00_start_here"))
        note(f"chapter 00, Run All: {notebook.run_all():.1f} s")
        notebook.picture_as("00")
        assert notebook.faults() == []
        assert page.get_by_text("Jupyter news").count() == 0


@pytest.mark.parametrize("name", SLIDERS)
def test_sliders_move_one_picture(server, name):
    chapter = name[:2]
    with browser() as page:
        notebook = Notebook(page, server(name))
        note(f"chapter {chapter}, Run All: {notebook.run_all():.1f} s")
        assert notebook.faults() == []
        notebook.explorer()
        for label, presses in (("K", 2), ("temperature", 3), ("K", 1)):
            seconds = notebook.move(label, presses)
            note(f"chapter {chapter}, {label} moved: picture after {seconds:.2f} s")
        assert len(notebook.explorer()["outputs"]) == 1
        assert page.locator(".widget-image").count() == 1
        assert notebook.faults() == []
        for look, width, theme in LOOKS:
            notebook.dress(width, theme)
            notebook.explorer()
            notebook.picture_as(f"{chapter}-{look}")


def test_a_slider_that_fails_is_seen(server):
    with browser() as page:
        notebook = Notebook(page, server("broken"))
        notebook.run_all()
        notebook.explorer()
        assert notebook.faults() == []
        notebook.press("K", 1)
        page.get_by_text(FAILED).wait_for()
        notebook.picture_as("broken")
        assert "RuntimeError: the draft got lost" in str(notebook.faults())
