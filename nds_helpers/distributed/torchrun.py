"""The same calls under torchrun: the ranks exist already, and this is one of them.

    torchrun --nproc-per-node 2 script.py
    torchrun --nnodes 2 --nproc-per-node 1 --node-rank 0 \\
             --master-addr 10.0.0.1 --master-port 29500 script.py

Every rank runs the whole script; where it comes to `workers.run(fn)`, each runs fn
as itself, and each gets the list of all results.
"""
import atexit
import os
from dataclasses import replace
from datetime import timedelta

import torch.distributed as dist

from nds_helpers.parallel.ranks import RankError

from .answers import unpickled
from .joining import join_group
from .pickling import dump_result
from .plan import make_plan
from .rendezvous import interface_towards
from .worker import failure

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def under_torchrun():
    """Whether something like torchrun has started this process as one of its ranks."""
    return all(name in os.environ for name in VARIABLES)


class JoinedRanks:
    """The ranks that torchrun has started, seen from one of them.

    Args:
        size: int, the number of ranks that the script asks for.
        backend, debug: see `Workers`.
        timeout: seconds that a collective may wait.

    Raises:
        ValueError: torchrun has started another number of ranks.
    """

    def __init__(self, size, backend, timeout, debug):
        self._rank, started = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if started != size:
            raise ValueError(
                f"torchrun has started {started} ranks, but this asks for {size}; "
                "let --nnodes times --nproc-per-node be the number asked for.")
        self.size, self._timeout = size, timedelta(seconds=timeout)
        # Without these two, count on one rank a machine.
        self._local_rank = int(os.environ.get("LOCAL_RANK", 0))
        here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        self.plan = plan_across(make_plan(here, backend, debug), size, backend)
        self.pids, self.alive = [os.getpid()], True

    def start(self):
        """Joins the group."""
        os.environ.update(self.plan.environment)
        os.environ.update(interface_towards(os.environ["MASTER_ADDR"]))
        if not dist.is_initialized():
            atexit.register(leave)
        self._me = join_group(self.plan, self._rank, self.size, self._local_rank,
                              timeout=self._timeout)
        if self._rank == 0:
            print(f"{self.size} ranks under torchrun; on this machine: "
                  f"{self.plan.line()}", flush=True)

    def run(self, fn, args, kwargs, seconds):
        """Runs fn on this rank, then exchanges the results.

        The time limit is the process group's, set at the start: no kernel looks on.

        Returns:
            list, all ranks' results, the same on every rank.

        Raises:
            RankError: fn raised, or another rank is gone.
        """
        self._me.reports.clear()
        try:
            result = dump_result(fn(self._me, *args, **kwargs)).tobytes()
            results = [None] * self.size
            dist.all_gather_object(results, result)
        except Exception as error:
            found = failure(error, caller=__file__)
            cause = found.cause
            if found.lost_peer:
                cause = f"it lost contact with another rank, which has ended: {cause}"
            raise RankError(self._rank, cause, found.traceback,
                            reports={self._rank: self._me.reports}) from error
        return [unpickled(rank, body) for rank, body in enumerate(results)]

    def close(self):
        """Nothing to end: the ranks belong to torchrun."""


def plan_across(plan, size, backend):
    """The plan of one machine's ranks, as part of `size` ranks on several."""
    if plan.size == size or plan.group != "shared":
        return plan
    if backend == "shared":
        raise ValueError('backend "shared" works on one machine only; use "auto".')
    return replace(plan, group="gloo", why="several machines, no GPU found")


def leave():
    """Leaves the group in order when the script ends."""
    if dist.is_initialized():
        dist.destroy_process_group()
