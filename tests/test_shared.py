"""Collectives through shared memory, on real ranks."""
import errno
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from collective_checks import check_same_bits, equal, failures, formula_sum, share
from real_ranks import run_ranks

from nds_helpers.parallel import SharedMemoryGroup, mapping, shared

pytestmark = pytest.mark.skipif(shared.obstacle() is not None, reason="not safe here")


def open_files():
    """What the descriptors of this process lead to, as text."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(link))
        except FileNotFoundError:  # the one that listed the folder
            pass
    return " ".join(links)


def maps():
    """What is mapped into the memory of this process, as text."""
    return Path("/proc/self/maps").read_text()


def error_of(kind, action, *args, **kwargs):
    """The message of the error that an action raises."""
    try:
        action(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError("nothing was refused")


def all_checks():
    """Every check, with messages in one chunk and in many, and one of 5 MB."""
    found, whole = failures(SharedMemoryGroup()), shared.CHUNK
    shared.CHUNK = 64
    found |= {f"{name}, in chunks": text
              for name, text in failures(SharedMemoryGroup()).items()}
    shared.CHUNK = whole
    group = SharedMemoryGroup()
    brought = [share(r, (5, 2**18 + 3)) for r in range(group.size)]
    x = brought[group.rank]
    equal(group.all_reduce(x), formula_sum(brought))
    equal(group.broadcast(x, group.size - 1), brought[-1])
    equal(group.all_gather(x), torch.cat(brought, -1))
    check_same_bits(group)
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
def test_shared_memory_keeps_to_the_formulas(size, tmp_path):
    assert run_ranks(all_checks, size, tmp_path) == [{}] * size


def mismatches():
    """Calls that differ, each named on every rank; then the group still works."""
    group, x = SharedMemoryGroup(timeout=20), torch.ones(2, 3)
    first = group.rank == 0
    pairs = [
        (lambda: group.all_reduce(x), lambda: group.all_reduce(x[:1])),
        (lambda: group.all_reduce(x), lambda: group.all_reduce(x.double())),
        (lambda: group.all_gather(x), lambda: group.all_gather(x, 0)),
        (lambda: group.all_gather(x[:, :1]), lambda: group.all_gather(x)),
        (lambda: group.broadcast(x, 0), lambda: group.broadcast(x, 1)),
        (lambda: group.gather(x, to=0), lambda: group.gather(x, to=1)),
        (lambda: group.barrier(), lambda: group.all_reduce(x)),
        (lambda: group.all_reduce(torch.ones(10**6)), lambda: group.barrier()),
    ]
    said = [error_of(RuntimeError, here if first else there) for here, there in pairs]
    return said, group.all_reduce(x).sum().item(), len(group.calls)


def test_a_mismatch_is_named_on_every_rank(tmp_path):
    (said, total, calls), other = run_ranks(mismatches, 2, tmp_path)
    assert other == (said, 12.0, 1) and total == 12.0 and calls == 1
    assert said[0] == (
        "rank 0 called all_reduce of float32 [2, 3] on cpu; rank 1 called all_reduce "
        "of float32 [1, 3] on cpu; every rank must make the same call, with the same "
        "shapes and types (for pieces of different sizes, pass sizes)")
    assert "float64 [2, 3]" in said[1]
    assert "[2, 3+3] on cpu; rank 1 called all_gather of float32 [2+2, 3]" in said[2]
    assert "[2, 1+1] on cpu; rank 1 called all_gather of float32 [2, 3+3]" in said[3]
    assert "root 0; rank 1" in said[4] and "root 1; every" in said[4]
    assert "gather of float32 [2, 3+3] on cpu, root 1" in said[5]
    assert "rank 0 called barrier; rank 1 called all_reduce" in said[6]
    assert "[1000000] on cpu; rank 1 called barrier" in said[7]


def missing():
    """Ranks 1 and 2 don't come; then they do."""
    group = SharedMemoryGroup(timeout=0.3)
    said = ""
    if group.rank == 0:
        began = time.monotonic()
        said = error_of(TimeoutError, group.all_reduce, torch.ones(3))
        assert 0.3 <= time.monotonic() - began < 10
    dist.barrier()
    if group.rank:  # rank 0's part of it still lies there
        assert group.all_reduce(torch.ones(3)).tolist() == [3, 3, 3]
    return said


def test_missing_ranks_are_named(tmp_path):
    said = run_ranks(missing, 3, tmp_path)[0]
    assert said == ("rank 0 waited 0.3 s in all_reduce for rank 1 and rank 2: ended, "
                    "or busy with something else")


def killed(before=0.5):
    """Rank 1 is killed while rank 0 waits for it."""
    group = SharedMemoryGroup(timeout=2 * before)
    group.barrier()
    if group.rank == 1:
        time.sleep(before)
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(TimeoutError, group.all_gather, torch.ones(3))


def test_a_killed_rank_ends_the_others(tmp_path):
    (tmp_path / "dead").touch()
    said, nothing = run_ranks(killed, 2, tmp_path)
    assert nothing is None
    assert "waited 1 s in all_gather for rank 1" in said


def full():
    """No room on rank 0; then rank 1 can't open the file."""
    def refuse(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    reserve, opening = os.posix_fallocate, os.open
    os.posix_fallocate = refuse
    said = [error_of(RuntimeError, SharedMemoryGroup)]
    os.posix_fallocate = reserve
    if dist.get_rank() == 1:
        os.open = refuse
    said.append(error_of(RuntimeError, SharedMemoryGroup))
    os.open = opening
    return said


def full_named():
    """The same where files have names: none is left."""
    mapping.NAMELESS = False
    mapping.os.access = lambda *args: False  # no folder for memory, as on macOS
    said, folder = full(), Path(mapping.tempfile.gettempdir())
    group = SharedMemoryGroup()
    assert group.all_reduce(torch.ones(2)).tolist() == [2, 2]
    dist.barrier()
    return said, [path.name for path in folder.glob("ranks-*")]


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="reserves nothing")
def test_too_little_memory_is_one_sentence_on_every_rank(tmp_path):
    first, second = run_ranks(full, 2, tmp_path)
    assert first == second
    assert first[0].startswith("4 MB of shared memory aren't to be had ([Errno 28]")
    assert "rank can't map the memory" in first[1]
    assert all('choose backend="gloo"' in line for line in first)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="reserves nothing")
def test_a_file_with_a_name_is_deleted_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    said, left = run_ranks(full_named, 2, tmp_path)[0]
    assert left == [] and "[Errno 28]" in said[0] and "can't map" in said[1]


def other_refusals():
    """A tensor that isn't on the CPU; the process group's timeout; a closed group."""
    group = SharedMemoryGroup()
    assert group._timeout == 30
    made_by = [os.getpid()]
    dist.broadcast_object_list(made_by, 0)
    assert not list(Path("/dev/shm").glob(f"ranks-{made_by[0]}-*"))
    said = [error_of(ValueError, group.all_reduce, torch.ones(3, device="meta"))]
    group.all_reduce(torch.ones(3))
    held = maps()
    group.close()
    group.close()
    said.append(error_of(RuntimeError, group.all_reduce, torch.ones(3)))
    places = held, maps(), open_files()
    return said, [place.count("/dev/shm/ranks-") for place in places]


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="looks there and in /proc")
def test_close_unmaps_and_other_devices_are_refused(tmp_path):
    for said, held in run_ranks(other_refusals, 2, tmp_path):
        assert "takes tensors on the CPU; got one on meta" in said[0]
        assert "closed; connect the ranks anew" in said[1]
        assert held == [1, 0, 0]


def alone():
    return error_of(ValueError, SharedMemoryGroup)


def test_one_rank_needs_no_shared_memory(tmp_path):
    assert "use SoloGroup" in run_ranks(alone, 1, tmp_path)[0]
