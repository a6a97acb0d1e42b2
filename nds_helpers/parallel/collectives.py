"""Collectives: how ranks exchange tensors, and what that costs.

    Group (checks the arguments, counts bytes, takes the time)
      SoloGroup          one rank
      SimulatedGroup     threads that take turns (simulated.py)
      SharedMemoryGroup  processes of one machine (shared.py)
      DistributedGroup   torch.distributed: gloo or NCCL (process_group.py)

Bytes are those of the ring algorithm, whatever really carries them: the ranks stand
in a ring, and each sends to the next one only. Every tensor is cut into one piece a
rank. In reduce_scatter a piece travels round and picks up every rank's share; in
all_gather the pieces travel round unchanged; all_reduce is the one after the other
(Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms").
"""
import time
from contextlib import contextmanager
from typing import NamedTuple

import torch

from .request import Request, numbers, slice_bytes, tensor


class Call(NamedTuple):
    """One collective, as one rank saw it.

    Attributes:
        operation: "all_reduce", "all_gather", ...
        bytes: what a ring algorithm makes this rank send.
        seconds: how long the call took, waiting for the others included. NCCL works
            in the background: there it is the time to queue the work.
        started: time.perf_counter() at its beginning.
    """

    operation: str
    bytes: int
    seconds: float
    started: float


def totals(calls):
    """Sums calls up by operation.

    Args:
        calls: iterable of Call.

    Returns:
        dict, operation -> (count, bytes, seconds).
    """
    found = {}
    for call in calls:
        count, sent, seconds = found.get(call.operation, (0, 0, 0.0))
        found[call.operation] = count + 1, sent + call.bytes, seconds + call.seconds
    return found


class Group:
    """The ranks that work together, seen from one of them.

    Every rank calls the same collectives in the same order. A collective returns a
    new, contiguous tensor and leaves its argument as it is; gradients don't flow
    through it. A subclass moves the data: it has a method `_all_reduce(request)`,
    `_all_gather(request)` and so on for each collective.

    Attributes:
        rank, size: this rank's number, and how many there are.
        calls: list of Call, everything so far; `calls.clear()` forgets it.
    """

    def __init__(self, rank, size):
        self.rank, self.size, self.calls = rank, size, []

    def all_reduce(self, x):
        """The sum over all ranks.

        Args:
            x: tensor of numbers, the same shape and dtype on every rank.

        Returns:
            Tensor like x. Bytes: all pieces but one in each of the two phases.
        """
        request = Request("all_reduce", numbers("all_reduce", x))
        whole, extra = divmod(x.numel(), self.size)
        kept = 2 * whole + (self.rank < extra) + ((self.rank + 1) % self.size < extra)
        sent = (2 * x.numel() - kept) * x.element_size()
        return self._timed(self._all_reduce, request, sent)

    def all_gather(self, x, dim=-1, sizes=None):
        """The pieces of all ranks, one behind the other along `dim`.

        Args:
            x: tensor, this rank's piece; the same dtype on every rank, and the same
                shape but for `dim`.
            dim: int.
            sizes: every rank's size along dim; None where all are equal.

        Returns:
            Tensor. Bytes: all pieces but the next neighbour's.
        """
        request = self._pieces("all_gather", x, dim, sizes)
        others = sum(request.sizes) - request.sizes[(self.rank + 1) % self.size]
        return self._timed(self._all_gather, request, others * slice_bytes(request))

    def reduce_scatter(self, x, dim=-1, sizes=None):
        """The sum over all ranks, of which each keeps its piece along `dim`.

        Args:
            x: tensor of numbers, the same shape and dtype on every rank.
            dim: int.
            sizes: what each rank keeps along dim; None: equal pieces.

        Returns:
            Tensor, this rank's piece. Bytes: all pieces but its own.
        """
        numbers("reduce_scatter", x)
        request = self._pieces("reduce_scatter", x, dim, sizes)
        others = sum(request.sizes) - request.sizes[self.rank]
        return self._timed(self._reduce_scatter, request, others * slice_bytes(request))

    def broadcast(self, x, source=0):
        """The source's tensor, on every rank.

        Args:
            x: tensor; on the other ranks it gives shape and dtype only.
            source: the rank whose values count.

        Returns:
            Tensor. Bytes: x once, but nothing from the last rank of the ring.
        """
        request = Request("broadcast", tensor("broadcast", x),
                          root=self._member("source", source))
        last = (source - 1) % self.size
        sent = 0 if self.rank == last else x.numel() * x.element_size()
        return self._timed(self._broadcast, request, sent)

    def gather(self, x, dim=-1, sizes=None, to=0):
        """The pieces of all ranks, one behind the other along `dim`, on one rank.

        Args:
            x, dim, sizes: as for `all_gather`.
            to: the rank that gets them.

        Returns:
            Tensor on rank `to`, None elsewhere. Bytes: this rank's piece, but
            nothing from rank `to`.
        """
        self._member("to", to)
        request = self._pieces("gather", x, dim, sizes)._replace(root=to)
        sent = 0 if self.rank == to else x.numel() * x.element_size()
        return self._timed(self._gather, request, sent)

    def scatter(self, x, dim=-1, sizes=None, source=0):
        """The source's tensor in pieces along `dim`, one for each rank.

        Args:
            x: tensor; on the other ranks it gives shape and dtype only.
            dim: int.
            sizes: what each rank gets along dim; None: equal pieces.
            source: the rank whose values count.

        Returns:
            Tensor, this rank's piece. Bytes: from the source all pieces but its own.
        """
        self._member("source", source)
        request = self._pieces("scatter", x, dim, sizes)._replace(root=source)
        others = sum(request.sizes) - request.sizes[source]
        sent = others * slice_bytes(request) if self.rank == source else 0
        return self._timed(self._scatter, request, sent)

    def barrier(self):
        """Waits until every rank has come this far."""
        self._timed(self._barrier, Request("barrier"), 0)

    def subgroup(self, members):
        """A group of some of these ranks; all of them call this, members or not.

        Args:
            members: ranks of this group. In the new one they count from 0, in the
                same order.

        Returns:
            Group; None on a rank that isn't a member.
        """
        members = sorted({self._member("members", rank) for rank in members})
        if not members:
            raise ValueError("a subgroup needs at least one rank; got no members")
        if len(members) == 1:
            return SoloGroup() if self.rank in members else None
        return self._subgroup(members)

    @contextmanager
    def recording(self):
        """`with group.recording() as calls:` fills the list when the block ends."""
        made, start = [], len(self.calls)
        try:
            yield made
        finally:
            made += self.calls[start:]

    def close(self):
        """Lets go of what the group holds; afterwards it can't be used."""

    def __reduce_ex__(self, protocol):
        raise TypeError("a group can't leave its rank (me and me.group stay there); "
                        "return what was computed instead")

    def _timed(self, move, request, sent):
        """Moves the data, and records the call."""
        started = time.perf_counter()
        result = move(request)
        seconds = time.perf_counter() - started
        self.calls.append(Call(request.operation, sent, seconds, started))
        return result

    def _pieces(self, operation, x, dim, sizes):
        """A checked Request for an operation with one piece a rank."""
        x = tensor(operation, x)
        if not -x.dim() <= dim < x.dim():
            raise ValueError(f"{operation} along dim {dim} needs a tensor with that "
                             f"dimension; got shape {list(x.shape)}")
        dim %= x.dim()
        length, own = x.shape[dim], operation not in ("reduce_scatter", "scatter")
        if sizes is None:
            if not own and length % self.size:
                raise ValueError(
                    f"{operation} can't cut {length} into {self.size} equal pieces; "
                    "pass sizes, one a rank")
            sizes = (length if own else length // self.size,) * self.size
        sizes = tuple(map(int, sizes))
        if len(sizes) != self.size or min(sizes) < 0:
            raise ValueError(f"{operation} needs {self.size} sizes, one a rank, none "
                             f"below 0; got {list(sizes)}")
        wanted = sizes[self.rank] if own else sum(sizes)
        if length != wanted:
            raise ValueError(
                f"{operation}: sizes {list(sizes)} ask for {wanted} along dim {dim} on "
                f"rank {self.rank}, but its tensor has shape {list(x.shape)}")
        return Request(operation, x, dim, sizes)

    def _member(self, name, rank):
        """`rank`, where the group has such a rank."""
        if rank not in range(self.size):
            raise ValueError(f"{name} must be one of the ranks 0 to {self.size - 1}; "
                             f"got {rank!r}")
        return rank


def fresh(x):
    """A contiguous copy."""
    return x.clone(memory_format=torch.contiguous_format)


def sum_of(pieces):
    """The sum of two or more tensors, from the first to the last."""
    total = pieces[0]
    for piece in pieces[1:]:
        total = total + piece
    return total


class SoloGroup(Group):
    """A group of one rank: every collective is a copy."""

    def __init__(self):
        super().__init__(0, 1)

    def _copy(self, request):
        return fresh(request.x)

    _all_reduce = _all_gather = _reduce_scatter = _broadcast = _copy
    _gather = _scatter = _copy

    def _barrier(self, request):
        """Nobody to wait for."""


def connect(kind, device):
    """The group of this process, over torch.distributed's default group.

    Args:
        kind: "shared", "gloo" or "nccl"; with the last two, the default group's own
            backend carries the data.
        device: where this rank keeps its tensors; shared memory wants the CPU.

    Returns:
        Group. One rank gets a SoloGroup. Where shared memory isn't safe, rank 0
        says so and all get torch.distributed's gloo.

    Raises:
        ValueError: another kind, or shared memory for a GPU.
    """
    from .process_group import DistributedGroup  # these build on this module
    from .shared import SharedMemoryGroup, obstacle

    if kind not in ("shared", "gloo", "nccl"):
        raise ValueError(f'kind must be "shared", "gloo" or "nccl"; got {kind!r}')
    if kind == "shared" and torch.device(device).type != "cpu":
        raise ValueError("shared memory connects ranks on the CPU; this rank's device "
                         f'is {device}, so choose "gloo" or "nccl"')
    plain = DistributedGroup()
    if plain.size == 1:
        return SoloGroup()
    if kind != "shared":
        return plain
    if obstacle():
        if plain.rank == 0:
            print(f"no shared memory: {obstacle()}; gloo connects the ranks instead")
        return plain
    return SharedMemoryGroup()
