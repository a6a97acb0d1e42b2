"""Collectives through memory that processes of one machine share.

gloo sends every message through the network stack of the operating system. Ranks on
one machine can do without: each writes its tensor into its own slot of a file that
all have mapped into their memory, raises its flag, waits for the others' flags, and
reads their slots.

    flags  [rank]            how many steps this rank has taken, 8 bytes
    calls  [step % 2, rank]  what it calls, as text: compared at every collective
    slots  [step % 2, rank]  its data, at most a chunk

Why two slots are enough for each rank: a rank that has raised its flag to n + 1 has
read everything of step n. So whoever has seen all flags at n + 1 may write step
n + 2 over step n.

Python has no fences: that the others see the data no later than the flag is a promise
of x86-64 processors, which keep the order of writes, and write 8 aligned bytes at
once. Other processors don't give it.
"""
import os
import platform
import time
from functools import lru_cache, partial
from math import prod

import torch
import torch.distributed as dist

from .collectives import Group, fresh, sum_of
from .mapping import map_together
from .process_group import process_subgroup
from .request import unlike

CHUNK = 2**20  # bytes of a slot; longer messages take several steps
CALL = 512  # bytes for the text of a call
LINE = 64  # bytes of a cache line: flags in one line would slow each other down
PATIENCE = 1e-3  # seconds of watching a flag before the rank goes to sleep
# Hands the core to whoever wants it; under a microsecond where nobody does.
yield_core = getattr(os, "sched_yield", partial(time.sleep, 0))


def obstacle():
    """What keeps this machine from using shared memory; None where nothing does."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"{platform.machine()} processors may change the order of writes"
    if os.name != "posix":
        return "this system can't delete a file that is in use"
    return None


class SharedMemoryGroup(Group):
    """Ranks on the CPU of one machine, two or more.

    Sums are taken in rank order: bitwise the same on every rank, and the same for a
    row however many rows are beside it. What the ranks call is compared every time.

    Args:
        process_group: the torch.distributed group of the same ranks, needed once to
            meet; None for the default one.
        timeout: seconds to wait for the other ranks; None: as long as the process
            group does.
    """

    def __init__(self, process_group=None, timeout=None):
        super().__init__(dist.get_rank(process_group),
                         dist.get_world_size(process_group))
        if self.size == 1:
            raise ValueError("one rank shares memory with nobody; use SoloGroup")
        self._timeout = timeout or process_group_timeout(process_group)
        self._peers = process_group
        self._others = [r for r in range(self.size) if r != self.rank]
        self._calls_at = LINE * self.size
        self._slots_at = self._calls_at + 2 * CALL * self.size
        self._memory = map_together(self._slots_at + 2 * CHUNK * self.size,
                                    process_group)
        self._flags = memoryview(self._memory)[:LINE * self.size].cast("q")
        self._step = 0
        self._slots = lru_cache(maxsize=256)(self._make_slots)

    def close(self):
        """Unmaps the memory as soon as no tensor looks at it any more."""
        self._memory = self._flags = self._slots = None

    def _all_reduce(self, request):
        x = request.x
        steps = self._steps(request, x, (x.numel(),) * self.size)
        if x.nbytes <= CHUNK:  # the common case, without the detour of slices
            (_, chunks), = steps
            return sum_of(chunks).view(x.shape)
        total = torch.empty(x.numel(), dtype=x.dtype)
        for start, chunks in steps:
            add_up(chunks, total[start:start + len(chunks[0])])
        return total.view(x.shape)

    def _all_gather(self, request):
        return torch.cat(self._collect(request), request.dim).contiguous()

    def _gather(self, request):
        pieces = self._collect(request)
        if self.rank == request.root:
            return torch.cat(pieces, request.dim).contiguous()

    def _reduce_scatter(self, request):
        front = request.x.movedim(request.dim, 0)  # [rows, ...]
        row = prod(front.shape[1:])
        begin = row * sum(request.sizes[:self.rank])
        own = torch.empty(request.sizes[self.rank], *front.shape[1:], dtype=front.dtype)
        flat = own.view(-1)
        end = begin + len(flat)
        counts = (front.numel(),) * self.size
        for start, chunks in self._steps(request, front, counts):
            low, high = max(start, begin), min(start + len(chunks[0]), end)
            if low < high:
                add_up([chunk[low - start:high - start] for chunk in chunks],
                       flat[low - begin:high - begin])
        return own.movedim(0, request.dim).contiguous()

    def _broadcast(self, request):
        x = torch.empty(request.x.shape, dtype=request.x.dtype)
        flat = x.view(-1)
        counts = tuple(len(flat) * (r == request.root) for r in range(self.size))
        for start, chunks in self._steps(request, request.x, counts):
            chunk = chunks[request.root]
            flat[start:start + len(chunk)] = chunk
        return x

    def _scatter(self, request):
        whole = self._broadcast(request)  # all ranks can read it where it lies
        return fresh(whole.split(request.sizes, request.dim)[self.rank])

    def _barrier(self, request):
        for _ in self._steps(request, torch.empty(0), (0,) * self.size):
            pass

    def _subgroup(self, members):
        peers = process_subgroup(members, self._peers)
        return SharedMemoryGroup(peers, self._timeout) if self.rank in members else None

    def _collect(self, request):
        """All ranks' pieces, a list of tensors; good until the next collective."""
        x, dim = request.x, request.dim
        shapes = [x.shape[:dim] + (n,) + x.shape[dim + 1:] for n in request.sizes]
        counts = tuple(map(prod, shapes))
        if max(counts) * x.element_size() <= CHUNK:  # no need to copy them twice
            (_, flats), = self._steps(request, x, counts)
        else:
            flats = [torch.empty(n, dtype=x.dtype) for n in counts]
            for start, chunks in self._steps(request, x, counts):
                for flat, chunk in zip(flats, chunks):
                    flat[start:start + len(chunk)] = chunk
        return [flat.view(shape) for flat, shape in zip(flats, shapes)]

    def _steps(self, request, x, counts):
        """Exchanges tensors, a chunk of each at a time; at least one step.

        Args:
            request: Request, to be compared.
            x: this rank's tensor, of which the first counts[rank] elements count.
            counts: tuple, how many elements each rank sends.

        Yields:
            (start, chunks): the position of the chunk's first element, and all ranks'
            chunks, a list of tensors [at most a chunk]; good until the next step.
        """
        if self._memory is None:
            raise RuntimeError("this group is closed; connect the ranks anew")
        if not x.is_cpu:
            raise ValueError(f"shared memory takes tensors on the CPU; got one on "
                             f"{x.device}")
        flat, room = x.reshape(-1), CHUNK // x.element_size()
        self._announce(request)
        for start in range(0, max(*counts, 1), room):
            left = tuple(min(max(n - start, 0), room) for n in counts)
            self._step += 1
            chunks = self._slots(self._step % 2, x.dtype, left)
            if left[self.rank]:
                piece = flat if left == counts else flat[start:start + room]
                chunks[self.rank].copy_(piece)
            self._meet(request)
            if start == 0:
                self._compare(request)
            yield start, chunks

    def _make_slots(self, parity, dtype, counts):
        """The first elements of all ranks' slots: a list of tensors [count]."""
        with torch.inference_mode(False):  # views that stay good when it is over
            return [self._slot(parity, rank, dtype, n) for rank, n in enumerate(counts)]

    def _slot(self, parity, rank, dtype, count):
        """A tensor over the beginning of a slot."""
        if count == 0:
            return torch.empty(0, dtype=dtype)
        begin = self._slots_at + CHUNK * (parity * self.size + rank)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=begin)

    def _call_at(self, rank, step):
        """The place of the text of what a rank calls, a slice of the memory."""
        begin = self._calls_at + CALL * (step % 2 * self.size + rank)
        return slice(begin, begin + CALL)

    def _announce(self, request):
        """Writes down what this rank calls in the coming step."""
        text = str(request).encode()[:CALL].ljust(CALL)
        self._memory[self._call_at(self.rank, self._step + 1)] = text

    def _compare(self, request):
        """Refuses to go on where the ranks call different things."""
        calls = [self._memory[self._call_at(r, self._step)] for r in range(self.size)]
        if calls.count(calls[0]) < self.size:
            raise unlike([call.decode().rstrip() for call in calls])

    def _meet(self, request):
        """Raises this rank's flag, and waits until all flags are up."""
        flags, step, line = self._flags, self._step, LINE // 8
        flags[self.rank * line] = step
        for rank in self._others:
            if flags[rank * line] < step:
                self._wait_for(rank, request)

    def _wait_for(self, rank, request):
        """Watches a rank's flag until it is up; after a while, only now and then."""
        began, flag = time.perf_counter(), rank * LINE // 8
        while self._flags[flag] < self._step:
            waited = time.perf_counter() - began
            if waited < PATIENCE:
                yield_core()
            elif waited < self._timeout:
                time.sleep(min(waited / 20, 1e-3))  # adds a twentieth at most
            else:
                raise self._missing(request)

    def _missing(self, request):
        """The TimeoutError that names the ranks which didn't come."""
        late = [r for r in self._others if self._flags[r * LINE // 8] < self._step]
        names = " and ".join(f"rank {r}" for r in late)
        return TimeoutError(
            f"rank {self.rank} waited {self._timeout:g} s in {request.operation} for "
            f"{names}: ended, or busy with something else")


def add_up(chunks, total):
    """Writes the sum of two or more tensors into `total`, first to last."""
    torch.add(chunks[0], chunks[1], out=total)
    for chunk in chunks[2:]:
        total.add_(chunk)


def process_group_timeout(process_group):
    """Seconds for which torch.distributed waits; it keeps them in a private place."""
    group = process_group or dist.group.WORLD
    options = getattr(group._get_backend(torch.device("cpu")), "options", None)
    waits = getattr(options, "_timeout", None)
    return waits.total_seconds() if waits else 60.0
