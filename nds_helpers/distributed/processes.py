"""One rank's process as the kernel sees it: started, asked, ended."""
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress

from . import output, worker
from .position import Position

# What the fork server imports once, so that every later rank starts at once.
PRELOAD = ["torch", "torch.distributed", "cloudpickle", "nds_helpers.parallel",
           "nds_helpers.distributed.worker"]
DYING = 5.0  # seconds for which a killed fork server may still seem to run


def start_method():
    """"forkserver" on Linux, "spawn" elsewhere; never "fork".

    A forked child inherits locks that the kernel's other threads hold, and a CUDA
    or OpenMP state that can't work in it: it hangs at the first matrix product.
    """
    return "forkserver" if sys.platform == "linux" else "spawn"


def prepare(context):
    """Starts the fork server where there is one, and waits until it can fork.

    That is an import of torch, the first time. A notebook's interrupt goes to all
    processes of its group; the server, and the ranks that inherit from it, hold it
    back from the beginning, so that it can't hit them while they are starting.
    """
    if context.get_start_method() != "forkserver":
        return
    from multiprocessing import forkserver, resource_tracker  # not on every system

    context.set_forkserver_preload(PRELOAD)
    resource_tracker.ensure_running()  # would undo the mask below
    end = time.monotonic() + DYING
    while True:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            return run_an_empty_process(context)
        except (ConnectionError, EOFError):  # it was killed, and still seems to run
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def run_an_empty_process(context):
    """Starts a process that ends at once, and waits for its end."""
    with main_script_hidden():
        first = context.Process(target=int)
        first.start()
    first.join()


def is_prepared(context):
    """Whether ranks will start at once, for the fork server is running."""
    if context.get_start_method() != "forkserver":
        return False
    from multiprocessing import forkserver

    return forkserver._forkserver._forkserver_pid is not None


@contextmanager
def interrupts_deferred():
    """Lets an interrupt wait until the block has ended (milliseconds).

    In the middle of starting a process, it would leave half a rank behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers interrupts to the main thread only
        return
    arrived = []
    handler = signal.signal(signal.SIGINT, lambda *_: arrived.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def main_script_hidden():
    """Keeps multiprocessing from running the main script again in each rank.

    What it defines travels by value; without this, a script would need
    `if __name__ == "__main__":`, and its imports would slow every start.
    """
    main = sys.modules["__main__"]
    kept = {name: main.__dict__.pop(name) for name in ("__file__", "__spec__")
            if name in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update({"__spec__": None} | kept)


class RankProcess:
    """A rank's process, and the pipes to it.

    calls: a call there, its answer back. control: where does it stand? output: what
    it prints. life: carries nothing; while the kernel lives, its end stays open.
    """

    def __init__(self, context, rank, plan, meeting, environment):
        self.rank = rank
        self.calls, calls = context.Pipe()
        self.control, control = context.Pipe()
        self.output, pipe = context.Pipe(duplex=False)
        life, self.life = context.Pipe(duplex=False)
        self.lines = output.TaggedLines(rank)
        self._far_ends = calls, control, pipe, life
        seat = worker.Seat(rank, *self._far_ends, plan, meeting, environment)
        self.process = context.Process(target=worker.main, args=(seat,),
                                       name=f"rank {rank}")

    def start(self):
        """Starts the process."""
        with main_script_hidden():
            self.process.start()
        self._close_far_ends()

    def _close_far_ends(self):
        for pipe in self._far_ends:
            pipe.close()

    @property
    def alive(self):
        """Whether the process is running."""
        return self.process.pid is not None and self.process.is_alive()

    def send(self, header, payload):
        """Sends a call; a dead rank is noticed by who waits for the answer."""
        try:
            self.calls.send_bytes(header)
            self.calls.send_bytes(payload)
        except OSError:
            pass

    def ask_position(self):
        """Asks where the rank stands; `read_position` takes the reply."""
        try:
            self.control.send_bytes(b"where")
        except OSError:
            pass  # it is dead: read_position says so

    def read_position(self, seconds):
        """The reply to `ask_position`.

        Returns:
            Position.
        """
        try:
            if self.control.poll(seconds):
                return self.control.recv()
        except (EOFError, OSError):
            return Position("was dead already")
        return Position("did not say where it stood (busy in C code, or stopped)")

    def print_output(self):
        """Prints what has arrived; False once the pipe's other end is closed."""
        data = output.read(self.output)
        self.lines.feed(data)
        return bool(data)

    def how_it_died(self):
        """One line about a process that has ended."""
        self.process.join(1)
        code = self.process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = (" (the system does this when memory runs out)"
                    if name == "SIGKILL" else "")
            return f"killed by {name}{hint}"
        return f"its process ended with exit code {code}"

    def end(self):
        """Kills the process and what it has started; safe to call again.

        Its group outlives it for as long as a child does.
        """
        self._close_far_ends()
        for pipe in (self.calls, self.control, self.output, self.life):
            pipe.close()
        if self.process.pid is not None:
            self.process.kill()
            if hasattr(os, "killpg"):
                with suppress(OSError):  # there is no such group (any more)
                    os.killpg(self.process.pid, signal.SIGKILL)

    def wait_for_end(self, seconds=5):
        """Waits until the process is gone, and forgets it."""
        if self.process.pid is not None:
            self.process.join(seconds)


def rank_environment(rank, size, port):
    """The kernel's environment as it is now, and the variables torchrun sets too."""
    return dict(os.environ) | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port)}
