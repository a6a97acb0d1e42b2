"""Every fault in a real kernel: it is named, the next cell works, nothing is left."""
import time

import pytest
from fault_cells import FAULTS, HELLO, START, START_CHECKED
from kernels import Kernel, is_rank, left_over


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    kernel.ok(START + "\n" + START_CHECKED)
    yield kernel
    kernel.close()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_is_named_and_survived(kernel, fault):
    cell = kernel.start(fault.cell)
    for pause in fault.interrupts:
        time.sleep(pause)
        kernel.interrupt()
    cell.wait()
    assert fault.kind in (cell.kind, None), cell.error
    shown = cell.text + cell.error
    assert [text for text in fault.wanted if text not in shown] == [], shown
    assert cell.seconds - sum(fault.interrupts) < fault.within
    after = kernel.run(HELLO.format(workers=fault.workers))
    assert "[[2.0, 2.0], [2.0, 2.0]]" in after.text, after.error
    assert after.seconds < 5


@pytest.mark.parametrize("cell", [
    "for _ in range(1000):\n    w.restart()",
    "for _ in range(1000):\n    with Workers(2) as more:\n        more.run(hello)",
    "for _ in range(100_000):\n    w.run(lambda me: me.rank)"],
    ids=["restart", "open and close", "short calls"])
@pytest.mark.parametrize("pause", [0.15, 0.163, 0.171, 0.189])
def test_interrupts_at_any_moment_leave_whole_sets(kernel, cell, pause):
    kernel.ok(HELLO.format(workers="w"))
    cell = kernel.start(cell)
    for wait in (pause, pause / 9):
        time.sleep(wait)
        kernel.interrupt()
    cell.wait(10)
    after = kernel.run(HELLO.format(workers="w"))
    assert "[[2.0, 2.0], [2.0, 2.0]]" in after.text, after.error


def test_nothing_is_left_after_close(kernel):
    ranks = [process for process in kernel.processes() if is_rank(process)]
    assert len(ranks) >= 4
    kernel.ok("w.close(); checked.close(); more.close()")
    assert left_over(ranks) == []
    assert [p for p in kernel.processes() if is_rank(p)] == []
