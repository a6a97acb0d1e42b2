"""A piece of memory that all ranks of one machine see."""
import mmap
import os
import tempfile

import torch.distributed as dist

# Linux lets a process open a file by another's descriptor of it. So the file's name can
# go at once, and nothing is left behind, however and whenever the ranks end.
NAMELESS = os.path.isdir("/proc/self/fd")


def map_together(length, process_group=None):
    """Maps one new file into the memory of every rank.

    Its name is deleted as soon as it isn't needed; the file lives as long as a rank
    has it mapped.

    Args:
        length: int, bytes.
        process_group: the ranks that share it; None for the default group.

    Returns:
        mmap.mmap, full of zeros.

    Raises:
        RuntimeError: a rank can't map it; the same sentence on every rank.
    """
    first = dist.get_rank(process_group) == 0
    file = path = memory = problem = None
    dist.barrier(process_group)  # all are there: from now on it is a matter of moments
    if first:
        try:
            file, path = create(length)
        except OSError as error:
            problem = f"{length >> 20} MB of shared memory aren't to be had ({error})"
    told = [path]
    dist.broadcast_object_list(told, group_src=0, group=process_group)
    if told[0]:
        try:
            file = file if first else os.open(told[0], os.O_RDWR)
            memory = mmap.mmap(file, length)
        except OSError as error:
            problem = f"a rank can't map the memory that rank 0 shares ({error})"
    problems = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(problems, problem, group=process_group)
    if file is not None:
        os.close(file)  # the mapping stays
    if path and not NAMELESS:
        os.unlink(path)
    if any(problems):
        raise RuntimeError(f"{next(filter(None, problems))}; make room, or choose "
                           'backend="gloo"')
    return memory


def create(length):
    """Makes a file of zeros, in memory where the system can.

    Returns:
        (file, path): its descriptor, and where other processes find it.
    """
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    file, path = tempfile.mkstemp(prefix=f"ranks-{os.getpid()}-", dir=folder)
    if NAMELESS:
        os.unlink(path)
        path = f"/proc/{os.getpid()}/fd/{file}"
    try:
        # Reserved now: a memory that runs full later would end the rank by a signal.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, length)
        else:
            os.ftruncate(file, length)
    except OSError:
        os.close(file)
        if not NAMELESS:
            os.unlink(path)
        raise
    return file, path
