"""Tensor parallelism: groups of ranks, real and simulated."""
from .collectives import Call, Group, SoloGroup, connect, totals
from .partitions import Partition, partition
from .process_group import DistributedGroup
from .ranks import Rank, RankError
from .shard import ShardedDecoder, load_shard, shard_model
from .shared import SharedMemoryGroup
from .simulated import SimulatedGroup, simulate
from .traffic import traffic

__all__ = [
    "Call", "DistributedGroup", "Group", "Partition", "Rank", "RankError",
    "ShardedDecoder", "SharedMemoryGroup", "SimulatedGroup", "SoloGroup", "connect",
    "load_shard", "partition", "shard_model", "simulate", "totals", "traffic",
]
