"""The same script under torchrun: on one machine, and on two made of namespaces."""
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import generator

from nds_helpers.decoding import ModelDrafter, Sampling, speculative
from nds_helpers.distributed import torchrun
from nds_helpers.distributed.plan import Plan
from nds_helpers.distributed.rendezvous import interface_towards
from nds_helpers.models import load_pair

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import sys
import time
import torch
from nds_helpers.distributed import Workers, launch

def work(me, x):
    me.state["calls"] = me.state.get("calls", 0) + 1
    total = me.group.all_reduce(torch.full((2,), float(me.rank + 1)))
    return me.rank, total.tolist(), x, me.state["calls"]

def say(text):  # one write: the ranks' lines must not mix
    sys.stdout.write(f"{text}\\n")
    sys.stdout.flush()

say(f"first {launch(work, 2, 'x')}")
with Workers(2) as workers:
    workers.run(work, "y")
    say(f"second {workers.run(work, 'y')}")
try:
    launch(work, 3, "x")
except ValueError as error:
    say(error)
"""
FIRST = "first [(0, [3.0, 3.0], 'x', 1), (1, [3.0, 3.0], 'x', 1)]"
SECOND = "second [(0, [3.0, 3.0], 'y', 2), (1, [3.0, 3.0], 'y', 2)]"
GENERATION = """
import sys
from nds_helpers.decoding import ModelDrafter, Sampling
from nds_helpers.distributed import Workers, speculative_on_ranks
from nds_helpers.models import load_pair
from nds_helpers.parallel import shard_model

def generate(me, own_rank, logits):
    pair = load_pair("tiny")
    team = me.group.subgroup([1]) if own_rank else me.group
    target = shard_model(pair.target.double(), team) if team else None
    drafter = ModelDrafter(pair.draft.double()) if me.rank == 0 else None
    return speculative_on_ranks(
        me, target, drafter, [17, 300, 5, 41, 77], k=4, max_new_tokens=16, seed=3,
        sampling=Sampling(0.8), logits=logits).tokens.tolist()

with Workers(2, "gloo") as workers:
    for own_rank in (False, True):
        for logits in ("gathered", "sliced"):
            found = workers.run(generate, own_rank, logits)
            sys.stdout.write(f"{found}\\n")
            sys.stdout.flush()
"""
LOOP = """
import time
import torch
from nds_helpers.distributed import launch

def loop(me):
    print("rank", me.rank, "of", me.size, flush=True)
    while True:
        me.group.all_reduce(torch.ones(2))
        time.sleep(0.05)

launch(loop, 2)
"""


def start(script, *options, before=(), folder):
    """Starts torchrun on a script, its output in a pipe."""
    path = folder / "script.py"
    path.write_text(script, encoding="utf-8")
    path_list = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [*before, sys.executable, "-m", "torch.distributed.run", *options, path],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
        env=os.environ | {"PYTHONPATH": path_list, "OMP_NUM_THREADS": "1"})


def output(process, timeout=90):
    """All that a process prints; it is killed when that takes too long."""
    try:
        return process.communicate(timeout=timeout)[0]
    finally:
        process.kill()


def test_two_ranks_on_this_machine(tmp_path):
    text = output(start(SCRIPT, "--standalone", "--nproc-per-node", "2",
                        folder=tmp_path))
    assert text.count(FIRST) == text.count(SECOND) == 2, text
    assert text.count("torchrun has started 2 ranks, but this asks for 3") == 2
    assert text.count("2 ranks under torchrun; on this machine: 2 ranks over ") == 2


def test_a_generation_is_that_of_one_device(tmp_path):
    """Each rank prints the four lists of both ranks' tokens."""
    pair = load_pair("tiny")
    tokens = speculative(
        pair.target.double(), ModelDrafter(pair.draft.double()), [17, 300, 5, 41, 77],
        k=4, max_new_tokens=16, sampling=Sampling(0.8), generator=generator(3)).tokens
    text = output(start(GENERATION, "--standalone", "--nproc-per-node", "2",
                        folder=tmp_path))
    assert text.count(str([tokens.tolist()] * 2)) == 2 * 4, text


@pytest.fixture
def hosts():
    """The beginnings of commands that run on two machines: namespaces and a cable."""
    names = [f"nds{os.getpid()}{side}" for side in "ab"]
    commands = [
        *(f"ip netns add {name}" for name in names),
        f"ip link add v0 netns {names[0]} type veth peer name v1 netns {names[1]}",
        *(f"ip -n {name} addr add 10.77.0.{i + 1}/24 dev v{i}"
          for i, name in enumerate(names)),
        *(f"ip -n {name} link set {link} up"
          for i, name in enumerate(names) for link in (f"v{i}", "lo"))]
    if not shutil.which("ip"):
        pytest.skip("this system has no `ip` (iproute2) to make namespaces with")
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode:
                pytest.skip("this system lets us make no network namespaces: "
                            f"{done.stderr.strip()}")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def start_on(hosts, script, folder):
    """Starts one rank on each of two machines."""
    return [start(script, "--nnodes", "2", "--nproc-per-node", "1", "--node-rank",
                  str(i), "--master-addr", "10.77.0.1", "--master-port", "29500",
                  before=host, folder=folder) for i, host in enumerate(hosts)]


def test_two_machines_of_one_rank_each(hosts, tmp_path):
    processes = start_on(hosts, SCRIPT, tmp_path)
    for text in map(output, processes):
        assert text.count(FIRST) == text.count(SECOND) == 1, text
        if "under torchrun" in text:
            assert "1 rank over gloo" in text and "several machines" in text


def test_one_of_two_machines_dies(hosts, tmp_path):
    first, second = start_on(hosts, LOOP, tmp_path)
    try:
        while not re.search("rank . of 2", second.stdout.readline()):
            assert second.poll() is None
        time.sleep(0.5)
        listed = subprocess.run(["ip", "netns", "pids", hosts[1][-1]], text=True,
                                capture_output=True, check=True).stdout
        for pid in listed.split():
            os.kill(int(pid), signal.SIGKILL)
        killed = time.monotonic()
        text = output(first, timeout=30)
        assert time.monotonic() - killed < 10
    finally:
        first.kill()
        second.kill()
        second.communicate()
    assert "rank 0 failed: it lost contact with another rank" in text, text
    assert "10.77.0.2" in text and first.returncode


@pytest.fixture
def variables(monkeypatch):
    """What torchrun sets, for rank 1 of 4 on the second of two machines."""
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1",
                        "MASTER_PORT": "29500", "LOCAL_RANK": "1",
                        "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_needs_all_four_variables(variables):
    assert torchrun.under_torchrun()
    variables.delenv("MASTER_ADDR")
    assert not torchrun.under_torchrun()


def test_several_machines_never_choose_shared_memory(variables):
    variables.setattr(torch.cuda, "is_available", lambda: False)
    assert torchrun.JoinedRanks(4, "auto", 60, False).plan.group == "gloo"
    with pytest.raises(ValueError, match="works on one machine only"):
        torchrun.JoinedRanks(4, "shared", 60, False)
    with pytest.raises(ValueError, match="started 4 ranks, but this asks for 2"):
        torchrun.JoinedRanks(2, "auto", 60, False)


def test_without_local_size_one_rank_a_machine_is_assumed(variables):
    variables.setattr(torch.cuda, "is_available", lambda: False)
    variables.delenv("LOCAL_WORLD_SIZE")
    variables.delenv("LOCAL_RANK")
    plan = torchrun.JoinedRanks(4, "auto", 60, False).plan
    assert plan.group == "gloo" and plan.size == 1


def test_gpus_on_several_machines_stay_with_nccl():
    plan = Plan(2, "nccl", ("cuda:0", "cuda:1"), 1, 2, "2 GPUs found")
    assert torchrun.plan_across(plan, 4, "auto") is plan


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for interfaces")
def test_the_interface_that_leads_to_the_first_machine(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert interface_towards("127.0.0.1") == {"GLOO_SOCKET_IFNAME": "lo"}
    assert interface_towards("no.such.host.invalid") == {}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine")
    assert interface_towards("127.0.0.1") == {}
