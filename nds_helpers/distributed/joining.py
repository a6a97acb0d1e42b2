"""Joining torch.distributed's default group: the same for our ranks and torchrun's."""


def join_group(plan, rank, size, local_rank, **meeting):
    """Initialises the default process group, and describes this rank.

    Args:
        plan: Plan for the ranks on this machine.
        rank, size: ints, counted over all machines.
        local_rank: int, counted on this machine; chooses the device.
        meeting: `store` and `timeout`, as `init_process_group` takes them.

    Returns:
        Rank.
    """
    import torch
    import torch.distributed as dist

    from nds_helpers.parallel.collectives import connect
    from nds_helpers.parallel.ranks import Rank

    torch.set_num_threads(plan.threads)
    if plan.debug:  # the variable for it is read when torch is imported: too late
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    device = torch.device(plan.devices[local_rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)  # before anything opens a context on GPU 0
    if not dist.is_initialized():
        dist.init_process_group(
            plan.backend, rank=rank, world_size=size,
            device_id=device if plan.group == "nccl" else None, **meeting)
    return Rank(rank, size, device, connect(plan.group, device), {})
