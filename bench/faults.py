"""Every fault of tests/fault_cells.py in a real notebook kernel, as a table.

    .venv/bin/python bench/faults.py

For each fault: seconds until its message is there, and how many of our processes
are left 5 s after `close()`. Then what a start and an empty call cost.
"""
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fault_cells import FAULTS, SETUP  # noqa: E402
from kernels import Kernel, is_rank, left_over  # noqa: E402

OPEN = "w = Workers(2); checked = Workers(2, debug=True)"
CLOSE = "w.close(); checked.close()"
# A cell's last line is its result: first start, later starts, an empty call.
TIMES = """
import statistics
def empty(me):
    pass
def timed(fn, times):
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        fn()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken), max(taken)
first = timed(lambda: Workers(2).close(), 1)
later = timed(lambda: Workers(2).close(), 10)
w = Workers(2)
for name, (median, worst) in (("first start and close", first),
                              ("later starts and closes, 10", later),
                              ("empty calls, 200", timed(lambda: w.run(empty), 200))):
    print(f"| {name} | {1000 * median:.1f} | {1000 * worst:.1f} |")
"""


def measure(kernel, fault):
    """One fault, between a fresh `Workers` and its `close()`.

    Returns:
        (seconds, bool, int): until the message, whether it said what it must, and
        the ranks that are left.
    """
    kernel.ok(OPEN)
    cell = kernel.start(fault.cell)
    for pause in fault.interrupts:
        time.sleep(pause)
        kernel.interrupt()
    cell.wait()
    named = fault.kind in (cell.kind, None) and all(
        text in cell.text + cell.error for text in fault.wanted)
    ranks = [p for p in kernel.processes() if is_rank(p)]
    kernel.ok(CLOSE)
    return cell.seconds - sum(fault.interrupts), named, len(left_over(ranks))


def killed_kernel():
    """Seconds until nothing is left of a killed kernel's processes, and what is left.

    Returns:
        (seconds, int).
    """
    kernel = Kernel()
    kernel.ok(SETUP + OPEN)
    kernel.start("w.run(lambda me: dist.recv(torch.ones(2), src=1 - me.rank))")
    time.sleep(1)
    processes, began = kernel.processes(), time.monotonic()
    kernel.kill()
    left = left_over(processes)
    seconds = time.monotonic() - began
    kernel.close()
    return seconds, len(left)


def main():
    kernel = Kernel()
    kernel.ok(SETUP)
    print("| fault | seconds to message | named | processes left |")
    print("|---|---|---|---|")
    for fault in FAULTS:
        seconds, named, left = measure(kernel, fault)
        print(f"| {fault.name} | {seconds:.2f} | {'yes' if named else 'NO'} | {left} |",
              flush=True)
    kernel.close()
    seconds, left = killed_kernel()
    print(f"| kernel killed (SIGKILL), all gone after | {seconds:.2f} | | {left} |")
    print("\n| | median, ms | worst, ms |\n|---|---|---|")
    kernel = Kernel()
    times = kernel.ok(SETUP + TIMES).splitlines()
    print("\n".join(line for line in times if line.startswith("|")))
    kernel.close()


if __name__ == "__main__":
    main()
