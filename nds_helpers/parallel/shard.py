"""The sharded decoder: on every rank a narrower one, which sums with the others."""
import threading
from dataclasses import replace
from pathlib import Path

import torch

from nds_helpers.models import Decoder
from nds_helpers.models.borrowed import ReducedHead
from nds_helpers.models.checkpoint import (
    check_dtype,
    check_shape,
    fill,
    our_name,
    places,
    tensors,
    whole_shapes,
)
from nds_helpers.models.config import read_config
from nds_helpers.models.int8 import Int8Linear

from .collectives import Group
from .layers import (
    SCHEMES,
    ColumnParallel,
    GatheringNorm,
    RowParallel,
    VocabularyParallelEmbedding,
)
from .partitions import partition


class ShardedDecoder(Decoder):
    """One rank's part of a decoder; all ranks call it together, with the same tokens.

    Its heads, MLP columns and words are this rank's share, and so is its KV cache.
    `forward` gives whole logits on every rank.

    Args:
        partition: Partition, with as many shares as the group has ranks.
        group: Group, this rank's.
        scheme: "all-reduce" or "sequence".

    Attributes:
        partition: Partition; `partition.config` is the whole model's shape.
        config: ModelConfig of this rank's share.
        vocab_size: V of the whole model.
        vocabulary: range of the words that this rank has logits for.
    """

    def __init__(self, partition, group, scheme="all-reduce"):
        check_size(group, partition.size)
        if scheme not in SCHEMES:
            raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}; got "
                             f"{scheme!r}.")
        with torch.device("meta"):  # shapes only; `fill` brings the numbers
            super().__init__(partition.narrow(group.rank))
            self.partition, self.rank = partition, group.rank
            self.vocab_size = partition.config.vocab_size
            self.scheme = SCHEMES[scheme](group)
            self._replace_layers()
        self.thread = threading.current_thread()

    def _replace_layers(self):
        config, scheme = self.config, self.scheme
        self.embed_tokens = VocabularyParallelEmbedding(
            self.partition.shares[self.rank].vocabulary, self.vocab_size,
            config.width, scheme)
        if config.tied:
            self.lm_head.weight = self.embed_tokens.weight
        for layer in self.layers:
            attention, mlp = layer.self_attn, layer.mlp
            attention.qkv = ColumnParallel(attention.qkv, scheme)
            attention.o_proj = RowParallel(attention.o_proj, scheme)
            mlp.gate_up = ColumnParallel(mlp.gate_up, scheme)
            mlp.down_proj = RowParallel(mlp.down_proj, scheme)
        self.norm = GatheringNorm(config, scheme)

    @property
    def group(self):
        """The Group that this shard sums with."""
        return self.scheme.group

    def join(self, group):
        """Goes on in another group, in which this rank has the same number.

        Simulated ranks get a new group with every `simulate`; shards that are kept
        from one call to the next join the new one.

        Args:
            group: Group.

        Returns:
            This ShardedDecoder.
        """
        check_size(group, self.partition.size)
        if group.rank != self.rank:
            raise ValueError(f"this is the shard of rank {self.rank}; rank "
                             f"{group.rank} of the new group needs its own.")
        self.scheme.group, self.thread = group, threading.current_thread()
        return self

    def _check_thread(self):
        """A simulated rank is a thread, a real one the main thread of a process."""
        if threading.current_thread() is not self.thread:
            raise RuntimeError(
                f"this shard of rank {self.rank} is used outside its group: by another "
                "rank, or after the group's own end. A shard that is kept joins the "
                "next group with shard.join(me.group).")

    @property
    def vocabulary(self):
        """range of the words that this rank has logits for, without padding ids."""
        return self._words(self.rank)

    def _words(self, rank):
        rows = self.partition.shares[rank].vocabulary
        return range(min(rows.start, self.vocab_size), min(rows.stop, self.vocab_size))

    def hidden(self, tokens, cache=None):
        """The stream after the last layer: [B, T] -> [B, T, D], whole on every rank."""
        self._check_thread()
        self.scheme.start(tokens.numel())
        return super().hidden(tokens, cache)

    def local_logits(self, x):
        """Logits of this rank's words alone; no rank waits for another.

        Args:
            x: FloatTensor[B, T, D] from `hidden`.

        Returns:
            FloatTensor[B, T, len(vocabulary)].
        """
        rows = self.lm_head(x.flatten(0, 1))[:, :len(self.vocabulary)]
        return rows.view(*x.shape[:2], -1)

    def logits(self, x):
        """[B, T, D] -> [B, T, V] on every rank, padding ids cut off."""
        sizes = [len(self._words(rank)) for rank in range(self.partition.size)]
        return self.group.all_gather(self.local_logits(x), -1, sizes)

    def __reduce_ex__(self, protocol):
        raise TypeError("a sharded model can't leave its rank, since its group "
                        "doesn't come with it; return what it computed instead")


def check_size(group, size):
    """Requires a group with as many ranks as a model has shares."""
    if group.size != size:
        raise ValueError(f"the model is cut for {size} ranks, and the group has "
                         f"{group.size}; cut the whole model anew for this group.")


def empty_shard(config, group, scheme):
    """A ShardedDecoder for a rank's share of a config, without its numbers."""
    if not isinstance(group, Group):
        raise TypeError(f"a shard needs a group of ranks, such as me.group; got "
                        f"{type(group).__name__}.")
    return ShardedDecoder(partition(config, group.size), group, scheme)


def shard_model(model, group, scheme="all-reduce"):
    """Cuts this rank's share out of a whole model.

    Args:
        model: Decoder, whole; stays as it is.
        group: Group, this rank's.
        scheme: "all-reduce": one after attention and one after the MLP; "sequence":
            reduce_scatter and all_gather instead, norms and residuals on this
            rank's slice of the positions.

    Returns:
        ShardedDecoder, whose weights are copies.

    Raises:
        TypeError: the model isn't a Decoder, or is sharded or quantised already.
        ValueError: there are more ranks than query heads.
    """
    if not isinstance(model, Decoder) or isinstance(model, ShardedDecoder):
        raise TypeError(f"shard_model cuts a whole Decoder; got a "
                        f"{type(model).__name__}.")
    if any(isinstance(module, Int8Linear) for module in model.modules()):
        raise TypeError("shard_model can't cut int8 weights; give it the model as it "
                        "was before quantise.")
    head, config = model.lm_head, model.config
    reduced = isinstance(head, ReducedHead)
    if reduced:  # the words that it can say are shared out as those of a whole head
        config = replace(config, vocab_size=head.vocab_size, tied=True)
    shard = empty_shard(config, group, scheme)

    def pieces():
        for name, (module, parameter, rows) in places(model):
            if reduced and module is head.few:
                continue
            whole = getattr(module, parameter).detach()
            piece = whole if rows is None else whole[rows]
            yield name, piece[shard.partition.index(group.rank, name)]

    fill(shard, pieces(), model.norm.weight.dtype)
    if reduced:
        shard.lm_head = head.part(shard.partition.shares[group.rank].vocabulary)
    shard.vocab_size = model.vocab_size
    return shard.eval().requires_grad_(False)


def load_shard(folder, group, dtype=torch.float32, device="cpu", scheme="all-reduce"):
    """Reads this rank's share of a Hugging Face folder, and nothing else of it.

    Args:
        folder: path with config.json and *.safetensors.
        group: Group, this rank's.
        dtype: of the weights in memory; the file's own dtype doesn't matter.
        device: where the weights go.
        scheme: as for `shard_model`.

    Returns:
        ShardedDecoder. In memory there is never more than it and one tensor's piece.

    Raises:
        FileNotFoundError, ValueError: as from `load_model`; or there are more ranks
            than query heads.
    """
    check_dtype(dtype)
    folder = Path(folder)
    config = read_config(folder)
    shapes = whole_shapes(config)
    shard = empty_shard(config, group, scheme)

    def read(file, name):
        ours = our_name(name)
        if ours not in shapes:  # skipped or refused by `fill`
            return file.get_tensor(name)
        view = file.get_slice(name)
        check_shape(name, view.get_shape(), shapes[ours])
        return view[shard.partition.index(group.rank, ours)]

    fill(shard, tensors(folder, device, read), dtype)
    return shard.eval().requires_grad_(False)
