"""Where a rank stands: its main thread's stack, and one line about it.

Imported before torch, so it imports nothing heavy.
"""
import os
import traceback
from dataclasses import dataclass

# Code in these files does the waiting for other ranks.
WAITING_ROOMS = [os.path.join("torch", "distributed", ""),
                 *(os.path.join("nds_helpers", "parallel", name)
                   for name in ("collectives.py", "process_group.py", "shared.py"))]


@dataclass(frozen=True)
class Position:
    """Where a rank stood when it was asked.

    text: one line, "was waiting in all_reduce at Cell In[5] line 3".
    stack: its stack as a traceback shows one, from the user's function on.
    waits: whether it was inside a collective (waiting for another rank).
    """

    text: str
    stack: str = ""
    waits: bool = False


def describe(summary):
    """Turns a stack into a Position.

    Args:
        summary: traceback.StackSummary, outermost frame first, the user's function
            and everything below it; not empty.
    """
    inside = [i for i, frame in enumerate(summary) if is_waiting_room(frame)]
    own = summary[:inside[0]] if inside else summary
    here = next((frame for frame in reversed(own) if is_cell(frame)),
                own[-1] if own else summary[0])
    place = f"{here.filename} line {here.lineno}"
    stack = "".join(summary.format())
    if inside:
        # The first name in there is the operation; decorators come as "wrapper".
        names = [summary[i].name for i in inside if summary[i].name != "wrapper"]
        text = f"was waiting in {names[0] if names else 'a collective'} at {place}"
        return Position(text, stack, waits=True)
    return Position(f"was at {place}: {here.line}", stack)


def is_waiting_room(frame):
    """Whether a frame belongs to the code that waits for other ranks."""
    return any(room in frame.filename for room in WAITING_ROOMS)


def is_cell(frame):
    """Whether a frame belongs to a cell; cells have lines but no file."""
    return bool(frame.line) and not os.path.exists(frame.filename)


def stack_below(frame, marker):
    """The part of a stack that a function has called.

    Args:
        frame: the innermost frame.
        marker: code object of the function whose callees are wanted.

    Returns:
        traceback.StackSummary, outermost first; empty where the function isn't
        running.
    """
    frames = list(traceback.walk_stack(frame))[::-1]
    codes = [f.f_code for f, _ in frames]
    below = frames[codes.index(marker) + 1:] if marker in codes else []
    return traceback.StackSummary.extract(iter(below))
