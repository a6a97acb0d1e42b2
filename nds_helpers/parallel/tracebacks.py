"""Where a rank stands, and where it failed, in terms of the user's own lines."""
import os
import sys
import traceback
from itertools import takewhile

from . import collectives

HERE = os.path.dirname(__file__) + os.sep


def stack_below(thread, marker):
    """The part of a thread's stack that a function has called.

    Args:
        thread: threading.Thread.
        marker: code object of the function whose callees are wanted.

    Returns:
        traceback.StackSummary, outermost frame first, cells by the names that their
        reader knows.
    """
    frames = list(traceback.walk_stack(sys._current_frames()[thread.ident]))[::-1]
    start = [frame.f_code for frame, _ in frames].index(marker) + 1
    return traceback.StackSummary.from_list([
        traceback.FrameSummary(cell_name(f.filename), f.lineno, f.name, line=f.line)
        for f in traceback.StackSummary.extract(iter(frames[start:]))])


def outside(stack):
    """The part of a StackSummary that lies before this package's own frames."""
    return traceback.StackSummary.from_list(takewhile(lambda f: not ours(f), stack))


def describe_stack(stack, doing):
    """"was waiting in all_reduce at Cell In[5] line 3".

    Args:
        stack: StackSummary, outermost frame first, with a collective in it.
        doing: what comes before " in all_reduce".
    """
    operation = next(f.name for f in stack if f.filename == collectives.__file__)
    own = outside(stack) or stack[:1]
    # The innermost cell, where there is one: a line of a model's code says less.
    here = next((f for f in reversed(own) if not os.path.exists(f.filename)), own[-1])
    return f"{doing} in {operation} at {here.filename} line {here.lineno}"


def ours(frame):
    """Whether a FrameSummary belongs to this package."""
    return frame.filename.startswith(HERE)


def user_traceback(error):
    """An exception's traceback as text, from the user's function on."""
    last = error.__traceback__
    while last and last.tb_frame.f_code.co_filename.startswith(HERE):
        last = last.tb_next
    text = "".join(traceback.format_exception(
        type(error), error, last or error.__traceback__))
    for frame in traceback.extract_tb(error.__traceback__):
        text = text.replace(f'"{frame.filename}"', f'"{cell_name(frame.filename)}"')
    return text


def cell_name(filename):
    """IPython's name of a cell ("Cell In[5]"), or the file's own name."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    found = shell.compile.format_code_name(filename) if shell else None
    return " ".join(found) if found else filename
