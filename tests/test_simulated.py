"""Simulated ranks: the formulas, the order, and every way to go wrong."""
import os
import signal
import sys
import threading
import time

import nbformat
import pytest
import torch
from collective_checks import failures
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient
from traitlets.config import Config

from nds_helpers.parallel import RankError, simulate


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not [t for t in threading.enumerate() if t.name.startswith("simulated")]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_simulated_ranks_keep_to_the_formulas(size):
    assert simulate(lambda me: failures(me.group), size) == [{}] * size


def test_arguments_results_and_ranks():
    def work(me, x, y=0):
        me.state["x"] = x
        return me.rank, me.size, me.group.rank, str(me.device), x, y, me.state

    assert simulate(work, 2, 3, y=4) == [
        (r, 2, r, "cpu", 3, 4, {"x": 3}) for r in (0, 1)]
    with torch.device("meta"):
        assert simulate(work, 1, 3)[0][3] == "meta"


def test_one_rank_at_a_time_in_rank_order(capsys):
    def work(me):
        for step in range(3):
            print(step, me.rank)
            time.sleep(0.01 * (3 - me.rank))  # the first is the slowest
            me.group.barrier()

    simulate(work, 3)
    assert capsys.readouterr().out.split("\n")[:-1] == [
        f"{step} {rank}" for step in range(3) for rank in range(3)]


def test_a_rank_may_change_its_tensor_right_after_the_call():
    def work(me):
        x = torch.ones(2)
        total = me.group.all_reduce(x)
        x.zero_()
        return total.tolist()

    assert simulate(work, 3) == [[3, 3]] * 3


def test_the_callers_gradient_mode_and_threads_hold():
    def work(me):
        return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
                torch.get_num_threads())

    threads = torch.get_num_threads()
    assert simulate(work, 2) == [(True, False, threads)] * 2
    with torch.no_grad():
        assert simulate(work, 2) == [(False, False, threads)] * 2
    with torch.inference_mode():
        assert simulate(work, 2) == [(False, True, threads)] * 2
    torch.set_num_threads(1)
    try:
        assert simulate(work, 1)[0][2] == 1
    finally:
        torch.set_num_threads(threads)


def test_simulations_nest():
    def inner(me, k):
        return me.group.all_reduce(torch.tensor(10 * k + me.rank)).item()

    def outer(me):
        return me.group.all_gather(torch.tensor(simulate(inner, 2, me.rank))).tolist()

    assert simulate(outer, 2) == [[1, 1, 21, 21]] * 2


def line(function, offset):
    """"<file> line <n>" of the line `offset` below a function's first."""
    code = function.__code__
    return f"{code.co_filename} line {code.co_firstlineno + offset}"


def test_an_error_names_the_rank_its_lines_and_where_the_others_stood():
    def work(me):
        me.group.barrier()
        if me.rank == 1:
            raise KeyError("no\nsuch", 2)
        reduce(me)

    def reduce(me):
        me.group.all_reduce(torch.ones(2))

    with pytest.raises(RankError) as caught:
        simulate(work, 3)
    error = caught.value
    assert error.rank == 1 and error.cause == r"KeyError: ('no\nsuch', 2)"
    assert 'raise KeyError("no\\nsuch", 2)' in error.traceback
    assert os.path.join("parallel", "simulated.py") not in error.traceback
    assert error.waiting == {
        0: "was waiting in all_reduce at " + line(reduce, 1),
        2: "was waiting for its turn in barrier at " + line(work, 1)}


class Falsy(Exception):
    """An error that a careless `if error` would overlook."""

    def __bool__(self):
        return False


@pytest.mark.parametrize("end, cause", [
    (lambda: sys.exit(3), "SystemExit: 3"),
    (lambda: [][0], "IndexError: list index out of range"),
    (lambda: exec("if"), "SyntaxError: invalid syntax"),
    (lambda: exec("raise Falsy()", {"Falsy": Falsy}), "test_simulated.Falsy"),
    (lambda: exec("raise KeyboardInterrupt"), "KeyboardInterrupt"),
])
def test_any_kind_of_error_ends_all_ranks(end, cause):
    with pytest.raises(RankError) as caught:
        simulate(lambda me: me.rank or end(), 2)
    assert (caught.value.rank, caught.value.cause) == (0, cause)
    assert caught.value.waiting == {1: "had not started"}


def test_a_rank_cannot_catch_its_own_end():
    ended = []

    def work(me):
        try:
            me.group.barrier()
        except Exception:
            ended.append("caught")
        finally:
            ended.append("left")

    with pytest.raises(RankError):
        simulate(lambda me: work(me) if me.rank == 0 else [][0], 2)
    assert ended == ["left"]


def test_a_rank_that_ignores_its_end_ends_all_the_same():
    threads = []

    def work(me):
        threads.append(threading.current_thread())
        try:
            me.group.barrier()
        finally:
            me.group.barrier()

    with pytest.raises(RankError):
        simulate(lambda me: work(me) if me.rank == 0 else [][0], 2)
    assert not threads[0].is_alive()


def test_a_group_works_in_its_own_rank_alone():
    """Neither when simulate has ended, well or badly, nor on another rank or thread."""
    groups, refused = [], []

    def ask(group):
        with pytest.raises(RuntimeError, match="belongs to simulated rank 0, and work"):
            group.barrier()
        refused.append(group)

    def work(me, last):
        groups.append(me.group)
        me.group.barrier()
        if me.rank == 1:
            ask(groups[0])
        other = threading.Thread(target=ask, args=(groups[0],), daemon=True)
        other.start()
        other.join(10)
        return last[me.rank]

    simulate(work, 2, [0, 1])
    for _ in range(2):
        ask(groups[0])
    del groups[:]
    with pytest.raises(RankError):
        simulate(work, 2, [0])
    ask(groups[0])
    assert len(refused) == 9


@pytest.mark.parametrize("early", [0, 1, 2])
def test_a_rank_that_returns_while_others_wait_is_named(early):
    def work(me):
        if me.rank != early:
            me.group.all_reduce(torch.ones(2))

    with pytest.raises(RankError) as caught:
        simulate(work, 3)
    error, waiting = caught.value, "was waiting in all_reduce at " + line(work, 2)
    assert error.rank == early
    assert error.cause == (
        f"returned, although rank {int(early == 0)} {waiting}; every rank must take "
        "part in every collective")
    assert error.waiting == {r: waiting for r in range(3) if r != early}


def test_groups_that_wait_for_each_other_are_named():
    """Rank 0 waits for 1, 1 for 2, and 2 for 0; rank 3 has returned long ago."""
    def work(me):
        groups = [me.group.subgroup(pair) for pair in ([0, 1], [1, 2], [0, 2])]
        if me.rank < 3:
            groups[me.rank].barrier()

    with pytest.raises(RankError) as caught:
        simulate(work, 4)
    assert caught.value.cause.startswith(
        "called barrier among ranks [0, 2], but rank 0 called barrier among ranks "
        "[0, 1]; every rank must make the")
    assert set(caught.value.waiting) == {0, 1, 3}


def test_groups_work_at_the_same_time_and_in_any_order():
    """A rank may be long at work in one group while others go on in theirs."""
    def work(me):
        team, seen = me.group.subgroup([1, 2]), []
        for step in range(3):
            if team:
                seen += [team.all_reduce(torch.tensor(step)).item() for _ in range(2)]
            seen.append(me.group.all_reduce(torch.tensor(me.rank)).item())
        return seen

    alone, *pair = simulate(work, 3)
    assert alone == [3, 3, 3] and pair == [[0, 0, 3, 2, 2, 3, 4, 4, 3]] * 2


def test_a_rank_that_leaves_its_subgroup_waiting_is_named():
    def work(me):
        team = me.group.subgroup([1, 2])
        if me.rank == 1:
            team.all_reduce(torch.ones(2))
        if me.rank == 0:
            me.group.barrier()

    with pytest.raises(RankError, match="rank 2 failed: returned, although rank"):
        simulate(work, 3)


X = torch.ones(2, 3)
CALLS = {
    "all_reduce of float32 [2, 3] on cpu": lambda g: g.all_reduce(X),
    "all_reduce of float64 [2, 3] on cpu": lambda g: g.all_reduce(X.double()),
    "all_reduce of float32 [3, 2] on cpu": lambda g: g.all_reduce(X.t()),
    "all_reduce of float32 [2, 3] on meta": lambda g: g.all_reduce(X.to("meta")),
    "all_gather of float32 [2, 3+3] on cpu": lambda g: g.all_gather(X),
    "all_gather of float32 [2+2, 3] on cpu": lambda g: g.all_gather(X, 0),
    "all_gather of float32 [2, 2+2] on cpu": lambda g: g.all_gather(X[:, 1:]),
    "all_gather of float32 [2, 3+2] on cpu":
        lambda g: g.all_gather(X[:, :3 - g.rank], sizes=[3, 2]),
    "reduce_scatter of float32 [1+1, 3] on cpu": lambda g: g.reduce_scatter(X, 0),
    "reduce_scatter of float32 [2+0, 3] on cpu":
        lambda g: g.reduce_scatter(X, 0, [2, 0]),
    "broadcast of float32 [2, 3] on cpu, root 0": lambda g: g.broadcast(X),
    "broadcast of float32 [2, 3] on cpu, root 1": lambda g: g.broadcast(X, 1),
    "gather of float32 [2, 3+3] on cpu, root 0": lambda g: g.gather(X),
    "barrier": lambda g: g.barrier(),
}


def test_calls_that_differ_are_named():
    def work(me, pair):
        return CALLS[pair[me.rank]](me.group)

    for first in CALLS:
        simulate(work, 2, (first, first))
        for second in CALLS:
            if first == second:
                continue
            with pytest.raises(RankError) as caught:
                simulate(work, 2, (first, second))
            error = caught.value
            assert error.rank == 1
            assert error.cause.startswith(
                f"called {second}, but rank 0 called {first}; every rank must make the")
            assert "return CALLS[pair[me.rank]](me.group)" in error.traceback
            assert error.waiting[0].startswith("was waiting in " + first.split()[0])


@pytest.mark.parametrize("arguments, kind, words", [
    ((3, 2), TypeError, "runs a function; got int"),
    ((lambda: 1, 2), TypeError, r"<lambda>\(\) doesn't take that \(too many .* write "
     r"def work\(me, x\) and simulate\(work, 2, x\)."),
    ((print, 0), ValueError, "got 0"),
    ((print, 2.0), ValueError, "got 2.0"),
])
def test_wrong_arguments_are_refused(arguments, kind, words):
    with pytest.raises(kind, match=words):
        simulate(*arguments)


def test_an_interrupt_ends_every_thread():
    def work(me):
        me.group.barrier()
        if me.rank == 0:
            me.group.barrier()
        timer.start()
        while True:
            pass

    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        simulate(work, 3)
    timer.join()


def test_cells_are_called_by_their_names():
    no_history = Config({"HistoryManager": {"enabled": False}})
    shell = InteractiveShell.instance(config=no_history)
    try:
        shell.user_ns.update(simulate=simulate, torch=torch)
        shell.run_cell("def helper(me):\n    me.group.all_reduce(torch.ones(2))\n",
                       store_history=True)
        found = shell.run_cell(
            "def work(me):\n    if me.rank == 1:\n        raise ValueError('no')\n"
            "    helper(me)\nsimulate(work, 2)", store_history=True).error_in_exec
    finally:
        InteractiveShell.clear_instance()
    assert type(found) is RankError
    assert 'File "Cell In[2]", line 3, in work\n    raise ValueError' in found.traceback
    assert found.waiting == {0: "was waiting in all_reduce at Cell In[1] line 2"}


def test_prints_appear_in_the_cell_that_ran_them():
    cells = [
        "from nds_helpers.parallel import simulate\ndef work(me):\n"
        "    print('rank', me.rank)\n    me.group.barrier()\n    print('end', me.rank)",
        "simulate(work, 2)\nprint('done')"]
    book = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    NotebookClient(book, timeout=60, kernel_name="python3").execute()
    first, second = (cell.outputs for cell in book.cells)
    assert first == []
    assert "".join(out.text for out in second) == (
        "rank 0\nrank 1\nend 0\nend 1\ndone\n")
