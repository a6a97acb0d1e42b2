"""Runs a function of a test module on real ranks, without the launcher.

The ranks are forked from a fresh process that has imported torch and done nothing
with it: that is quick, and safe as long as nothing was computed before the fork.
"""
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(__file__).parent


def run_ranks(function, size, folder, timeout=60):
    """Runs function() on `size` ranks with an initialised default group (gloo).

    Args:
        function: from a module in tests that imports little.
        folder: a fresh Path; results and the file store lie there.
        timeout: seconds until all ranks are killed.

    Returns:
        list: each rank's result; its traceback as text where it raised; None where it
        died.
    """
    home = Path(sys.modules[function.__module__].__file__).stem
    path = os.pathsep.join([str(HERE.parent), str(HERE)])
    host = subprocess.Popen(
        [sys.executable, __file__, home, function.__name__, str(size), str(folder)],
        env=os.environ | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": loopback()},
        start_new_session=True)
    try:
        host.wait(timeout)
    finally:
        try:
            os.killpg(host.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        host.wait()
    files = [folder / f"rank {rank}" for rank in range(size)]
    return [pickle.loads(f.read_bytes()) if f.exists() else None for f in files]


def loopback():
    """The name of this machine's loopback interface."""
    return "lo0" if sys.platform == "darwin" else "lo"


def host(home, name, size, folder):
    """Forks the ranks, and waits for them."""
    function, pids = getattr(import_module(home), name), []
    for rank in range(size):
        pids.append(os.fork())
        if not pids[-1]:
            run_rank(function, rank, size, Path(folder))
    for pid in pids:
        os.waitpid(pid, 0)


def run_rank(function, rank, size, folder):
    """The life of one rank; never returns."""
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(folder / "store"), size), rank=rank,
            world_size=size, timeout=timedelta(seconds=30))
        result = function()
    except BaseException:
        result = traceback.format_exc()
    half = folder / f"half {rank}"
    half.write_bytes(pickle.dumps(result))
    half.rename(folder / f"rank {rank}")
    while len(list(folder.glob("rank *"))) < size and not (folder / "dead").exists():
        time.sleep(0.01)  # gloo's other ranks may still need this one's connections
    os._exit(0)


if __name__ == "__main__":
    host(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
