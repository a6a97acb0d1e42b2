"""Waiting for the ranks: their answers, their output and their deaths, in one loop.

The calling cell's own thread does the waiting, so that what the ranks print appears
in that cell, live, and no pipe ever fills up.
"""
import pickle
import time
from multiprocessing import connection

from nds_helpers.parallel.ranks import RankError

from .worker import Failure

AFTERMATH = 0.2  # seconds for other ranks' errors, which may be the earlier ones
LOST_PEER = 1.0  # the same, when all that is known is that a connection broke
LOOK = 1.0  # seconds between two looks at ranks that may be stalled
LAST_WORDS = 0.5  # seconds at most for output that is still on its way


class Answers:
    """The ranks' answers to one call, as they come in.

    results: rank -> bytes; failures: rank -> Failure; reports: rank -> list.
    progress: called with the number of results whenever there is one more.
    """

    def __init__(self, ranks, progress=lambda done: None):
        self.ranks, self._progress = ranks, progress
        self.results, self.failures, self.reports = {}, {}, {}
        self._talking = list(ranks)  # those whose output pipe is open

    @property
    def missing(self):
        """The ranks that have neither answered nor died."""
        return [r for r in self.ranks
                if r.rank not in self.results and r.rank not in self.failures]

    def wait(self, seconds):
        """Waits until something happens, at most so long, and takes it in."""
        missing = self.missing
        sources = ([r.output for r in self._talking] + [r.calls for r in missing]
                   + [r.process.sentinel for r in missing])
        ready = connection.wait(sources, max(0, seconds))
        self._print([r for r in self._talking if r.output in ready])
        for r in missing:
            if r.calls in ready:
                self._take(r)
            elif r.process.sentinel in ready and not r.calls.poll():
                self.failures[r.rank] = Failure(r.how_it_died(), when=time.time())

    def _print(self, ranks):
        for r in ranks:
            if not r.print_output():
                self._talking.remove(r)

    def _take(self, r):
        """Reads an answer; a pipe that ends instead means that the rank died."""
        try:
            kind, body = r.calls.recv_bytes(), r.calls.recv_bytes()
        except (EOFError, OSError):
            self.failures[r.rank] = Failure(r.how_it_died(), when=time.time())
            return
        if kind == b"failed":
            self.failures[r.rank] = pickle.loads(body)
        elif kind == b"report":
            self.reports.setdefault(r.rank, []).append(pickle.loads(body))
        else:
            self.results[r.rank] = body
            self._progress(len(self.results))

    def finish(self):
        """Prints what the ranks have written so far, down to the last half line."""
        end = time.monotonic() + LAST_WORDS
        while time.monotonic() < end:
            late = connection.wait([r.output for r in self._talking], 0)
            if not late:
                break
            self._print([r for r in self._talking if r.output in late])
        for r in self.ranks:
            r.lines.finish()

    def collect(self, seconds, debug=False, advice=""):
        """Waits for all answers.

        Args:
            seconds: the call's time limit.
            debug: whether to look for ranks that wait for one that has returned.
            advice: what else to say where the time limit was too short.

        Returns:
            list of bytes, in rank order.

        Raises:
            RankError: a rank failed, died or didn't answer in time.
        """
        try:
            return self._collect(seconds, debug, advice)
        except RankError as error:
            error.reports = self.reports
            raise

    def _collect(self, seconds, debug, advice):
        deadline = time.monotonic() + seconds
        stall = Stall()
        while self.missing and not self.failures:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._timed_out(seconds, advice)
            self.wait(min(left, LOOK))
            if debug and self.results and self.missing:
                stall.look(self.results, self.missing)
        if self.failures:
            raise self._failed()
        return [self.results[r.rank] for r in self.ranks]

    def _failed(self):
        """The RankError for the failure that was the cause of the others."""
        self._settle()
        rank = min(self.failures, key=lambda r: (self.failures[r].lost_peer,
                                                 self.failures[r].when))
        found = self.failures[rank]
        others = {r: "failed in the same way" if f.cause == found.cause
                  else f"failed too: {f.cause}" for r, f in self.failures.items()}
        del others[rank]
        others |= {r: "had returned" for r in self.results}
        others |= {r: p.text for r, p in ask_positions(self.missing).items()}
        return RankError(rank, found.cause, found.traceback, others)

    def _settle(self):
        """Waits a little for other ranks' errors: the cause may be among them."""
        began = time.monotonic()
        while self.missing:
            lost = all(f.lost_peer for f in self.failures.values())
            left = began + (LOST_PEER if lost else AFTERMATH) - time.monotonic()
            if left <= 0:
                return
            self.wait(left)

    def _timed_out(self, seconds, advice):
        """The RankError for a call that took too long."""
        positions = ask_positions(self.missing)
        if self.results and all(p.waits for p in positions.values()):
            return absent(self.results, positions,
                          f". No answer within {seconds:g} s.{advice}")
        # A rank that waits for others is rarely the one at fault.
        rank = min(positions, key=lambda r: (positions[r].waits, r))
        others = {r: p.text for r, p in positions.items()}
        others |= {r: "had returned" for r in self.results}
        cause = f"no answer within {seconds:g} s; it {others.pop(rank)}.{advice}"
        return RankError(rank, cause, positions[rank].stack, others)


class Stall:
    """Notices ranks that wait in a collective for a rank that has returned."""

    def __init__(self):
        self._seen, self._next = None, time.monotonic() + LOOK

    def look(self, results, missing):
        """Compares where the missing ranks stand with the look before.

        Raises:
            RankError: they wait in collectives, and none has moved in between.
        """
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK
        seen = ask_positions(missing)
        if seen == self._seen and all(p.waits for p in seen.values()):
            raise absent(results, seen)
        self._seen = seen


def absent(results, seen, more=""):
    """The RankError for a rank that returned while others wait in a collective.

    Args:
        results: dict with the ranks that have returned as keys, not empty.
        seen: dict, waiting rank -> Position, not empty.
        more: what else its cause says.
    """
    rank, waiting = min(results), min(seen)
    others = {r: p.text for r, p in seen.items()}
    others |= {r: "had returned" for r in results if r != rank}
    return RankError(
        rank, f"returned, although rank {waiting} {seen[waiting].text}; every rank "
        f"must take part in every collective{more}", "", others)


def unpickled(rank, body):
    """A rank's result; RankError where this process can't take it."""
    try:
        return pickle.loads(body)
    except Exception as error:
        raise RankError(rank, "its result can't be unpickled here: "
                        f"{type(error).__name__}: {error}", "", {}) from error


def ask_positions(ranks, seconds=0.5):
    """Where ranks stand right now.

    Returns:
        dict, rank -> Position.
    """
    for r in ranks:
        r.ask_position()
    end = time.monotonic() + seconds
    return {r.rank: r.read_position(max(0, end - time.monotonic())) for r in ranks}


def tell(positions):
    """Prints where ranks stood, with their stacks."""
    for rank, found in sorted(positions.items()):
        print(f"rank {rank} {found.text}")
        if found.stack:
            print(found.stack, end="")
