"""What this machine has, in a few lines that a chapter can print."""
import os
import platform
import time
from pathlib import Path

import torch

ALL_THREADS = torch.get_num_threads()  # before anybody chose fewer


def facts():
    """Versions, processor, cores, threads, memory and GPUs.

    Returns:
        dict, name -> int or str.
    """
    import transformers  # slow

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads torch uses": torch.get_num_threads(),
        "memory": memory(),
        "GPUs": ", ".join(gpus) or "none: everything here runs on the CPU",
    }


def describe():
    """The same as text, one fact a line."""
    return "\n".join(f"{name:>20}: {value}" for name, value in facts().items())


def choose_threads(model):
    """Gives torch one thread or all of its threads, whichever decodes faster now.

    The threads of an operation wait for one another. So where something else keeps
    a core busy, two threads may be ten times slower than one.

    Args:
        model: a language model.

    Returns:
        str, what was chosen and why, in one sentence.
    """
    if ALL_THREADS == 1:
        return "torch has one thread to decode with here, and uses it."
    one, every = (step_seconds(model, threads) for threads in (1, ALL_THREADS))
    chosen, times = (1, every / one) if one < every else (ALL_THREADS, one / every)
    torch.set_num_threads(chosen)
    name, other = ("one thread", "all") if chosen == 1 else ("all threads", "one")
    return (f"torch decodes with {name}: {times:.1f} times as fast, just now, as with "
            f"{other} of {ALL_THREADS}.")


@torch.inference_mode()
def step_seconds(model, threads, limit=0.1):
    """Mean seconds of a forward of five tokens and one of one, with so many threads.

    The mean and not the median: rare long waits are what threads are slow by.
    Takes about `limit` seconds, and at least two runs.
    """
    torch.set_num_threads(threads)
    cache, text = model.new_cache(6), torch.arange(6) % 2
    taken, began = [], time.perf_counter()
    while len(taken) < 2 or time.perf_counter() - began < limit:
        cache.truncate(0)
        start = time.perf_counter()
        model.forward(text[:5], cache)
        model.forward(text[5:], cache)
        taken.append(time.perf_counter() - start)
    return sum(taken[1:]) / len(taken[1:])  # the first one warms up


def say_if_busy(results):
    """Prints a sentence where a measured speedup can't be true, else nothing.

    A round takes at least a plain step's time, so that no speedup exceeds the
    tokens that a round commits.

    Args:
        results: list of measure.Comparison.
    """
    if any(r.speedup > r.summary["committed_per_round"] for r in results):
        print("A speedup above the tokens that a round commits can't be: the machine "
              "was busy with something else. Run the cell again.")


def processor():
    """The processor's name, as far as the system tells it."""
    listed = Path("/proc/cpuinfo")  # Linux only
    lines = listed.read_text().splitlines() if listed.exists() else []
    names = [line.split(": ")[-1] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def memory():
    """Size of the machine's memory in GiB, where the system tells it."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # Windows; a name that isn't known
        return "unknown"
    return f"{size / 2**30:.0f} GiB"
