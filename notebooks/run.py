"""Runs chapters on fresh kernels and writes them back: what `make notebooks` does.

    python notebooks/run.py           every chapter
    python notebooks/run.py 02 03     those whose file names start so

A chapter that fails is left as it was. The tests run chapters through here too.
"""
import argparse
import base64
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from PIL import Image

FOLDER = Path(__file__).resolve().parent
SECONDS_PER_CELL = 300
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)",
          "language": "python"}
WIDGET = "application/vnd.jupyter.widget-view+json"
DEAD_PROXY = "http://127.0.0.1:9"


class CellFailed(Exception):
    """A cell raised, wrote to stderr, took too long or lost its kernel."""


def chapters(names=()):
    """The numbered notebooks in order, or those whose file names start with a name."""
    starts = tuple(Path(name).name for name in names) or ("",)
    every = sorted(FOLDER.glob("[0-9]*.ipynb"))
    return [path for path in every if path.name.startswith(starts)]


def offline(home):
    """Our environment without a way to the network, with `home` as the hub's cache."""
    blocked = {"HF_HUB_OFFLINE": "1", "HF_HOME": home, "HF_HUB_CACHE": home}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        blocked[name] = blocked[name.lower()] = DEAD_PROXY
    ours = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    return ours | blocked


def complaint(cell):
    """What a cell raised or wrote to stderr, else an empty string."""
    outputs = cell.get("outputs", [])
    raised = [f"{o.ename}: {o.evalue}" for o in outputs if o.output_type == "error"]
    stderr = [f"stderr: {o.text}" for o in outputs if o.get("name") == "stderr"]
    return "".join((raised + stderr)[:1])


def run_cell(client, index):
    """Runs one cell; anything that a reader would call trouble is a CellFailed."""
    cell = client.nb.cells[index]
    try:
        trouble = complaint(client.execute_cell(cell, index))
    except CellTimeoutError:
        trouble = (f"took more than {SECONDS_PER_CELL} s; the machine may be busy, "
                   "run again")
    except DeadKernelError:
        trouble = "the kernel died"
    if trouble:
        first = cell.source.lstrip().split("\n")[0]
        raise CellFailed(f"the cell that begins {first!r}: {trouble.splitlines()[0]}")


def execute(folder, *notebooks):
    """Runs the cells of all notebooks in one fresh kernel that stands in `folder`.

    What a cell writes to stderr arrives with its outputs. The kernel's own stderr is
    dropped: one that is killed in the middle of a cell fills it with noise.
    """
    client = NotebookClient(notebooks[0], kernel_name="python3",
                            timeout=SECONDS_PER_CELL, allow_errors=True,
                            coalesce_streams=True,
                            record_timing=False, store_widget_state=False,
                            extra_arguments=["--IPKernelApp.log_level=ERROR"])
    with (tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
          client.setup_kernel(cwd=str(folder), env=offline(home),
                              stderr=subprocess.DEVNULL)):
        for client.nb in notebooks:
            for index in range(len(client.nb.cells)):
                run_cell(client, index)


def tidy(notebook):
    """Keeps what a reader needs, drops what differs from one run to the next."""
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": "python"}})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen = []
    for cell, after in zip(notebook.cells, [*notebook.cells[1:], None]):
        seen.append(cell.cell_type + cell.source)
        name = f"{seen[-1]}{seen.count(seen[-1])}"  # equal cells are numbered
        cell.id = hashlib.sha256(name.encode()).hexdigest()[:8]
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if WIDGET not in o.get("data", {})]
            for output in (o for o in cell.outputs if "image/png" in o.get("data", {})):
                output.data["image/png"] = lighter(output.data["image/png"])
                output.metadata["image/png"] = {"alt": alternative(after)}


def alternative(cell):
    """What a picture shows, for those who can't see it: the paragraph `*Picture:*`."""
    found = re.search(r"^\*Picture:\* (.*)", cell.source if cell else "", re.M)
    return found[1] if found else ""


def lighter(png):
    """A base64 PNG in at most 256 colours: to the eye the same, a third of the size."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    page = io.BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(page, "png", optimize=True)
    return base64.b64encode(page.getvalue()).decode()


def refresh(path):
    """Runs a chapter and writes it back with its outputs, unless a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    execute(path.parent, notebook)
    tidy(notebook)
    nbformat.write(notebook, path)


def main():
    """One line a chapter: its name, then the seconds it took or where it failed."""
    parser = argparse.ArgumentParser(description="Run chapters and write them back.")
    parser.add_argument("names", nargs="*", help="how their file names start, as in 02")
    chosen = chapters(parser.parse_args().names)
    if not chosen:
        sys.exit("No notebook of that name; chapters are notebooks/[0-9]*.ipynb.")
    failed = 0
    for path in chosen:
        print(f"{path.name:40}", end=" ", flush=True)
        start = time.perf_counter()
        try:
            refresh(path)
            print(f"{time.perf_counter() - start:6.1f} s")
        except CellFailed as trouble:
            failed += 1
            print(f"FAILED, left as it was: {trouble}")
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
