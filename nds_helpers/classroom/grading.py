"""What hidden tests use: whose function it is, and whether it does what was asked.

Nothing here keeps a determined cheat out: a notebook runs whatever it says. It keeps
out the answers that come by the easy ways, an import and a copied example.
"""
import contextlib
import inspect
from pathlib import Path

from .report import fresh, name_of, same


def own(function):
    """Requires that a function was written in a cell of this notebook.

    Args:
        function: what the answer's name stands for. A decorator such as
            torch.no_grad() around it is fine.

    Returns:
        The function.

    Raises:
        AssertionError: it isn't a function, or was imported from somewhere.
    """
    written = inspect.unwrap(function) if callable(function) else function
    name, code = name_of(written), getattr(written, "__code__", None)
    if code is None:
        raise AssertionError(f"{name} isn't a function that begins with def.")
    if written.__module__ != "__main__" or not in_a_cell(code.co_filename):
        raise AssertionError(f"{name} wasn't written in this notebook.")
    return function


def in_a_cell(filename):
    """Whether code comes from a cell: its file is called <tmp>/ipykernel_PID/N.py.

    Under the magic %%time it has another name.
    """
    in_kernel = Path(filename).parent.name.startswith("ipykernel_")
    return in_kernel or filename == "<timed exec>"


@contextlib.contextmanager
def package_hidden(*functions):
    """Makes functions of the package raise while an answer is tested.

    The code inside the function object is exchanged, so every name that it goes by
    is caught: imported before, renamed, or called by another function.

    Args:
        functions: plain functions or methods (`ModelDrafter.propose`), decorated
            or not.
    """
    hidden = [inspect.unwrap(function) for function in functions]
    kept = [function.__code__ for function in hidden]
    for function in hidden:
        function.__code__ = refuse.__code__
    try:
        yield
    finally:
        for function, code in zip(hidden, kept):
            function.__code__ = code


def refuse(*args, **kwargs):
    """What a hidden function does instead."""
    raise AssertionError("the answer calls the package's function of the same task.")


def require(function, cases):
    """Requires right results, as `report.check` does, without telling the case.

    Args:
        function: the answer; it gets copies, and has to leave them as they are.
        cases: list of (arguments, expected, idea). Only the idea is told, as a
            student reads it in the feedback.

    Raises:
        AssertionError: a result is wrong, or the arguments have been changed.
    """
    for arguments, expected, idea in cases:
        given = fresh(arguments)
        if not same(function(*given), expected):
            raise AssertionError(f"{name_of(function)}: {idea}")
        if not same(given, arguments):
            raise AssertionError(f"{name_of(function)} changes its arguments.")


@contextlib.contextmanager
def standing_in(function, **names):
    """Puts right versions of earlier answers where a later answer looks for its own.

    So a wrong question 3 doesn't make question 4 wrong, too.

    Args:
        function: the answer under test.
        names: what its notebook's global names are to mean meanwhile.
    """
    space = inspect.unwrap(function).__globals__
    kept = {name: space[name] for name in names if name in space}
    space.update(names)
    try:
        yield
    finally:
        for name in names:
            del space[name]
        space.update(kept)
