"""Which backend and device the ranks get, with faked GPUs and versions."""
import pytest

from nds_helpers.distributed import plan as plans
from nds_helpers.distributed.local import LocalRanks
from nds_helpers.distributed.plan import make_plan
from nds_helpers.parallel import shared
from nds_helpers.parallel.ranks import RankError


@pytest.fixture
def machine(monkeypatch):
    """A faked machine: four cores, no GPU, shared memory; `machine(...)` changes it."""
    def change(gpus=0, nccl=(2, 29, 7), obstacle=None, cores=4):
        monkeypatch.setattr(plans, "gpu_count", lambda: gpus)
        monkeypatch.setattr(plans, "nccl_version", lambda: nccl)
        monkeypatch.setattr(shared, "obstacle", lambda: obstacle)
        monkeypatch.setattr(plans, "usable_cores", lambda: cores)

    change()
    return change


def test_without_a_gpu_shared_memory(machine):
    assert make_plan(2).line() == (
        "2 ranks over shared memory on the CPU, 2 threads each (4 cores); no GPU found")
    assert make_plan(2).backend == "gloo"


@pytest.mark.parametrize("backend", ["auto", "shared"])
def test_shared_memory_only_where_its_order_holds(machine, backend):
    machine(obstacle="this is an arm")
    plan = make_plan(2, backend)
    assert plan.group == "gloo" and "no shared memory: this is an arm" in plan.line()


def test_gloo_as_asked(machine):
    assert make_plan(3, "gloo").line() == (
        "3 ranks over gloo on the CPU, 1 thread each (4 cores); as asked; no GPU found")


def test_a_gpu_for_each_rank(machine):
    machine(gpus=4)
    plan = make_plan(2)
    assert plan.line() == ("2 ranks over NCCL on cuda:0, cuda:1, 2 threads each "
                           "(4 cores); 4 GPUs found, one for each rank")
    assert plan.backend == "cpu:gloo,cuda:nccl" and not plan.environment


@pytest.mark.parametrize("nccl", [(2, 29, 7), ()])
def test_two_ranks_on_one_gpu_with_an_older_nccl(machine, nccl):
    machine(gpus=1, nccl=nccl)
    for backend in ("auto", "nccl"):
        plan = make_plan(2, backend)
        assert plan.group == "gloo" and plan.devices == ("cuda:0", "cuda:0")
        assert "can't put several ranks on one" in plan.line()


def test_two_ranks_on_one_gpu_with_a_newer_nccl(machine):
    machine(gpus=1, nccl=(2, 30, 7))
    plan = make_plan(2)
    assert plan.group == "nccl" and plan.devices == ("cuda:0", "cuda:0")
    assert dict(plan.environment) == {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def test_gloo_or_shared_memory_beside_a_gpu_as_asked(machine):
    machine(gpus=1)
    assert make_plan(2, "gloo").devices == ("cuda:0", "cuda:0")
    assert make_plan(2, "shared").devices == ("cpu", "cpu")


def test_nccl_needs_a_gpu(machine):
    with pytest.raises(ValueError, match="needs a GPU, and torch finds none"):
        make_plan(2, "nccl")


def test_more_ranks_than_cores(machine):
    machine(cores=2)
    plan = make_plan(3)
    assert plan.threads == 1 and "warning: more ranks than cores" in plan.line()


@pytest.fixture
def shared_gpu(machine, monkeypatch):
    """Ranks that share a GPU over NCCL; `tried` lists the groups that were started."""
    machine(gpus=1, nccl=(2, 30, 7))
    ranks, tried = LocalRanks(make_plan(2)), []

    def start_once(slow):
        tried.append(ranks.plan.group)
        if ranks.plan.group == "nccl":
            raise RankError(1, "DistBackendError: Duplicate GPU detected")

    monkeypatch.setattr(ranks, "_start_once", start_once)
    monkeypatch.setattr("nds_helpers.distributed.local.is_prepared", lambda _: True)
    return ranks, tried


def test_where_nccl_refuses_to_share_a_gpu_gloo_serves(shared_gpu, capsys):
    ranks, tried = shared_gpu
    ranks.start()
    assert tried == ["nccl", "gloo"] and not ranks.plan.environment
    assert capsys.readouterr().out == (
        "2 ranks over gloo on cuda:0, cuda:0, 2 threads each (4 cores); NCCL did not "
        "let the ranks share a GPU (DistBackendError: Duplicate GPU detected)\n")


def test_other_failures_of_a_start_are_shown(shared_gpu, machine):
    ranks, _ = shared_gpu
    machine(gpus=2)
    ranks.plan = make_plan(2)
    with pytest.raises(RankError, match="Duplicate GPU"):
        ranks.start()
