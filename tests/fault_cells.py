"""Faults of a user or a machine, each a cell to run and what its message must say.

The tests run every one of them in a real kernel; bench/faults.py makes a table.
`w` is a set of two ranks, `checked` another one with debug=True.
"""
from dataclasses import dataclass

SETUP = """
import os, signal, threading, time
import torch
import torch.distributed as dist
from nds_helpers.distributed import RankError, Workers, launch
"""
START = SETUP + "w = Workers(2)"
START_CHECKED = "checked = Workers(2, debug=True)"

HELLO = """
def hello(me):
    return me.group.all_reduce(torch.ones(2)).tolist()
print({workers}.run(hello))
"""


@dataclass(frozen=True)
class Fault:
    """A cell that goes wrong, and how it must be reported.

    wanted: texts that must be in what the cell shows.
    kind: the exception's name; None where IPython itself may be hit by an interrupt.
    within: seconds, generous: apart from a hang, not a speed.
    interrupts: when the stop button is pressed, in seconds after the start.
    """

    name: str
    cell: str
    wanted: tuple
    kind: str = "RankError"
    within: float = 10
    interrupts: tuple = ()
    workers: str = "w"


FAULTS = [
    Fault("raises before an all-reduce", """
def early(me):
    if me.rank == 1:
        raise ValueError("no such token")
    me.group.all_reduce(torch.ones(2))
w.run(early)""", ("rank 1 failed: ValueError: no such token", ", line 3, in early",
                  'raise ValueError("no such token")',
                  "rank 0 was waiting in all_reduce at Cell In["), within=3),
    Fault("both raise, rank 1 first", """
def both(me):
    time.sleep(0.1 if me.rank == 0 else 0)
    raise KeyError(f"from {me.rank}")
w.run(both)""", ("rank 1 failed: KeyError: 'from 1'",
                 "rank 0 failed too: KeyError: 'from 0'")),
    Fault("rank killed (SIGKILL)", """
def killed(me):
    if me.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    me.group.all_reduce(torch.ones(2))
w.run(killed)""", ("rank 0 failed: killed by SIGKILL", "memory runs out", "rank 1 ")),
    Fault("rank crashes (SIGSEGV)", """
def crash(me):
    if me.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()
w.run(crash)""", ("rank 1 failed: killed by SIGSEGV", "rank 0 ")),
    Fault("killed between two calls", """
os.kill(w.pids[1], signal.SIGKILL)
time.sleep(0.1)
w.run(lambda me: me.rank)""", ("rank 1 failed: killed by SIGKILL",)),
    Fault("sys.exit", """
def leave(me):
    import sys
    if me.rank == 1:
        sys.exit(3)
    me.group.barrier()
w.run(leave)""", ("rank 1 failed: SystemExit: 3", "sys.exit(3)")),
    Fault("os._exit", """
w.run(lambda me: os._exit(3) if me.rank == 1 else me.group.barrier())""",
          ("rank 1 failed: its process ended with exit code 3",)),
    Fault("exception with two arguments", """
class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
def odd(me):
    raise Odd("this", "that")
w.run(odd)""", ("failed: Odd: this and that", 'raise Odd("this", "that")')),
    Fault("exception that can't be pickled or shown", """
class Rude(Exception):
    lock = threading.Lock()
    def __init__(self):
        self.held = threading.Lock()
    def __str__(self):
        raise RuntimeError("no words")
def rude(me):
    globals()["Rude"]()
    raise Rude()
Rude.lock = None
w.run(rude)""", ("failed: Rude: its message can't be shown", "raise Rude()")),
    Fault("result that can't be pickled", """
w.run(lambda me: (x for x in "ab"))""",
          ("failed: TypeError: the function's result (a generator) can't be sent",)),
    Fault("result that can't be unpickled", """
class Broken:
    def __reduce__(self):
        return int, ("not a number",)
w.run(lambda me: Broken() if me.rank == 1 else 0)""",
          ("rank 1 failed: its result can't be unpickled here: ValueError",)),
    Fault("endless recursion", """
def deep(me):
    return deep(me)
w.run(deep)""", ("failed: RecursionError", "in deep")),
    Fault("a global that can't be sent", """
gate = threading.Lock()
w.run(lambda me: gate.acquire())""", ("can't be sent to the ranks", "lock"),
          kind="TypeError"),
    Fault("names the workers themselves", """
w.run(lambda me: w.size)""", ("can't use the Workers themselves",), kind="TypeError"),
    Fault("no answer in time", """
def sleepy(me):
    if me.rank == 1:
        time.sleep(600)
    me.group.all_reduce(torch.ones(2))
w.run(sleepy, timeout=1)""", ("rank 1 failed: no answer within 1 s", "timeout=",
                              "time.sleep(600)", "rank 0 was waiting in all_reduce")),
    Fault("a rank has returned, no answer in time", """
def forgetful(me):
    if me.rank == 0:
        me.group.all_reduce(torch.ones(2))
w.run(forgetful, timeout=1)""", ("rank 1 failed: returned, although rank 0 was waiting "
                                 "in all_reduce at Cell In[", "No answer within 1 s.",
                                 "timeout=")),
    Fault("deadlock: both receive", """
def deadlock(me):
    dist.recv(torch.ones(2), src=1 - me.rank)
w.run(deadlock, timeout=1)""", ("no answer within 1 s", "was waiting in recv at Cell")),
    Fault("holds the interpreter's lock", """
def grip(me):
    import re
    if me.rank == 1:
        re.match("(a+)+$", "a" * 60 + "b")
w.run(grip, timeout=1)""", ("rank 1 failed: no answer within 1 s", "busy in C code",
                            "rank 0 had returned")),
    Fault("interrupt while it sleeps", "w.run(lambda me: time.sleep(600))",
          ("Where the ranks stood", "rank 0 was at Cell In[", "rank 1 was at"),
          kind="KeyboardInterrupt", interrupts=(0.7,)),
    Fault("interrupt in a collective", """
def deadlock(me):
    dist.recv(torch.ones(2), src=1 - me.rank)
w.run(deadlock)""", ("rank 0 was waiting in recv at Cell In[", "rank 1 was waiting in"),
          kind="KeyboardInterrupt", interrupts=(0.7,)),
    Fault("interrupted twice", """
def deadlock(me):
    dist.recv(torch.ones(2), src=1 - me.rank)
w.run(deadlock)""", (), kind=None, interrupts=(0.7, 0.02)),
    Fault("interrupt during start-up", """
for _ in range(1000):
    w.restart()""", (), kind="KeyboardInterrupt", interrupts=(0.7,)),
    Fault("Workers inside a rank", "w.run(lambda me: Workers(2))",
          ("this function already runs on a rank",)),
    Fault("not a function", "w.run(3)",
          ("run needs a function, not 3",), kind="TypeError"),
    Fault("another thread's call", """
busy = threading.Thread(target=w.run, args=(lambda me: time.sleep(1),))
busy.start()
time.sleep(0.3)
try:
    w.run(lambda me: me.rank)
finally:
    busy.join()""", ("another thread is running a function",), kind="RuntimeError"),
    Fault("another shape", """
checked.run(lambda me: dist.all_reduce(torch.ones(2 + me.rank)))""",
          ("Detected mismatch between collectives",), workers="checked"),
    Fault("another dtype", """
checked.run(lambda me: dist.all_reduce(torch.ones(2, dtype=[torch.float32,
                                                           torch.float64][me.rank])))
""", ("Detected mismatch between collectives",), workers="checked"),
    Fault("another operation", """
checked.run(lambda me: dist.barrier() if me.rank else dist.all_reduce(torch.ones(2)))
""", ("Detected mismatch between collectives",), workers="checked"),
    Fault("another shape, through the group", """
checked.run(lambda me: me.group.all_reduce(torch.ones(2 + me.rank)))""",
          ("all_reduce", "[2]", "[3]"), workers="checked"),
    Fault("a rank is missing in the group", """
checked.run(lambda me: me.rank or me.group.all_reduce(torch.ones(2)))""",
          ("rank 1 failed: returned, although rank 0 was waiting in all_reduce",),
          workers="checked"),
    Fault("a rank is missing", """
def alone(me):
    if me.rank == 0:
        dist.all_reduce(torch.ones(2))
checked.run(alone)""", ("rank 1 failed: returned, although rank 0 was waiting in "
                        "all_reduce at Cell In[",), workers="checked"),
]
