"""The rank's side: a process that joins its group, then runs what it is sent.

    main -> watch_kernel (control thread) -> join -> loop: receive, run, answer

The module imports nothing heavy: where a rank is started from scratch (spawn), the
control thread must be running before torch is imported, which takes seconds.
"""
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from . import output, pickling
from .position import Position, describe, is_waiting_room, stack_below
from .rendezvous import open_store

# The launcher's own limit ends a call; the process group's is a last resort.
GROUP_TIMEOUT = timedelta(days=1)


@dataclass
class Seat:
    """What a rank is given at its start; everything in it can be pickled.

    calls, control: duplex Connections to the kernel; pipe: for what it prints; life:
    a Connection that carries nothing, and closes when the kernel is gone.
    plan: Plan; meeting: (port, name) of the store; environment: dict.
    """

    rank: int
    calls: object
    control: object
    pipe: object
    life: object
    plan: object
    meeting: tuple
    environment: dict


@dataclass
class Failure:
    """Why a rank's call ended without a result.

    cause: "ValueError: no such token"; traceback: text, from the user's function on.
    when: seconds since the epoch; lost_peer: raised inside a collective, so that
    another rank may well be the reason.
    """

    cause: str
    traceback: str = ""
    when: float = 0.0
    lost_peer: bool = False


inside_rank = False  # whether this process is a rank that a launcher started
idle = Position("was starting")  # where it stands between calls


def main(seat):
    """A rank's life: joins the group, then answers calls until its pipe closes."""
    global inside_rank, idle
    inside_rank = True
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # a group of its own: what this rank starts ends with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the kernel decides what ends
    die_with_kernel(seat.life)
    watch_kernel(seat.control)
    os.environ.clear()  # the fork server's, which may be old
    os.environ.update(seat.environment)
    output.redirect(seat.pipe)
    try:
        me = join(seat)
    except BaseException as error:
        answer(seat.calls, "failed", pickling.dump_result(failure(error)))
        return
    idle = Position("had returned")
    answer(seat.calls, "done", b"")
    me.report = partial(send_report, seat.calls)  # a list here would die with the rank
    own = os.getpid()
    while True:
        try:
            header, payload = seat.calls.recv_bytes(), seat.calls.recv_bytes()
        except EOFError:
            end_with_children()
        reply = run_call(me, header, payload)
        if os.getpid() != own:
            os._exit(0)  # a child that the function has forked: its parent answers
        answer(seat.calls, *reply)


def end_with_children():
    """Ends this process and all that it has started."""
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def die_with_kernel(life):
    """Lets Linux end this process group (SIGIO) when the kernel's end of a pipe closes.

    The control thread does the same, but can't while C code holds the interpreter's
    lock.
    """
    if sys.platform != "linux":
        return
    import fcntl

    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life.fileno(), fcntl.F_SETOWN, -os.getpgrp())
    flags = fcntl.fcntl(life.fileno(), fcntl.F_GETFL)
    fcntl.fcntl(life.fileno(), fcntl.F_SETFL, flags | os.O_ASYNC)


def watch_kernel(control):
    """Starts the control thread: it says where this rank stands, or ends it.

    Waits inside a collective give up the interpreter's lock, so this thread runs
    even then; a signal handler wouldn't.
    """
    main_thread = threading.get_ident()

    def watch():
        while True:
            try:
                control.recv_bytes()
                frame = sys._current_frames()[main_thread]
                stack = stack_below(frame, run_call.__code__)
                control.send(describe(stack) if stack else idle)
            except (EOFError, OSError):  # the kernel is gone, or has let go of us
                end_with_children()

    threading.Thread(target=watch, name="control", daemon=True).start()


def join(seat):
    """Joins the group at the kernel's store, and returns this rank's Rank."""
    from .joining import join_group

    size = seat.plan.size
    return join_group(seat.plan, seat.rank, size, local_rank=seat.rank,
                      store=open_store(*seat.meeting, size), timeout=GROUP_TIMEOUT)


def run_call(me, header, payload):
    """Runs one call.

    Returns:
        ("done", the result as bytes) or ("failed", a Failure as bytes).
    """
    try:
        fn, args, kwargs = pickling.load_call(header, payload)
        result = fn(me, *args, **kwargs)
        body = pickled_result(result)
    except BaseException as error:  # SystemExit too: a rank only ends with its kernel
        return "failed", pickling.dump_result(failure(error))
    finally:
        with suppress(Exception):  # whatever fn has made of them
            sys.stdout.flush()
            sys.stderr.flush()
    return "done", body


def pickled_result(result):
    """A result as bytes, or a sentence that says why it can't be sent."""
    try:
        return pickling.dump_result(result)
    except Exception as error:
        raise TypeError(
            f"the function's result (a {type(result).__name__}) can't be sent to the "
            f"notebook: {error}. Return tensors, numbers, text, or lists and dicts "
            "of them.") from None


def send_report(calls, thing):
    """`Rank.report`: the kernel keeps it."""
    answer(calls, "report", pickling.dump_result(thing))


def answer(calls, kind, body):
    """Sends the kind of an answer, then its content."""
    calls.send_bytes(kind.encode())
    calls.send_bytes(body)


def failure(error, caller=__file__):
    """Describes an exception in plain text, from the function that a file called.

    Text only: exception objects often survive pickling but not unpickling
    (python/cpython#79492: constructors with two arguments).
    """
    summary, below = traceback.extract_tb(error.__traceback__), error.__traceback__
    while below and below.tb_frame.f_code.co_filename == caller:
        below = below.tb_next
    lines = traceback.format_exception(type(error), error, below) if below else []
    lost_peer = (bool(summary) and is_waiting_room(summary[-1])
                 and not isinstance(error, (TypeError, ValueError)))
    return Failure(cause_of(error), "".join(lines), time.time(), lost_peer)


def cause_of(error):
    """An exception in one line: its type and the first line of its message."""
    try:
        lines = str(error).splitlines()
    except BaseException:
        lines = ["its message can't be shown"]
    name = type(error).__name__
    return f"{name}: {lines[0]}" if lines and lines[0] else name
