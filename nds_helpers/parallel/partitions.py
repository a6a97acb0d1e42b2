"""Who holds what: a decoder's heads, MLP columns and vocabulary, cut into shares.

    rank                0        1
    query heads         0-5      6-8        9 heads that share
    kv heads            0-1      2          3 kv heads, cut between the groups
    MLP columns         0-767    768-1535
    vocabulary rows     0-24575  24576-49151

Norms, and the biases behind a row-parallel linear, are whole on every rank.
"""
from dataclasses import dataclass, replace
from statistics import mean

import torch

from nds_helpers.models import Decoder, ModelConfig


def split_evenly(count, size):
    """Cuts `count` things into `size` ranges; the first ones get what is left over.

    Args:
        count, size: ints.

    Returns:
        list of range, in order, whose lengths differ by one at most.
    """
    least, extra = divmod(count, size)
    starts = [rank * least + min(rank, extra) for rank in range(size + 1)]
    return [range(*pair) for pair in zip(starts, starts[1:])]


def split_heads(heads, kv_heads, size):
    """Cuts attention so that every query head sits with its kv head.

    Query heads that share a kv head stay together while there are kv heads enough.
    With more ranks than kv heads, several ranks hold the same kv head, and split its
    query heads (Pope et al. 2022, section 3.3, as in vLLM).

    Args:
        heads, kv_heads: ints; heads is a multiple of kv_heads.
        size: int, ranks.

    Returns:
        list of (query heads, kv heads), two ranges a rank.
    """
    sharing = heads // kv_heads
    if size <= kv_heads:
        return [(stretched(kv, sharing), kv) for kv in split_evenly(kv_heads, size)]
    pairs = []
    for kv, ranks in enumerate(split_evenly(size, kv_heads)):
        for part in split_evenly(sharing, len(ranks)):
            first = kv * sharing
            pairs.append((range(first + part.start, first + part.stop),
                          range(kv, kv + 1)))
    return pairs


def stretched(span, width):
    """The elements that a range of things covers, where each is `width` wide."""
    return range(span.start * width, span.stop * width)


@dataclass(frozen=True)
class Share:
    """What one rank holds, as ranges of the whole model's numbers.

    Attributes:
        heads: query heads.
        kv_heads: kv heads, of the weights and of the cache.
        mlp: columns of the MLP.
        vocabulary: rows of the embedding and of the head, padding rows included.
    """

    heads: range
    kv_heads: range
    mlp: range
    vocabulary: range


@dataclass(frozen=True)
class Partition:
    """A model's shape and every rank's share of it, from `partition`.

    Attributes:
        config: ModelConfig of the whole model.
        shares: tuple of Share, in rank order.
    """

    config: ModelConfig
    shares: tuple

    @property
    def size(self):
        """How many ranks there are."""
        return len(self.shares)

    def narrow(self, rank):
        """The ModelConfig of a rank's share: a narrower decoder of the same depth."""
        share = self.shares[rank]
        return replace(self.config, heads=len(share.heads),
                       kv_heads=len(share.kv_heads), mlp_width=len(share.mlp),
                       vocab_size=len(share.vocabulary))

    def index(self, rank, name):
        """Where a rank's piece of a weight lies in the whole one.

        Column-parallel linears keep rows of their weight [out, in] and of their bias,
        row-parallel ones keep columns of their weight.

        Args:
            rank: int.
            name: the weight's name in a file, "layers.0.self_attn.q_proj.weight".

        Returns:
            tuple of slices, so that whole[index] is the piece.
        """
        share, d = self.shares[rank], self.config.head_width
        q, kv = stretched(share.heads, d), stretched(share.kv_heads, d)
        rows = dict(q_proj=q, k_proj=kv, v_proj=kv, gate_proj=share.mlp,
                    up_proj=share.mlp, embed_tokens=share.vocabulary,
                    lm_head=share.vocabulary)
        columns = dict(o_proj=q, down_proj=share.mlp)
        owner, _, kind = name.rpartition(".")
        module = owner.rpartition(".")[2]
        if module in rows:
            return (as_slice(rows[module]),)
        if module in columns and kind == "weight":
            return slice(None), as_slice(columns[module])
        return (slice(None),)

    def parameters(self, rank):
        """How many numbers a rank holds."""
        with torch.device("meta"):  # shapes only
            model = Decoder(self.narrow(rank))
        return sum(weight.numel() for weight in model.parameters())

    @property
    def imbalance(self):
        """The largest share over the mean one, in parameters; 1 is even.

        Decoding takes as long as its slowest rank, and a rank as long as it takes to
        read its weights.
        """
        counts = [self.parameters(rank) for rank in range(self.size)]
        return max(counts) / mean(counts)

    def to_frame(self, itemsize=4):
        """A table with one row a rank.

        Args:
            itemsize: int, bytes of a number.

        Returns:
            pandas.DataFrame; megabytes (10^6 bytes) are those of the weights.
        """
        import pandas

        return pandas.DataFrame([{
            "query heads": as_text(share.heads), "kv heads": as_text(share.kv_heads),
            "MLP columns": as_text(share.mlp),
            "vocabulary rows": as_text(share.vocabulary),
            "megabytes": self.parameters(rank) * itemsize / 1e6,
        } for rank, share in enumerate(self.shares)]).rename_axis("rank")


def partition(config, size):
    """Cuts a model into one share a rank.

    Args:
        config: ModelConfig.
        size: int, how many ranks.

    Returns:
        Partition.

    Raises:
        ValueError: there are more ranks than something can be cut into.
    """
    most = min(config.heads, config.mlp_width, config.vocab_size)
    if not 1 <= size <= most:
        raise ValueError(
            f"this model can be cut for 1 to {most} ranks, not for {size}: it has "
            f"{config.heads} query heads, {config.mlp_width} MLP columns and "
            f"{config.vocab_size} vocabulary rows, and every rank needs one of each.")
    shares = zip(split_heads(config.heads, config.kv_heads, size),
                 split_evenly(config.mlp_width, size),
                 split_evenly(config.vocab_size, size))
    return Partition(config, tuple(Share(*pair, mlp, vocabulary)
                                   for pair, mlp, vocabulary in shares))


def as_slice(span):
    """A range as a slice."""
    return slice(span.start, span.stop)


def as_text(span):
    """A range as text, "0-5"; both ends count."""
    return f"{span.start}-{span.stop - 1}" if len(span) > 1 else str(span.start)
