"""What all groups share: the checks, the records, the bytes of a ring."""
import time

import pytest
import torch
from collective_checks import failures

from nds_helpers.parallel import Call, SoloGroup, simulate, totals


def test_one_rank_keeps_to_the_formulas():
    assert failures(SoloGroup()) == {}


def test_totals_add_up_by_operation():
    calls = [Call("all_reduce", 8, 0.5, 1.0), Call("barrier", 0, 0.25, 2.0),
             Call("all_reduce", 4, 0.25, 3.0)]
    assert totals(calls) == {"all_reduce": (2, 12, 0.75), "barrier": (1, 0, 0.25)}
    assert totals([]) == {}


def test_a_call_is_timed_with_its_wait():
    def work(me):
        if me.rank == 1:
            time.sleep(0.05)
        me.group.barrier()
        return me.group.calls

    (waited,), (came,) = simulate(work, 2)
    assert waited.started < came.started
    assert waited.seconds >= 0.05 and waited.seconds > came.seconds


def test_recording_keeps_what_a_failing_block_did():
    group = SoloGroup()
    group.barrier()
    with pytest.raises(KeyError), group.recording() as calls:
        group.all_reduce(torch.ones(2))
        raise KeyError
    assert [call.operation for call in calls] == ["all_reduce"]
    assert len(group.calls) == 2


class Ring:
    """A ring of ranks that pass pieces on to the next, and count what they send."""

    def __init__(self, pieces):
        self.pieces, self.size = pieces, len(pieces)
        self.sent = [0] * self.size

    def pass_round(self, first):
        """size - 1 steps; rank r begins with piece `first(r)`, and then passes on
        what it has just received."""
        for step in range(self.size - 1):
            for rank in range(self.size):
                self.sent[rank] += self.pieces[(first(rank) - step) % self.size]
        return self

    def reduce_scatter(self):
        return self.pass_round(lambda rank: rank - 1)  # its own piece arrives last

    def all_gather(self):
        return self.pass_round(lambda rank: rank)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("sizes", [[2, 2, 2, 2, 2], [5, 0, 1, 3, 7], [0, 1, 0, 0, 4]])
def test_bytes_are_those_of_a_ring(size, sizes):
    sizes = sizes[:size]
    ring = [1000 * n for n in sizes]  # a slice across dim has 125 doubles

    def work(me):
        own = torch.ones(5, sizes[me.rank], 25, dtype=torch.float64)
        whole = torch.ones(5, sum(sizes), 25, dtype=torch.float64)
        me.group.all_gather(own, 1, sizes)
        me.group.reduce_scatter(whole, 1, sizes)
        me.group.gather(own, 1, sizes, to=size - 1)
        me.group.scatter(whole, 1, sizes)
        for source in range(size):
            me.group.broadcast(whole, source)
        return [call.bytes for call in me.group.calls]

    gathered, scattered, given, handed, *rounds = zip(*simulate(work, size))
    assert list(gathered) == Ring(ring).all_gather().sent
    assert list(scattered) == Ring(ring).reduce_scatter().sent
    assert list(given) == ring[:-1] + [0]
    assert list(handed) == [sum(ring[1:])] + [0] * (size - 1)
    for source, sent in enumerate(rounds):
        assert sum(sent) == (size - 1) * sum(ring)
        assert sent[source - 1] == 0 and max(sent) == (sum(ring) if size > 1 else 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 120])
def test_bytes_of_an_all_reduce_are_those_of_its_two_phases(size, count):
    x = torch.ones(count, dtype=torch.float16)
    pieces = [piece.nbytes for piece in x.tensor_split(size)]
    sent = simulate(lambda me: me.group.all_reduce(x) is None
                    or me.group.calls[0].bytes, size)
    assert sent == Ring(pieces).reduce_scatter().all_gather().sent
    assert all(type(n) is int for n in sent)
