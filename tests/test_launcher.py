"""Workers in a notebook's cells, with nothing going wrong."""
import re

import pytest
from fault_cells import HELLO, START
from kernels import Kernel


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    kernel.ok("import os\nos.environ['OF_YESTERDAY'] = 'yes'\n" + START)
    yield kernel
    kernel.close()


def test_one_line_says_backend_devices_threads_and_why(kernel):
    text = kernel.ok("w.restart()")
    assert re.fullmatch(r"2 ranks over \S.* on .*, \d+ threads? each "
                        r"\(\d+ cores?\); .*\n", text)


def test_results_come_in_rank_order(kernel):
    assert "[[2.0, 2.0], [2.0, 2.0]]" in kernel.ok(HELLO.format(workers="w"))
    assert "[(0, 2, 7, 8), (1, 2, 7, 8)]" in kernel.ok(
        "w.run(lambda me, a, b=0: (me.rank, me.size, a, b), 7, b=8)")


def test_a_redefined_function_runs_with_what_it_names(kernel):
    kernel.ok("factor = 2\ndef helper(x):\n    return factor * x\n"
              "class Box:\n    def __init__(self, x):\n        self.x = helper(x)\n"
              "def work(me):\n    return Box(me.rank).x")
    assert "[0, 2]" in kernel.ok("w.run(work)")
    kernel.ok("factor = 5\ndef helper(x):\n    return factor * x + 1")
    assert "[1, 6]" in kernel.ok("w.run(work)")


def test_objects_of_a_cells_class_come_back_as_that_class(kernel):
    kernel.ok("class Pair:\n    def __init__(self, a):\n        self.a = a")
    assert "[True, True]" in kernel.ok(
        "[type(p) is Pair for p in w.run(lambda me: Pair(me.rank))]")


def test_state_is_kept_listed_and_freed(kernel):
    kernel.ok("def keep(me):\n    me.state['model'] = torch.nn.Linear(1024, 1024)\n"
              "    me.state['seen'] = [torch.ones(4), 'text']\nw.run(keep)")
    assert "[1024, 1024]" in kernel.ok(
        "w.run(lambda me: me.state['model'].in_features)")
    table = kernel.ok("print(w.state().to_string())")
    assert len(re.findall(r"model +Linear +4\.0", table)) == 2
    assert kernel.run("w.free('modell')").kind == "KeyError"
    kernel.ok("w.free('model')")
    assert "['seen']" in kernel.ok("w.state()['name'].unique().tolist()")
    kernel.ok("w.free()")
    assert "0" in kernel.ok("len(w.state())")


def test_a_large_product_in_the_kernel_then_in_the_ranks(kernel):
    """A forked rank would hang here (pytorch/pytorch#17199)."""
    assert "[1500.0, 1500.0]" in kernel.ok(
        "x = torch.ones(1500, 1500)\n(x @ x).sum()\n"
        "w.run(lambda me: (torch.ones(1500, 1500) @ torch.ones(1500, 1500))"
        "[0, 0].item())")


def test_threads_times_ranks_stay_within_the_cores(kernel):
    threads = kernel.ok("w.run(lambda me: torch.get_num_threads())")
    cores = kernel.ok("len(os.sched_getaffinity(0))")
    assert sum(eval(threads)) <= max(2, int(cores))


def test_the_stop_button_never_reaches_a_rank(kernel):
    """Held back from its very first moment on, by a mask that it inherits."""
    assert "[True, True]" in kernel.ok(
        "import signal\nw.run(lambda me: signal.SIGINT in "
        "signal.pthread_sigmask(signal.SIG_BLOCK, []))")
    assert "False" in kernel.ok(
        "signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])")


def test_gloo_stays_on_the_loopback_interface(kernel):
    """pytorch/pytorch#26049: the host's name may lead into a VPN, or nowhere."""
    assert "['lo', 'lo']" in kernel.ok(
        "w.run(lambda me: os.environ.get('GLOO_SOCKET_IFNAME'))")


def test_default_group_and_variables_as_under_torchrun(kernel):
    names = "'RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR'"
    text = kernel.ok(
        f"w.run(lambda me: (dist.get_rank(), dist.get_world_size(), "
        f"[os.environ[n] for n in ({names})], int(os.environ['MASTER_PORT']) > 0))")
    assert text == ("[(0, 2, ['0', '0', '2', '2', '127.0.0.1'], True),\n"
                    " (1, 2, ['1', '1', '2', '2', '127.0.0.1'], True)]")


def test_ranks_see_the_kernels_environment_and_folder_of_today(kernel, tmp_path):
    kernel.ok(f"os.environ['OF_TODAY'] = 'yes'; before = os.getcwd()\n"
              f"os.chdir({str(tmp_path)!r}); w.restart()")
    text = kernel.ok("w.run(lambda me: (os.environ['OF_TODAY'], os.getcwd()))")
    kernel.ok("os.chdir(before); del os.environ['OF_YESTERDAY']; w.restart()")
    assert "[None, None]" in kernel.ok(
        "w.run(lambda me: os.environ.get('OF_YESTERDAY'))")
    assert text.count(f"('yes', '{tmp_path}')") == 2


def test_ranks_find_the_modules_that_the_notebook_finds(kernel, tmp_path):
    """Its own folder, and what it puts on sys.path after the ranks have started."""
    beside, added = tmp_path / "notebooks", tmp_path / "added"
    for folder, name in ((beside, "beside"), (added, "added")):
        folder.mkdir()
        (folder / f"{name}_module.py").write_text("def times(me):\n"
                                                  "    return 3 * me.rank\n")
    kernel.ok(f"import sys\nbefore, path = os.getcwd(), sys.path[:]\n"
              f"os.chdir({str(beside)!r}); sys.path += ['../added']\n"
              "import added_module, beside_module")
    text = kernel.ok("print(w.run(beside_module.times), w.run(added_module.times))")
    kernel.ok("os.chdir(before); sys.path[:] = path")
    assert text == "[0, 3] [0, 3]\n"


def test_a_child_that_a_rank_forks_does_not_answer_for_it(kernel):
    assert "[False, False]" in kernel.ok("w.run(lambda me: os.fork() == 0)")
    assert "[0, 1]" in kernel.ok("w.run(lambda me: me.rank)")


def test_prints_appear_live_tagged_and_in_their_cell(kernel):
    cell = kernel.start(
        "import sys, subprocess\ndef talk(me):\n"
        "    print('out', me.rank); print('err', me.rank, file=sys.stderr)\n"
        "    os.write(1, b'raw\\n'); subprocess.run(['echo', 'child'])\n"
        "    print('bar 1\\rbar 2'); print('gr\\u00fc\\u00df', end='')\n"
        "    time.sleep(2)\nw.run(talk)")
    cell.shows("[rank 1] raw")
    cell.shows("[rank 0] raw")
    assert not cell.done and "grü" not in cell.text
    cell.wait()
    for rank in (0, 1):
        own = re.findall(rf"^\[rank {rank}\] (.*)$", cell.text, re.M)
        assert own == [f"out {rank}", f"err {rank}", "raw", "child", "bar 2", "grüß"]
    assert "rank" not in kernel.ok("1 + 1")


def test_five_megabytes_printed_by_each_rank(kernel):
    kernel.ok("def flood(me):\n    for i in range(50):\n        print('x' * 99_999)")
    text = kernel.ok("w.run(flood)")
    for rank in (0, 1):
        assert text.count(f"[rank {rank}] " + 99_999 * "x" + "\n") == 50


def test_a_hundred_megabytes_come_back(kernel):
    assert "[25000000.0, 50000000.0]" in kernel.ok(
        "[x.sum().item() for x in "
        "w.run(lambda me: torch.full((25_000_000,), me.rank + 1.0))]")


def test_a_heavy_call_names_its_heaviest_global(kernel):
    text = kernel.ok("weights = torch.ones(14_000_000)\nsmall = torch.ones(3)\n"
                     "w.run(lambda me: (weights.shape, small.shape))")
    assert "this call sends 53 MB to every rank, 53 MB of it the global 'weights'" in (
        text)


def test_representation_and_process_numbers(kernel):
    assert re.fullmatch(r"<Workers: 2 ranks, \w+, alive>", kernel.ok("w"))
    assert "[True, True, 2]" in kernel.ok(
        "[pid == w.pids[i] for i, pid in enumerate(w.run(lambda me: os.getpid()))]"
        " + [len(set(w.pids))]")


def test_twenty_sets_while_the_usual_port_is_taken(kernel):
    """Port 29500 is torch's own choice (pytorch/pytorch#47461)."""
    kernel.ok("import socket\ntaken = socket.create_server(('127.0.0.1', 29500))")
    text = kernel.ok("sizes = []\nfor i in range(20):\n    with Workers(2) as more:\n"
                     "        sizes += more.run(lambda me: me.size)\n"
                     "taken.close(); sum(sizes), more", timeout=120)
    assert "(80, <Workers: 2 ranks, " in text and "closed>)" in text


def test_two_sets_at_once(kernel):
    assert "[[0, 1, 2], [0, 1]]" in kernel.ok(
        "with Workers(3) as three:\n"
        "    both = [three.run(lambda me: me.rank), w.run(lambda me: me.rank)]\n"
        "both")


def test_more_ranks_than_cores_are_warned_about(kernel):
    text = kernel.ok("n = len(os.sched_getaffinity(0)) + 1\n"
                     "launch(lambda me: torch.get_num_threads(), n) == n * [1]")
    assert "warning: more ranks than cores" in text and text.endswith("True")


def test_one_rank_needs_no_peer(kernel):
    assert "[[2.0]]" in kernel.ok(
        "launch(lambda me: me.group.all_reduce(torch.full((1,), 2.0)).tolist(), 1)")


def test_a_lost_set_ends_its_ranks(kernel):
    """Running a cell `w = Workers(2)` again leaves nothing of the first set."""
    kernel.ok("import gc, psutil\nsecond = Workers(2); old = second.pids\n"
              "second = Workers(2); gc.collect()")
    assert "[False, False] [True, True]" in kernel.ok(
        "print([psutil.pid_exists(p) for p in old], "
        "[psutil.pid_exists(p) for p in second.pids]); second.close()")


@pytest.mark.parametrize("cell, kind, wanted", [
    ("Workers(0)", "ValueError", "must be a whole number, 1 or more, not 0"),
    ("Workers(1.5)", "ValueError", "not 1.5"),
    ("Workers(2, backend='mpi')", "ValueError", "must be one of auto, shared, gloo"),
    ("Workers(2, timeout=0)", "ValueError", "a number of seconds above 0, not 0"),
    ("w.run(hello, timeout='long')", "ValueError", "not 'long'"),
    ("w.run(lambda: 1)", "TypeError", "calls <lambda> with itself first, then with "
     "what you pass, and <lambda>() doesn't take that (too many positional "
     "arguments); write def work(me, x) and workers.run(work, x)."),
    ("launch(lambda me, x: x, 2)", "TypeError", "<lambda>(me, x) doesn't take that "
     "(missing a required argument: 'x'); write def work(me, x) and "
     "launch(work, 2, x)."),
    ("launch(2, lambda me: 1)", "TypeError", "launch needs the function first, not 2; "
     "write launch(work, 2, x)."),
    ("gone = Workers(1)\ngone.close()\ngone.close()\ngone.run(hello)", "RuntimeError",
     "these workers are closed; make new ones with Workers(1)"),
])
def test_wrong_use_gets_one_sentence(kernel, cell, kind, wanted):
    shown = kernel.run(cell)
    assert shown.kind == kind and wanted in shown.error
    assert "[0, 1]" in kernel.ok("w.run(lambda me: me.rank)")


def test_closed_while_another_thread_waits(kernel):
    text = kernel.ok(
        "more, found = Workers(2), []\ndef wait():\n"
        "    try:\n        more.run(lambda me: time.sleep(600))\n"
        "    except RuntimeError as error:\n        found.append(str(error))\n"
        "waiter = threading.Thread(target=wait); waiter.start()\ntime.sleep(0.5)\n"
        "more.close(); waiter.join(5); print(found, more.pids)")
    assert "['the workers were closed during this call.'] []" in text


def test_a_failed_launch_ends_its_ranks_and_starts_no_others(kernel):
    cell = kernel.run("launch(lambda me: 1 / me.rank, 2)")
    assert "rank 0 failed: ZeroDivisionError" in cell.error
    assert "starting anew" not in cell.text


def test_works_from_another_thread(kernel):
    assert "[[0, 1]]" in kernel.ok(
        "found = []\nother = threading.Thread("
        "target=lambda: found.append(w.run(lambda me: me.rank)))\n"
        "other.start(); other.join(); found")


def test_a_killed_fork_server_is_replaced(kernel):
    cell = kernel.run("import psutil\nold = [psutil.Process(pid) for pid in w.pids]\n"
                      "old[0].parent().kill()\nw.run(lambda me: time.sleep(600))")
    assert cell.kind == "RankError" and "its process ended" in cell.error
    assert "[0, 1]" in kernel.ok("w.run(lambda me: me.rank)")
    assert kernel.ok("[p for p in psutil.wait_procs(old, 5)[1]\n"
                     " if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]"
                     ) == "[]"
