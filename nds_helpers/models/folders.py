"""Folders of the course: where they are, and whether their files are whole."""
import hashlib
import os
from pathlib import Path

from .checkpoint import SINGLE

SUMS = "SHA256SUMS"  # lies beside the files whose sums it holds


def folder_in(variable, default):
    """The folder that an environment variable names, or the default; absolute.

    An empty variable counts as none, and ~ is your home, as in a shell.
    """
    return Path(os.path.expanduser(os.environ.get(variable) or default)).absolute()


def first_wrong(folder):
    """Name of the first file that isn't as SHA256SUMS says, or None.

    A list that can't be read, or doesn't hold the weights, is such a file itself.
    """
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        sums = {name: total for total, name in (line.split(maxsplit=1)
                                                for line in lines)}
    except (OSError, ValueError):  # not there, not text, or a line of one word
        return SUMS
    if SINGLE not in {Path(name).name for name in sums}:
        return SUMS
    return next((name for name in sums if not holds(folder / name, sums[name])), None)


def holds(path, total):
    """Whether a file is there and has this sha256."""
    try:
        return digest(path) == total
    except OSError:
        return False


def digest(path):
    """The sha256 of a file."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
