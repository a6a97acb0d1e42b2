"""The paths of macOS and Windows, as far as a patched platform shows anything."""
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nds_helpers.distributed import processes, rendezvous

ROOT = Path(__file__).resolve().parents[1]

AS_ON_MACOS = """
import sys
from nds_helpers.distributed import Workers, launcher
sys.platform = "darwin"
workers = Workers(2, backend="gloo")
print(workers.run(lambda me: me.group.all_reduce(torch.ones(2)).tolist()))
print(workers.run(lambda me: os.environ.get("GLOO_SOCKET_IFNAME")))
try:
    workers.run(lambda me: 1 / me.rank)
except RuntimeError as error:
    print(error)
print(workers.run(lambda me: me.rank))
sys.platform = "linux"
"""


@pytest.mark.parametrize("system, method, interface", [
    ("linux", "forkserver", {"GLOO_SOCKET_IFNAME": "lo"}), ("darwin", "spawn", {}),
    ("win32", "spawn", {})])
def test_start_method_and_interface(monkeypatch, system, method, interface):
    monkeypatch.setattr(sys, "platform", system)
    assert processes.start_method() == method
    assert rendezvous.loopback() == interface
    assert rendezvous.interface_towards("127.0.0.1") == (
        {"GLOO_SOCKET_IFNAME": "lo"} if system == "linux" else {})


def test_an_interrupt_waits_for_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with processes.interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("to the end")
    assert done == ["to the end"]
    with processes.interrupts_deferred():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_file_is_the_meeting_place_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    meeting = rendezvous.Meeting()
    port, first = meeting.address()
    assert port == 0 and meeting.address() != (0, first)
    store = rendezvous.open_store(port, first, 1)
    store.set("key", "value")
    assert store.get("key") == b"value" and Path(first).exists()


def test_the_kernels_store_listens_on_loopback_only():
    if sys.platform != "linux":
        pytest.skip("reads Linux's list of listening sockets")
    meeting = rendezvous.Meeting()
    port = meeting.port
    lines = [line.split() for name in ("tcp", "tcp6")
             for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = [f[1] for f in lines if f[3] == "0A" and f[1].endswith(f":{port:04X}")]
    assert listening == [f"0100007F:{port:04X}"]


def test_spawned_ranks_that_meet_in_a_file(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import os\nimport torch\n" + AS_ON_MACOS, encoding="utf-8")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True,
                          cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    wanted = ["Starting 2 ranks", "[[2.0, 2.0], [2.0, 2.0]]", "[None, None]",
              "rank 0 failed: ZeroDivisionError: division by zero", "[0, 1]"]
    places = [done.stdout.find(text) for text in wanted]
    assert -1 not in places and places == sorted(places), done.stdout
