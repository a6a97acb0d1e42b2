"""Collectives over torch.distributed, on real ranks (gloo)."""
import os

import pytest
import torch
import torch.distributed as dist
from collective_checks import equal, failures, share
from real_ranks import run_ranks

from nds_helpers.parallel import DistributedGroup, SharedMemoryGroup, SoloGroup, connect
from nds_helpers.parallel import shared as shared_module

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


def all_checks():
    return failures(DistributedGroup())


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_gloo_keeps_to_the_formulas(size, tmp_path):
    assert run_ranks(all_checks, size, tmp_path) == [{}] * size


def over_some_ranks():
    """A process group of ranks 2 and 0, in torch.distributed's order."""
    some = dist.new_group([0, 2])
    if dist.get_rank() == 1:
        return None
    group = DistributedGroup(some)
    equal(group.broadcast(share(dist.get_rank(), (3,)), source=1), share(2, (3,)))
    gathered = group.gather(torch.tensor([dist.get_rank()]), to=1)
    return group.rank, group.size, gathered.tolist() if group.rank else gathered


def test_a_process_group_of_some_ranks(tmp_path):
    results = run_ranks(over_some_ranks, 3, tmp_path)
    assert results == [(0, 2, None), None, (1, 2, [0, 2])]


def from_other_roots():
    """What a group says to broadcasts from different ranks, if calls are compared."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = DistributedGroup()
    group.barrier()
    try:
        group.broadcast(torch.ones(2), source=group.rank)
    except RuntimeError as error:
        return str(error)


def test_other_roots_are_named_where_calls_are_compared(tmp_path):
    first, second = run_ranks(from_other_roots, 2, tmp_path)
    assert first == second
    assert first.startswith("rank 0 called broadcast of float32 [2] on cpu, root 0; "
                            "rank 1 called broadcast of float32 [2] on cpu, root 1; ")


def connected():
    """What connect gives for each kind, and what it refuses."""
    kinds = [type(connect(kind, torch.device("cpu"))) for kind in ("shared", "gloo")]
    refused = []
    for kind, device in (("mpi", "cpu"), ("shared", "cuda:0")):
        try:
            connect(kind, torch.device(device))
        except ValueError as error:
            refused.append(str(error))
    return kinds, refused


@pytest.mark.skipif(shared_module.obstacle() is not None, reason="no shared memory")
def test_connect_gives_what_is_asked_for(tmp_path):
    wanted = {1: [SoloGroup, SoloGroup], 2: [SharedMemoryGroup, DistributedGroup]}
    for size, kinds in wanted.items():
        folder = tmp_path / str(size)
        folder.mkdir()
        for found, refused in run_ranks(connected, size, folder):
            assert found == kinds
            assert "got 'mpi'" in refused[0] and "is cuda:0" in refused[1]


def connected_elsewhere():
    """connect("shared") on a processor and a system that don't suit it."""
    shared_module.platform.machine = lambda: "arm64"
    lines = []
    connect.__globals__["print"] = lines.append
    found = type(connect("shared", torch.device("cpu")))
    shared_module.platform.machine, shared_module.os.name = lambda: "AMD64", "nt"
    return found, type(connect("shared", torch.device("cpu"))), lines


def test_where_shared_memory_is_not_safe_gloo_takes_over_and_rank_0_says_so(tmp_path):
    first, second = run_ranks(connected_elsewhere, 2, tmp_path)
    assert first[:2] == second[:2] == (DistributedGroup, DistributedGroup)
    assert "arm64 processors" in first[2][0] and "can't delete" in first[2][1]
    assert all("gloo" in line for line in first[2]) and second[2] == []
