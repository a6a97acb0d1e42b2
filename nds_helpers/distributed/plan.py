"""Which device, backend and threads each rank gets, and why."""
import os
from dataclasses import dataclass, replace

BACKENDS = ("auto", "shared", "gloo", "nccl")
MULTI_RANK_NCCL = (2, 30)  # the first NCCL that lets ranks share a GPU


@dataclass(frozen=True)
class Plan:
    """How a set of ranks runs.

    group: what `parallel.connect` is asked for: "shared", "gloo" or "nccl".
    devices: one name a rank, "cpu" or "cuda:0".
    why: the reason, for the line that is printed at the start.
    environment: variables that the ranks need on top.
    """

    size: int
    group: str
    devices: tuple
    threads: int
    cores: int
    why: str
    environment: tuple = ()  # (name, value) pairs
    debug: bool = False

    @property
    def backend(self):
        """torch.distributed's name; beside NCCL, gloo serves tensors on the CPU."""
        return "cpu:gloo,cuda:nccl" if self.group == "nccl" else "gloo"

    def line(self):
        """One line: backend, the ranks' devices, threads, and why."""
        names = {"shared": "shared memory", "gloo": "gloo", "nccl": "NCCL"}
        where = ("on the CPU" if set(self.devices) == {"cpu"} else
                 "on " + ", ".join(self.devices))
        text = (f"{count(self.size, 'rank')} over {names[self.group]} {where}, "
                f"{count(self.threads, 'thread')} each "
                f"({count(self.cores, 'core')}); {self.why}")
        if self.debug:
            text += "; collectives are compared (debug)"
        if self.size > self.cores:
            text += ("\nwarning: more ranks than cores; they take turns, and every "
                     "collective waits for all of them")
        return text


def make_plan(size, backend="auto", debug=False):
    """Chooses devices, backend and threads for ranks on this machine.

    Args:
        size: int, number of ranks.
        backend: "auto", "shared", "gloo" or "nccl".
        debug: whether collectives are compared between ranks.

    Returns:
        Plan.

    Raises:
        ValueError: an unknown backend, or NCCL where no GPU is.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, "
                         f"not {backend!r}.")
    cores = usable_cores()
    plan = Plan(size, "gloo", ("cpu",) * size, max(1, cores // size), cores, "",
                debug=debug)
    gpus = gpu_count()
    if backend == "shared" or (backend == "auto" and not gpus):
        return cpu_plan(plan, backend)
    if not gpus:
        if backend == "nccl":
            raise ValueError('backend "nccl" needs a GPU, and torch finds none here; '
                             'use backend="auto".')
        return replace(plan, why="as asked; no GPU found")
    return gpu_plan(plan, backend, gpus)


def cpu_plan(plan, backend):
    """Ranks on the CPU: shared memory where its memory order is known to hold."""
    from nds_helpers.parallel.shared import obstacle  # imports torch

    why = "as asked" if backend == "shared" else "no GPU found"
    if obstacle():
        return replace(plan, why=f"{why}; no shared memory: {obstacle()}")
    return replace(plan, group="shared", why=why)


def gpu_plan(plan, backend, gpus):
    """Ranks on GPUs: one each where there are enough, in turns where there aren't."""
    devices = tuple(f"cuda:{rank % gpus}" for rank in range(plan.size))
    plan = replace(plan, devices=devices, group="gloo")
    found = f"{count(gpus, 'GPU')} found"
    if backend == "gloo":
        return replace(plan, why=f"as asked; {found}")
    if gpus >= plan.size:
        return replace(plan, group="nccl", why=f"{found}, one for each rank")
    version = nccl_version()
    if version >= MULTI_RANK_NCCL:
        return replace(
            plan, group="nccl", environment=(("NCCL_MULTI_RANK_GPU_ENABLE", "1"),),
            why=f"{found}, shared by the ranks (NCCL {dotted(version)} can)")
    return without_nccl(plan, f"{found}, and NCCL {dotted(version)} can't put several "
                        f"ranks on one ({dotted(MULTI_RANK_NCCL)} can)")


def without_nccl(plan, why):
    """The same plan over gloo, which copies CUDA tensors through the CPU."""
    return replace(plan, group="gloo", environment=(), why=why)


def usable_cores():
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_count():
    """How many GPUs torch sees; asking doesn't touch them."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def nccl_version():
    """NCCL's version as a tuple; () where torch was built without it."""
    import torch

    if not torch.distributed.is_nccl_available():
        return ()
    return torch.cuda.nccl.version()


def dotted(version):
    """(2, 30) as "2.30"."""
    return ".".join(map(str, version)) or "(none)"


def count(number, noun):
    """ "1 rank", "2 ranks". """
    return f"{number} {noun}{'' if number == 1 else 's'}"
