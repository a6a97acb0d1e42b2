"""Simulated ranks: threads of this process that take turns.

Only one rank runs at a time. It keeps the baton until it calls a collective or
returns; then the next rank gets it. Once all have come to the collective, rank 0
goes on. So what the ranks print comes in rank order, every run is the same, and
nothing ever waits for a rank that doesn't come.
"""
import ctypes
import threading
import traceback
from contextvars import copy_context
from numbers import Integral

import torch

from .collectives import Group, fresh, sum_of
from .ranks import Rank, RankError, check_fits
from .request import ALIKE
from .tracebacks import describe_stack, outside, stack_below, user_traceback

TICK = 0.1  # seconds between looks for an interrupt (Windows needs them)
FAREWELL = 1.0  # seconds at most that a rank's thread is given to end


def simulate(fn, size, *args, **kwargs):
    """Runs a function on simulated ranks.

    Args:
        fn: function whose first argument is the Rank it runs on.
        size: int, how many ranks.
        args, kwargs: fn's other arguments. All ranks get the same objects, where
            real ranks get copies: fn shouldn't change them in place.

    Returns:
        list, fn's results in rank order.

    Raises:
        TypeError: fn isn't a function, or can't be called as fn(me, *args, **kwargs).
        RankError: fn raised; or the ranks' collectives don't match, or one returned
            while another waited for it. All ranks have ended then.
    """
    if not callable(fn):
        raise TypeError(f"simulate runs a function; got {type(fn).__name__}")
    check_fits(fn, args, kwargs, f"simulate(work, {size!r}, x)")
    if not isinstance(size, Integral) or size < 1:
        raise ValueError(f"size must be a whole number of ranks, 1 up; got {size!r}")
    runners = [Runner(rank, size, fn, args, kwargs) for rank in range(size)]
    try:
        while not all(runner.returned for runner in runners):
            for runner in runners:
                if runner.can_run:
                    runner.run_on()
                if runner.error is not None:
                    raise failed(runner, runners)
            exchange(runners)
        return [runner.result for runner in runners]
    except RankError as error:
        error.reports = {r.rank: r.me.reports for r in runners if r.me.reports}
        raise
    finally:
        for runner in runners:
            runner.end()
        for runner in runners:
            runner.join()


def exchange(runners):
    """Gives the ranks of a group what all have brought, where all have come."""
    waiting = [runner for runner in runners if runner.request]
    for members in dict.fromkeys(runner.members for runner in waiting):
        peers = [runners[rank] for rank in members]
        here = [peer for peer in peers if peer.request and peer.members == members]
        for peer in peers:
            if peer.returned:
                raise absent(peer, here[0], runners)
            if peer in here and str(peer.request) != str(here[0].request):
                raise mismatch(peer, here[0], runners)
        if here == peers:
            pieces = [peer.request.x for peer in peers]
            for peer in peers:
                peer.pieces, peer.request = pieces, None
    if waiting and not any(r.can_run for r in runners):  # in groups that cross
        raise mismatch(waiting[-1], waiting[0], runners)


class Ended(BaseException):
    """Ends a rank's thread; no Exception, so that the rank's own code lets it pass."""


class Runner:
    """One simulated rank: its thread, and where it stands.

    Attributes:
        request: what it waits for, a Request; None where it has all it needs.
        members: tuple, the ranks of the group that it waits in.
        pieces: list of tensors, what all ranks brought to the collective.
        returned, result, error: how it ended.
    """

    def __init__(self, rank, size, fn, args, kwargs):
        self.rank, self.request, self.members, self.pieces = rank, None, None, None
        self.returned, self.result, self.error = False, None, None
        self._running = self._ending = False
        self._baton, self._back = threading.Semaphore(0), threading.Semaphore(0)
        # Gradient modes belong to a thread: the caller's are carried over.
        self._modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        self.me = Rank(rank, size, torch.get_default_device(),
                       SimulatedGroup(self, range(size)))
        # Jupyter finds the cell that a print belongs to in the thread's context.
        self._thread = threading.Thread(
            target=copy_context().run,
            args=(self._whole_run, fn, self.me, args, kwargs),
            daemon=True, name=f"simulated rank {rank}")

    @property
    def can_run(self):
        """Whether this rank has all it needs, and has not returned."""
        return self.request is None and not self.returned

    def run_on(self):
        """Hands this rank the baton, and waits until it gives it back."""
        if self._thread.ident is None:
            self._thread.start()
        self._running = True
        self._baton.release()
        while not self._back.acquire(timeout=TICK):
            pass
        self._running = False

    def wait_for_others(self, request, members):
        """Called on the rank's own thread, in a collective of a group's members.

        Returns:
            list of their tensors.

        Raises:
            RuntimeError: this is another thread, or simulate has ended long ago.
        """
        if threading.current_thread() is not self._thread:
            raise RuntimeError(
                f"this group belongs to simulated rank {self.rank}, and works in that "
                "rank's function alone, until it returns; use me.group there.")
        if self._ending:  # the function goes on although it was told to end
            raise Ended
        self.request, self.members = request, members
        self._back.release()
        self._take_baton()
        return self.pieces

    def _take_baton(self):
        self._baton.acquire()
        if self._ending:
            raise Ended

    def _whole_run(self, fn, me, args, kwargs):
        """The whole of the rank's thread."""
        inference, grad = self._modes
        try:
            self._take_baton()
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                self.result = fn(me, *args, **kwargs)
            self.returned = True
        except Ended:
            pass
        except BaseException as error:  # SystemExit too: it ends the rank only
            self.error = error
        finally:
            self._back.release()

    def stack(self):
        """The stack that the rank's function has built up, a StackSummary."""
        return stack_below(self._thread, Runner._whole_run.__code__)

    def standing(self):
        """Where the rank stands, in a few words."""
        if self.returned:
            return "had returned"
        if self._thread.ident is None:
            return "had not started"
        doing = "was waiting" if self.request else "was waiting for its turn"
        return describe_stack(self.stack(), doing)

    def end(self):
        """Tells the rank's thread to end, wherever it stands."""
        self._ending = True
        self._baton.release()
        if self._running:  # in code of its own: the caller was interrupted
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident), ctypes.py_object(Ended))

    def join(self):
        """Waits for the thread's end; one that sleeps ends when it wakes up."""
        if self._thread.ident is not None:
            self._thread.join(FAREWELL)


def others(runner, runners):
    """Where all other ranks stand: dict, rank -> text."""
    return {r.rank: r.standing() for r in runners if r is not runner}


def failed(runner, runners):
    """The RankError for a rank that raised."""
    lines = traceback.format_exception_only(runner.error)
    cause = next(line for line in lines if not line.startswith(" "))  # no source lines
    return RankError(runner.rank, cause.splitlines()[0], user_traceback(runner.error),
                     others(runner, runners))


def absent(runner, waiting, runners):
    """The RankError for a rank that returned while another waits for it."""
    return RankError(
        runner.rank, f"returned, although rank {waiting.rank} {waiting.standing()}; "
        "every rank must take part in every collective", "", others(runner, runners))


def mismatch(runner, first, runners):
    """The RankError for a rank whose collective isn't that of the first in it."""
    calls = [r.request if len(r.members) == len(runners) else
             f"{r.request} among ranks {list(r.members)}" for r in (runner, first)]
    return RankError(
        runner.rank, f"called {calls[0]}, but rank {first.rank} called {calls[1]}; "
        f"{ALIKE}", "".join(outside(runner.stack()).format()), others(runner, runners))


class SimulatedGroup(Group):
    """The collectives of a simulated rank: the plain formulas, over all ranks' pieces.

    Args:
        runner: Runner, which meets the others.
        members: the ranks of the group, in rising order.
    """

    def __init__(self, runner, members):
        self._runner, self._members = runner, tuple(members)
        super().__init__(self._members.index(runner.rank), len(self._members))

    def _meet(self, request):
        """All ranks' tensors; copies, since their owners may go on to change them."""
        x = None if request.x is None else fresh(request.x)
        return self._runner.wait_for_others(request._replace(x=x), self._members)

    def _subgroup(self, members):
        if self.rank in members:
            return SimulatedGroup(self._runner, [self._members[r] for r in members])

    def _all_reduce(self, request):
        return sum_of(self._meet(request))

    def _all_gather(self, request):
        return torch.cat(self._meet(request), request.dim).contiguous()

    def _reduce_scatter(self, request):
        pieces = [x.split(request.sizes, request.dim)[self.rank]
                  for x in self._meet(request)]
        return fresh(sum_of(pieces))

    def _broadcast(self, request):
        return self._meet(request)[request.root].clone()

    def _gather(self, request):
        pieces = self._meet(request)
        if self.rank == request.root:
            return torch.cat(pieces, request.dim).contiguous()

    def _scatter(self, request):
        whole = self._meet(request)[request.root]
        return fresh(whole.split(request.sizes, request.dim)[self.rank])

    def _barrier(self, request):
        self._meet(request)
