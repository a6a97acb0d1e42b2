"""A draft model that is sharded over the same ranks as the target."""
import torch

from ..decoding import ModelDrafter


class ShardedDrafter(ModelDrafter):
    """Every rank runs its shard; rank 0 draws each token and tells the others.

    If each drew for itself, ranks that see a near-tie differently would feed
    different tokens, and wait for each other for ever.

    Args:
        shard: the draft, from `shard_model(draft, me.group)`.
    """

    def choose(self, row, u):
        """Rank 0's token, on every rank."""
        token = super().choose(row, u)
        told = torch.tensor([token], device=self.device)
        return int(self.model.group.broadcast(told))
