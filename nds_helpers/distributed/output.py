"""What the ranks print: through one pipe each, into the cell that called them."""
import codecs
import os
import sys
import threading

CHUNK = 1 << 16  # bytes read or sent at a time
WINDOWS = sys.platform == "win32"


def redirect(pipe):
    """Sends file descriptors 1 and 2 of this process into a pipe (rank side).

    Descriptors, so that what C libraries and subprocesses write comes along too.

    Args:
        pipe: multiprocessing Connection, writable.
    """
    target = pipe.fileno() if not WINDOWS else start_relay(pipe)
    os.dup2(target, 1)
    os.dup2(target, 2)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(number, "w", buffering=1, encoding="utf-8",
                      errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)


def start_relay(pipe):
    """A descriptor whose bytes a thread passes on to a pipe.

    multiprocessing's pipes on Windows are handles for overlapped writes, which a
    file descriptor can't stand for.
    """
    source, target = os.pipe()

    def relay():
        while data := os.read(source, CHUNK):
            pipe.send_bytes(data)

    threading.Thread(target=relay, name="output relay", daemon=True).start()
    return target


def read(pipe):
    """The next bytes of a rank's output; b"" at its end (kernel side)."""
    try:
        return pipe.recv_bytes() if WINDOWS else os.read(pipe.fileno(), CHUNK)
    except (EOFError, OSError):
        return b""


class TaggedLines:
    """Turns a rank's bytes into whole lines that begin with its tag."""

    def __init__(self, rank):
        self.tag = f"[rank {rank}] "
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""  # a line whose end hasn't come yet

    def feed(self, data):
        """Prints the lines that these bytes complete."""
        *lines, self._begun = (self._begun + self._decoder.decode(data)).split("\n")
        self._print(lines)

    def finish(self):
        """Prints what is left of a line that never ended."""
        if self._begun:
            self._print([self._begun])
        self._begun = ""

    def _print(self, lines):
        # A progress bar draws over its line with "\r": its last state counts.
        lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines]
        if lines:
            sys.stdout.write("".join(f"{self.tag}{line}\n" for line in lines))
            sys.stdout.flush()
