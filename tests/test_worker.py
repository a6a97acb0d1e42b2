"""The rank's side: light to import, plain reports, redirected output."""
import multiprocessing
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch

from nds_helpers.distributed import holdings, joining, output, worker
from nds_helpers.distributed.plan import Plan
from nds_helpers.distributed.position import describe, stack_below
from nds_helpers.parallel import Rank

ROOT = Path(__file__).resolve().parents[1]


def in_python(code):
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=True, timeout=60, cwd=ROOT).stdout


def test_a_rank_watches_its_kernel_before_torch_is_imported():
    assert in_python("import sys, nds_helpers.distributed.worker\n"
                     "print('torch' in sys.modules)") == "False\n"


def caught(fn):
    """The exception that a function raises."""
    try:
        fn()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def fails():
    raise ValueError("first line\nsecond line")


def test_a_failure_is_plain_text_with_the_users_lines():
    found = worker.failure(caught(fails), caller=__file__)
    assert found.cause == "ValueError: first line" and found.when > 0
    own = worker.failure(caught(fails), caller="another file")
    assert 'raise ValueError("first line' in own.traceback
    assert not own.lost_peer


def test_errors_inside_a_collective_may_be_another_ranks_fault():
    lost = caught(lambda: torch.distributed.all_reduce(torch.ones(1)))  # no group here
    assert isinstance(lost, ValueError)
    assert not worker.failure(lost).lost_peer  # what the user handed over was wrong
    error = RuntimeError("Connection closed by peer").with_traceback(lost.__traceback__)
    assert worker.failure(error).lost_peer


class Silent(Exception):
    def __str__(self):
        raise RuntimeError


class Leaving(Exception):
    def __str__(self):
        raise SystemExit


@pytest.mark.parametrize("error, cause", [
    (KeyError("x"), "KeyError: 'x'"), (SystemExit(), "SystemExit"),
    (SystemExit(3), "SystemExit: 3"), (ValueError(""), "ValueError"),
    (Silent(), "Silent: its message can't be shown"),
    (Leaving(), "Leaving: its message can't be shown")])
def test_a_cause_is_one_line(error, cause):
    assert worker.cause_of(error) == cause


def frame(filename, line, name, text="x"):
    return traceback.FrameSummary(filename, line, name, lookup_line=False, line=text)


WAITING = "/env/torch/distributed/distributed_c10d.py".replace("/", os.sep)


def test_a_position_names_the_cell_and_the_operation():
    found = describe(traceback.StackSummary.from_list([
        frame("Cell In[5]", 3, "work"), frame(__file__, 1, "helper"),
        frame(WAITING, 9, "wrapper"), frame(WAITING, 99, "all_reduce")]))
    assert found.text == "was waiting in all_reduce at Cell In[5] line 3"
    assert found.waits and "all_reduce" in found.stack


def test_a_position_outside_collectives_shows_its_line():
    found = describe(traceback.StackSummary.from_list([
        frame("Cell In[5]", 3, "work", "model(x)"), frame(__file__, 7, "forward")]))
    assert found.text == "was at Cell In[5] line 3: model(x)" and not found.waits


def test_a_position_without_cells_is_the_innermost_own_line():
    found = describe(traceback.StackSummary.from_list([
        frame(__file__, 3, "work"), frame(__file__, 7, "inner", "y = 1")]))
    assert found.text == f"was at {__file__} line 7: y = 1"


def test_the_stack_below_a_function():
    def marker():
        return inner()

    def inner():
        return stack_below(sys._getframe(), marker.__code__)

    assert [f.name for f in marker()] == ["inner"]
    assert not inner()  # the marker isn't running


def test_lines_are_whole_tagged_and_survive_any_cut(capsys):
    lines = output.TaggedLines(3)
    for byte in "grüß\nbar 1\rbar 2\n\nend".encode():
        lines.feed(bytes([byte]))
    assert capsys.readouterr().out == "[rank 3] grüß\n[rank 3] bar 2\n[rank 3] \n"
    lines.finish()
    lines.finish()
    assert capsys.readouterr().out == "[rank 3] end\n"


def test_bytes_that_are_no_text_do_no_harm(capsys):
    output.TaggedLines(0).feed(b"\xff\xfe\n")
    assert capsys.readouterr().out == "[rank 0] \ufffd\ufffd\n"


def test_output_through_a_relay_as_on_windows(monkeypatch):
    monkeypatch.setattr(output, "WINDOWS", True)
    reader, writer = multiprocessing.Pipe(duplex=False)
    target = output.start_relay(writer)
    os.write(target, b"hello")
    assert output.read(reader) == b"hello"
    os.close(target)
    writer.close()
    assert output.read(reader) == b""


def test_a_gpu_is_chosen_before_the_group_is_made(monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda d: done.append(f"set {d}"))
    monkeypatch.setattr(torch.distributed, "init_process_group",
                        lambda *args, **kwargs: done.append((args, kwargs)))
    monkeypatch.setattr("nds_helpers.parallel.collectives.connect",
                        lambda kind, device: f"{kind} {device}")
    threads = torch.get_num_threads()
    plan = Plan(2, "nccl", ("cuda:0", "cuda:1"), threads, threads, "2 GPUs found")
    me = joining.join_group(plan, 1, 2, 1, store="store")
    assert done == ["set cuda:1", (("cpu:gloo,cuda:nccl",), {
        "rank": 1, "world_size": 2, "device_id": torch.device("cuda:1"),
        "store": "store"})]
    assert (me.group, me.device) == ("nccl cuda:1", torch.device("cuda:1"))


def test_bytes_of_what_is_held_count_each_storage_once():
    layer = torch.nn.Linear(256, 256, bias=False)
    size = 4 * 256 * 256
    assert holdings.held_bytes(layer) == size
    assert holdings.held_bytes([layer, layer.weight, {"view": layer.weight[0]}]) == size
    assert holdings.held_bytes("text") == 0
    loop = []
    loop.append(loop)
    assert holdings.held_bytes(loop) == 0


class Touchy:
    def __getattr__(self, name):
        raise RuntimeError(name)


def test_what_cannot_be_looked_into_is_listed_all_the_same():
    me = Rank(1, 2, torch.device("cpu"), None, {"odd": Touchy(), "own": torch.ones(2)})
    (_, name, kind, size), (*_, known) = holdings.holdings(me)
    assert (name, kind) == ("odd", "Touchy") and size != size and known == 2**-17
