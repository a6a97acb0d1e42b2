"""Drives a real Jupyter kernel, as a notebook does, and counts what it leaves."""
import os
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty

import psutil
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parents[1]
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Cell:
    """A cell on its way through the kernel, and what it has put out."""

    kernel: object
    message: str
    text: str = ""  # all streams
    error: str = ""  # the traceback as the notebook shows it, without colours
    kind: str = ""  # the exception's name
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    done: bool = False

    def wait(self, timeout=60):
        """Waits until the cell has ended."""
        return self.until(lambda: self.done, timeout)

    def shows(self, text, timeout=60):
        """Waits until the cell's output contains a text."""
        return self.until(lambda: text in self.text, timeout)

    def until(self, fulfilled, timeout):
        """Takes in messages until a condition holds; fails after so many seconds."""
        end = time.monotonic() + timeout
        while not fulfilled():
            assert time.monotonic() < end and not self.done, (
                f"after {timeout} s: {self.text}\n{self.error}")
            self.kernel.take(min(1, end - time.monotonic()))
        return self


class Kernel:
    """A Jupyter kernel with the repository on its path."""

    def __init__(self):
        self._manager = KernelManager(kernel_name="python3")
        environment = dict(os.environ)
        environment.pop("OMP_NUM_THREADS", None)  # would hide how many threads we set
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._manager.start_kernel(env=environment)
        self._cells = {}
        self._connect()

    def _connect(self):
        self.client = self._manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    @property
    def pid(self):
        """The kernel's process number."""
        return self._manager.provisioner.pid

    def start(self, code):
        """Sends a cell, and returns at once."""
        cell = Cell(self, self.client.execute(code, store_history=True))
        self._cells[cell.message] = cell
        return cell

    def run(self, code, timeout=60):
        """Runs a cell to its end; returns it whether or not it raised."""
        return self.start(code).wait(timeout)

    def ok(self, code, timeout=60):
        """Runs a cell that must not raise; returns what it printed."""
        cell = self.run(code, timeout)
        assert not cell.error, cell.error
        return cell.text

    def take(self, timeout):
        """Takes in one message, and gives it to the cell that it belongs to."""
        try:
            message = self.client.get_iopub_msg(timeout=timeout)
        except Empty:
            return
        cell = self._cells.get(message["parent_header"].get("msg_id"))
        if cell is None:
            return
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            cell.text += content["text"]
        elif kind == "execute_result":
            cell.text += content["data"]["text/plain"]
        elif kind == "error":
            cell.kind = content["ename"]
            cell.error = COLOURS.sub("", "\n".join(content["traceback"]))
        elif kind == "status" and content["execution_state"] == "idle":
            cell.done, cell.seconds = True, time.monotonic() - cell.began

    def interrupt(self):
        """What the stop button does."""
        self._manager.interrupt_kernel()

    def restart(self):
        """What the restart button does."""
        self.client.stop_channels()
        self._manager.restart_kernel(now=False)
        self._connect()

    def processes(self):
        """All living processes that descend from the kernel."""
        return [p for p in psutil.Process(self.pid).children(recursive=True)
                if p.status() != psutil.STATUS_ZOMBIE]  # ended, not yet fetched

    def kill(self):
        """Kills the kernel as the system does when memory runs out."""
        os.kill(self.pid, signal.SIGKILL)

    def close(self):
        """Ends the kernel."""
        self.client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def left_over(processes, seconds=5):
    """Those of some processes that are still running after so many seconds."""
    late = psutil.wait_procs(processes, timeout=seconds)[1]
    return [p for p in late  # an orphan that has ended may not have been fetched
            if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def is_rank(process):
    """Whether a process is a rank: a child of the fork server, or a spawned one."""
    try:
        parent = process.parent()
        return parent is not None and "forkserver" in " ".join(parent.cmdline())
    except psutil.NoSuchProcess:
        return False
