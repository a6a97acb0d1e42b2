"""Ranks from a notebook: `Workers` starts them once and runs functions on them."""
import threading
import weakref
from contextlib import contextmanager
from numbers import Integral, Real

from nds_helpers.parallel.ranks import RankError, check_fits

from . import worker
from .holdings import free, holdings
from .local import LocalRanks
from .plan import make_plan
from .torchrun import JoinedRanks, under_torchrun


class Workers:
    """Ranks that live until they are closed, and run functions one after another.

    Args:
        size: int, how many ranks.
        backend: "auto" (NCCL where GPUs are, else shared memory), "shared", "gloo"
            or "nccl".
        timeout: seconds that a call may take, unless `run` is told otherwise.
        debug: whether collectives are compared between the ranks: another shape,
            dtype or operation, or a missing rank, is then named within seconds.

    A rank is a process; torch.distributed's default group is initialised in it. An
    error, a death, a timeout or an interrupt ends all ranks and starts fresh ones.

    Modules: functions and classes from cells travel anew with every call. Modules in
    files are imported by each rank when it first needs them: after editing one, call
    `restart()`. nds_helpers itself is imported once, by the server that ranks are
    forked from: after editing it, restart the kernel. That server keeps running
    (idle) after `close()`, so that the next start is quick; it ends with the kernel.
    """

    def __init__(self, size, backend="auto", timeout=60, debug=False, *,
                 _once=False):
        check_size(size)
        check_timeout(timeout)
        if worker.inside_rank:
            raise RuntimeError("this function already runs on a rank; ranks can't "
                               "start ranks of their own.")
        self.size, self.timeout = size, timeout
        self._busy = threading.Lock()
        self._closed = False
        self._ranks = (JoinedRanks(size, backend, timeout, debug) if under_torchrun()
                       else LocalRanks(make_plan(size, backend, debug), _once))
        self._finalizer = weakref.finalize(self, self._ranks.close)
        self._ranks.start()

    def run(self, fn, /, *args, timeout=None, **kwargs):
        """Runs `fn(me, *args, **kwargs)` on every rank.

        Args:
            fn: a function, also one from a cell. Its first argument is the rank it
                runs on: me.rank, me.size, me.device, me.group, me.state (a dict that
                is kept until the ranks end).
            timeout: seconds for this call; None for the one given at the start.

        Returns:
            list, one result a rank, in rank order; tensors are on the CPU.

        Raises:
            RankError: a rank raised, died or took too long. Which one, why, and where
                the others stood is in the message.
            TypeError: fn isn't a function, takes other arguments, or names something
                that can't be sent.
            RuntimeError: the ranks are closed, or busy with another thread's call.
        """
        if not callable(fn):
            raise TypeError(f"run needs a function, not {fn!r}; write "
                            "workers.run(work, x), not workers.run(work(x)).")
        check_fits(fn, args, kwargs, "workers.run(work, x)")
        if timeout is not None:
            check_timeout(timeout)
        try:
            with self._turn():
                return self._ranks.run(fn, args, kwargs, timeout or self.timeout)
        except (RankError, KeyboardInterrupt) as error:
            # The launcher's own frames would only hide the message.
            raise error.with_traceback(None) from None

    @contextmanager
    def _turn(self):
        """The right to use the ranks; one call at a time has it."""
        if self._closed:
            raise RuntimeError("these workers are closed; make new ones with "
                               f"Workers({self.size}).")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("another thread is running a function on these "
                               "workers; wait for it, or use a second set.")
        try:
            yield
        finally:
            self._busy.release()

    def state(self):
        """What every rank keeps in me.state.

        Returns:
            pandas.DataFrame with columns rank, name, type, megabytes.
        """
        import pandas

        rows = [row for rows in self.run(holdings) for row in rows]
        return pandas.DataFrame(rows, columns=["rank", "name", "type", "megabytes"])

    def free(self, *names):
        """Removes names from every rank's me.state; all of them when none is named.

        Raises:
            KeyError: a rank doesn't hold a name; nothing has been removed there.
        """
        for rank, unknown in enumerate(self.run(free, *names)):
            if unknown:
                raise KeyError(f"rank {rank} holds no {unknown[0]!r}; workers.state() "
                               "lists what it holds.")

    def restart(self):
        """Ends the ranks and starts fresh ones; what they held is gone."""
        with self._turn():
            self._ranks.start()

    def close(self):
        """Ends the ranks; safe to call twice."""
        self._closed = True
        self._finalizer()

    @property
    def pids(self):
        """The ranks' process numbers, in rank order."""
        return self._ranks.pids

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __repr__(self):
        state = "closed" if self._closed else (
            "alive" if self._ranks.alive else "not running")
        return f"<Workers: {self.size} ranks, {self._ranks.plan.group}, {state}>"

    def __reduce__(self):
        raise TypeError("a function that runs on ranks can't use the Workers "
                        "themselves")


def launch(fn, n, *args, backend="auto", timeout=60, debug=False, **kwargs):
    """Starts n ranks, runs `fn(me, *args, **kwargs)` on each, and ends them.

    Returns:
        list, one result a rank, in rank order.

    Raises:
        TypeError: fn isn't a function, or takes other arguments.
    """
    if not callable(fn):
        raise TypeError(f"launch needs the function first, not {fn!r}; write "
                        "launch(work, 2, x).")
    check_fits(fn, args, kwargs, f"launch(work, {n!r}, x)")
    with Workers(n, backend, timeout, debug, _once=True) as workers:
        return workers.run(fn, *args, **kwargs)


def check_size(size):
    """Requires a whole number of ranks, at least one."""
    if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
        raise ValueError(f"the number of ranks must be a whole number, 1 or more, "
                         f"not {size!r}.")


def check_timeout(timeout):
    """Requires a positive number of seconds."""
    if not isinstance(timeout, Real) or not timeout > 0:
        raise ValueError(f"timeout must be a number of seconds above 0, not "
                         f"{timeout!r}.")
