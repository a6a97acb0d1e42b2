"""What this machine has, in a few lines that a chapter can print."""
import os
import platform
from pathlib import Path

import torch


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
