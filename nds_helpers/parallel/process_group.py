"""Collectives over torch.distributed: gloo for the CPU, NCCL for GPUs."""
import torch
import torch.distributed as dist

from .collectives import Group, fresh
from .request import unlike


class DistributedGroup(Group):
    """A group over a torch.distributed process group.

    gloo takes tensors on the CPU and on GPUs (it copies those to the CPU and back),
    NCCL on GPUs only. Neither compares what the ranks call: a mismatch hangs, aborts
    or gives wrong numbers, unless `dist.set_debug_level(dist.DebugLevel.DETAIL)` is
    on before the process group is made. That doesn't see other roots, so then all
    calls are compared here too. They carry neither int16 nor float8.

    The order in which gloo sums over more than two ranks depends on the length of
    the message: the last bits of a row may differ with the rows beside it. NCCL
    gives no promise either. `SharedMemoryGroup` always sums in rank order.

    Args:
        process_group: None for the default one.
    """

    def __init__(self, process_group=None):
        super().__init__(dist.get_rank(process_group),
                         dist.get_world_size(process_group))
        self._peers = process_group

    def _timed(self, move, request, sent):
        if dist.get_debug_level() == dist.DebugLevel.DETAIL:
            self._compare(str(request))
        return super()._timed(move, request, sent)

    def _compare(self, call):
        """Refuses to go on where the ranks call different things."""
        calls = [None] * self.size
        dist.all_gather_object(calls, call, group=self._peers)
        if calls.count(call) < self.size:
            raise unlike(calls)

    def _all_reduce(self, request):
        total = fresh(request.x)
        dist.all_reduce(total, group=self._peers)
        return total

    def _all_gather(self, request):
        piece = padded(request.x.movedim(request.dim, 0), max(request.sizes))
        pieces = [torch.empty_like(piece) for _ in request.sizes]
        dist.all_gather(pieces, piece, group=self._peers)
        return joined(pieces, request)

    def _reduce_scatter(self, request):
        pieces = padded_pieces(request)
        own = torch.empty_like(pieces[0])
        dist.reduce_scatter(own, pieces, group=self._peers)
        return self._own_piece(own, request)

    def _broadcast(self, request):
        x = fresh(request.x)
        dist.broadcast(x, group_src=request.root, group=self._peers)
        return x

    def _gather(self, request):
        piece = padded(request.x.movedim(request.dim, 0), max(request.sizes))
        if self.rank != request.root:
            dist.gather(piece, group_dst=request.root, group=self._peers)
            return None
        pieces = [torch.empty_like(piece) for _ in request.sizes]
        dist.gather(piece, pieces, group_dst=request.root, group=self._peers)
        return joined(pieces, request)

    def _scatter(self, request):
        pieces = padded_pieces(request)
        own = torch.empty_like(pieces[0])
        dist.scatter(own, pieces if self.rank == request.root else None,
                     group_src=request.root, group=self._peers)
        return self._own_piece(own, request)

    def _own_piece(self, own, request):
        """This rank's piece without its padding, along request.dim again."""
        own = own[:request.sizes[self.rank]]
        return own.movedim(0, request.dim).contiguous()

    def _barrier(self, request):
        dist.barrier(group=self._peers)

    def _subgroup(self, members):
        peers = process_subgroup(members, self._peers)
        return DistributedGroup(peers) if self.rank in members else None


def process_subgroup(members, process_group=None):
    """torch.distributed's group of some ranks of another, None for the default one.

    Every rank of the default group must call it: it is they that meet.
    """
    peers = process_group or dist.group.WORLD
    return dist.new_group([dist.get_global_rank(peers, rank) for rank in members])


def padded(piece, rows):
    """A contiguous piece with as many rows as the longest, as gloo asks for.

    Args:
        piece: tensor [n, ...], n <= rows.
        rows: int.

    Returns:
        Tensor [rows, ...]; what is added is 0.
    """
    if len(piece) == rows:
        return piece.contiguous()
    whole = piece.new_zeros(rows, *piece.shape[1:])
    whole[:len(piece)] = piece
    return whole


def padded_pieces(request):
    """A whole tensor as one padded piece [longest, ...] a rank."""
    longest = max(request.sizes)
    return [padded(piece, longest) for piece in
            request.x.movedim(request.dim, 0).split(request.sizes)]


def joined(pieces, request):
    """All ranks' padded pieces [longest, ...] as one tensor, along request.dim."""
    whole = torch.cat([piece[:n] for piece, n in zip(pieces, request.sizes)])
    return whole.movedim(0, request.dim).contiguous()
