"""However a kernel or a script ends, none of our processes outlives it."""
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fault_cells import SETUP, START
from kernels import Kernel, is_rank, left_over

ROOT = Path(__file__).resolve().parents[1]
BOTH_RECEIVE = "w.run(lambda me: dist.recv(torch.ones(2), src=1 - me.rank))"
GRIP = "import re\nw.run(lambda me: re.match('(a+)+$', 'a' * 60 + 'b'))"
SCRIPT = """
from nds_helpers.distributed import Workers, launch
print("main runs")
workers = Workers(2)
print(workers.run(lambda me: me.rank), flush=True)
"""


@pytest.fixture
def kernel():
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.mark.parametrize("stuck", [BOTH_RECEIVE, GRIP], ids=["recv", "in C code"])
def test_a_killed_kernel_leaves_nothing(kernel, stuck):
    kernel.ok(START)
    kernel.start(stuck)
    time.sleep(1)
    processes = kernel.processes()
    assert len(processes) == 4  # two ranks, the fork server, the resource tracker
    kernel.kill()
    assert left_over(processes) == []


CHILDREN = """
def start(me):
    import subprocess
    forked = os.fork()
    if not forked:
        time.sleep(600)
    return forked, subprocess.Popen(["sleep", "600"]).pid
print(*[pid for pids in w.run(start) for pid in pids])
"""


@pytest.mark.parametrize("end", ["w.restart()", "w.close()", "a killed kernel",
                                 "w.run(lambda me: os._exit(3), timeout=5)"])
def test_what_ranks_have_started_ends_with_them(kernel, end):
    kernel.ok(START)
    children = [psutil.Process(int(pid)) for pid in kernel.ok(CHILDREN).split()]
    assert len(children) == 4 and all(p.is_running() for p in children)
    kernel.kill() if end == "a killed kernel" else kernel.run(end)
    assert left_over(children) == []


@pytest.mark.slow
def test_a_restart_leaves_nothing_and_starts_afresh(kernel):
    cell = kernel.start(START)
    cell.until(lambda: kernel.processes(), 60)
    processes = kernel.processes()
    kernel.restart()  # while torch is still being imported
    assert left_over(processes) == []

    kernel.ok(START)
    kernel.start(BOTH_RECEIVE)
    time.sleep(1)
    processes = kernel.processes()
    assert sum(map(is_rank, processes)) == 2
    kernel.restart()  # while both ranks hang
    assert left_over(processes) == []
    assert "[0, 1]" in kernel.ok(START + "\nw.run(lambda me: me.rank)")


def test_an_interrupt_of_the_first_start_leaves_the_kernel_usable(kernel):
    kernel.ok(SETUP)
    cell = kernel.start("w = Workers(2)")
    cell.shows("Starting 2 ranks")
    kernel.interrupt()
    cell.wait()
    assert cell.kind == "KeyboardInterrupt"
    assert "[0, 1]" in kernel.ok("w = Workers(2)\nw.run(lambda me: me.rank)")
    assert len(kernel.processes()) == 4


def test_two_notebooks_at_once_do_not_meet():
    kernels = [Kernel(), Kernel()]
    cells = [kernel.start(START + f"\nw.run(lambda me: me.rank + {10 * i})")
             for i, kernel in enumerate(kernels)]
    try:
        texts = [cell.wait().text for cell in cells]
    finally:
        for kernel in kernels:
            kernel.close()
    assert texts[0].endswith("[0, 1]") and texts[1].endswith("[10, 11]")


def run_script(text, folder, before=()):
    """Runs a script in a folder; returns what it printed."""
    path = folder / "script.py"
    path.write_text(text, encoding="utf-8")
    return subprocess.run(
        [*before, sys.executable, path], cwd=folder, capture_output=True, text=True,
        timeout=120, env=os.environ | {"PYTHONPATH": python_path()})


def python_path():
    """The repository in front of what is on the path already."""
    return os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])


def test_a_script_needs_no_main_guard_and_no_close(tmp_path):
    done = run_script(SCRIPT, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("main runs") == 1 and "[0, 1]" in done.stdout
    mine = [p for p in psutil.process_iter() if cwd_of(p) == str(tmp_path)]
    assert left_over(mine) == []


def cwd_of(process):
    """A process's folder, or None where it can't be told."""
    try:
        return process.cwd()
    except psutil.Error:
        return None


def test_a_host_name_that_leads_nowhere(tmp_path):
    """pytorch/pytorch#26049: only a loopback interface, and a bogus name."""
    if not shutil.which("unshare"):
        pytest.skip("this system has no unshare to make a namespace with")
    before = ["unshare", "-n", "-u", "sh", "-c", "ip link set lo up && "
              "hostname no-such-host-anywhere && exec \"$@\"", "sh"]
    if subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("this system lets us make no network namespace")
    done = run_script(SCRIPT, tmp_path, before)
    assert done.returncode == 0 and "[0, 1]" in done.stdout, done.stderr


KILL_AND_PREPARE = """
import multiprocessing, os, signal
from multiprocessing import forkserver
from nds_helpers.distributed import processes

processes.PRELOAD = []  # starts at once
context = multiprocessing.get_context("forkserver")
for _ in range(30):
    processes.prepare(context)
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
print("prepared")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no fork server elsewhere")
def test_a_fork_server_that_is_just_dying_is_replaced():
    """For a moment it can be seen to run, and accepts nobody."""
    done = subprocess.run([sys.executable, "-c", KILL_AND_PREPARE], text=True,
                          capture_output=True, timeout=120)
    assert done.stdout == "prepared\n", done.stderr
