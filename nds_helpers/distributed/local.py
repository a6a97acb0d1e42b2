"""A set of ranks on this machine: started, called, and replaced when one fails."""
import atexit
import weakref

import torch.multiprocessing

from nds_helpers.parallel.ranks import RankError

from .answers import Answers, ask_positions, tell, unpickled
from .pickling import dump_call
from .plan import count, without_nccl
from .processes import (
    RankProcess,
    interrupts_deferred,
    is_prepared,
    prepare,
    rank_environment,
    start_method,
)
from .rendezvous import Meeting, loopback

START = 120  # seconds until all ranks must have joined; importing torch can be slow
GONE = "The ranks are starting anew; what they held (me.state) is gone."
LONGER = " If it only needs longer, pass timeout=seconds."

living = weakref.WeakSet()


@atexit.register  # later than multiprocessing's own, and so called before it
def end_all():
    """Ends the ranks of every set when the kernel exits."""
    for ranks in list(living):
        ranks.close()


class LocalRanks:
    """Ranks in processes of their own, on this machine.

    Args:
        plan: Plan.
        once: whether this is for one call, so that ranks that fail are not replaced.
    """

    def __init__(self, plan, once=False):
        self.plan, self._once, self._closed = plan, once, False
        self._context = torch.multiprocessing.get_context(start_method())
        self._meeting = Meeting()
        self._ranks = []
        self._started = self._joined = False
        living.add(self)

    def start(self):
        """Starts all ranks, shows progress where it takes seconds, waits for them."""
        slow = not is_prepared(self._context)
        if slow:
            print(f"Starting {count(self.plan.size, 'rank')}; this takes some seconds.",
                  flush=True)
        try:
            self._start_once(slow)
        except RankError as error:
            if not self.plan.environment:  # no second way to try
                raise
            self.plan = without_nccl(
                self.plan, f"NCCL did not let the ranks share a GPU ({error.cause})")
            self._start_once(slow)
        print(self.plan.line())

    def _start_once(self, slow):
        try:
            self.renew()
            self._join(self._show_joined if slow else lambda done: None)
        except BaseException:  # KeyboardInterrupt too
            self.end()
            raise

    def renew(self):
        """Ends the ranks and starts fresh ones, without waiting until they joined."""
        self.end()
        if self._closed:
            raise RuntimeError("the workers were closed during this call.")
        prepare(self._context)
        with interrupts_deferred():
            self._start_processes()

    def _start_processes(self):
        plan, meeting = self.plan, self._meeting.address()
        for rank in range(plan.size):
            environment = (rank_environment(rank, plan.size, meeting[0])
                           | loopback() | dict(plan.environment))
            self._ranks.append(RankProcess(self._context, rank, plan, meeting,
                                           environment))
            self._ranks[-1].start()
        self._started = True

    def _show_joined(self, done):
        print(f"{done} of {count(self.plan.size, 'rank')} ready", flush=True)

    def _join(self, progress=lambda done: None):
        """Waits until every rank has joined the group."""
        answers = Answers(self._ranks, progress)
        try:
            answers.collect(START)
        finally:
            answers.finish()
        self._joined = True

    def run(self, fn, args, kwargs, seconds):
        """One call on every rank; see `Workers.run`."""
        header, payload = dump_call(fn, args, kwargs)
        try:
            if not self._started:
                self.renew()
            if not self._joined:
                self._join()
            return self._call(header, payload, seconds)
        except KeyboardInterrupt:
            self._replace(self._tell)
            raise
        except BaseException:
            self._replace()
            raise

    def _call(self, header, payload, seconds):
        for r in self._ranks:
            r.send(header, payload)
        answers = Answers(self._ranks)
        try:
            results = answers.collect(seconds, self.plan.debug, LONGER)
        finally:
            answers.finish()
        return [unpickled(rank, body) for rank, body in enumerate(results)]

    def _tell(self):
        print("Interrupted. Where the ranks stood:")
        tell(ask_positions(self._ranks))

    def _replace(self, before=lambda: None):
        """Replaces all ranks; a second interrupt in here leaves it to the next call."""
        try:
            before()
            if not self._once:
                print(GONE)
        finally:
            if self._once:
                self.end()
            else:
                self.renew()

    def end(self):
        """Kills every rank; nothing of this set is left afterwards."""
        with interrupts_deferred():
            self._started = self._joined = False
            for r in self._ranks:
                r.end()
            for r in self._ranks:
                r.wait_for_end()
            self._ranks = []

    def close(self):
        """Ends the ranks for good, also while another thread waits for them."""
        self._closed = True
        self.end()

    @property
    def pids(self):
        """The ranks' process numbers, in rank order."""
        return [r.process.pid for r in self._ranks]

    @property
    def alive(self):
        """Whether every rank is running."""
        return bool(self._ranks) and all(r.alive for r in self._ranks)
