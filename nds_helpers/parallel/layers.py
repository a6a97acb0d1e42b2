"""Sharded layers: the same mathematics, with the sums spread over ranks.

    y = f(x A) B    A cut by columns, B by rows (Shoeybi et al. 2019, section 3)

    rank 0   f(x A_0) B_0 \\
                           sum over ranks = y
    rank 1   f(x A_1) B_1 /

PyTorch keeps weights transposed, [out, in]: a column of A is a row of its `weight`.

The stream between the layers is [B * T, D]. A scheme says which of its rows a rank
works on, and is what the layers ask to gather rows and to sum what all have computed.
"""
import torch.nn.functional as F

from nds_helpers.models.decoder import Embedding, RMSNorm
from nds_helpers.models.linear import Linear, Stacked, multiply

from .partitions import split_evenly


class AllReduce:
    """Every rank holds the whole stream; norms and residuals are done by all.

    Args:
        group: Group.
    """

    name = "all-reduce"

    def __init__(self, group):
        self.group = group

    def start(self, rows):
        """A forward begins, whose stream has so many rows."""

    def gather(self, x):
        """This rank's rows of the stream -> all of them."""
        return x

    def reduce(self, x):
        """This rank's terms for all rows -> the sums for this rank's rows."""
        return self.group.all_reduce(x)


class SequenceParallel:
    """Every rank holds some rows of the stream, and does their norms and residuals.

    Korthikanti et al. 2022, section 4.2.2. reduce_scatter and all_gather are the two
    halves of an all_reduce, so that the bytes stay the same.

    Args:
        group: Group.
    """

    name = "sequence"

    def __init__(self, group):
        self.group, self.sizes = group, None

    def start(self, rows):
        """A forward begins, whose stream has so many rows."""
        self.sizes = [len(part) for part in split_evenly(rows, self.group.size)]

    def gather(self, x):
        """This rank's rows of the stream -> all of them."""
        return self.group.all_gather(x, 0, self.sizes)

    def reduce(self, x):
        """This rank's terms for all rows -> the sums for this rank's rows."""
        return self.group.reduce_scatter(x, 0, self.sizes)


SCHEMES = {scheme.name: scheme for scheme in (AllReduce, SequenceParallel)}


class ColumnParallel(Stacked):
    """The columns of x A that belong to this rank, for all rows.

    Args:
        linear: Stacked, with this rank's columns only; gives the shapes.
        scheme: AllReduce or SequenceParallel.
    """

    def __init__(self, linear, scheme):
        super().__init__(linear.in_features, linear.parts, linear.bias is not None)
        self.scheme = scheme

    def forward(self, x):
        """FloatTensor[this rank's rows, in] -> FloatTensor[rows, this rank's out]."""
        return super().forward(self.scheme.gather(x))


class RowParallel(Linear):
    """x B + bias, where every rank holds some columns of x and those rows of B.

    The bias is the same on every rank and is added once, after the sum.

    Args:
        linear: Linear, with this rank's rows only; gives the shapes.
        scheme: AllReduce or SequenceParallel.
    """

    def __init__(self, linear, scheme):
        super().__init__(linear.in_features, linear.out_features,
                         linear.bias is not None)
        self.scheme = scheme

    def forward(self, x):
        """FloatTensor[rows, this rank's in] -> FloatTensor[this rank's rows, out]."""
        y = self.scheme.reduce(multiply(x, self.weight))
        return y if self.bias is None else y + self.bias


class VocabularyParallelEmbedding(Embedding):
    """The vectors of words, of which every rank holds some.

    Each rank looks up its own words and gives 0 for those of others, so that the sum
    over ranks is the vector.

    Args:
        vocabulary: range of this rank's words.
        total: int, how many words there are in all.
        width: int, D.
        scheme: AllReduce or SequenceParallel.
    """

    def __init__(self, vocabulary, total, width, scheme):
        super().__init__(len(vocabulary), width)
        self.vocabulary, self.total, self.scheme = vocabulary, total, scheme

    def forward(self, tokens):
        """LongTensor[rows] -> FloatTensor[this rank's rows, D]."""
        own = (tokens >= self.vocabulary.start) & (tokens < self.vocabulary.stop)
        known = (tokens >= 0) & (tokens < self.total)
        elsewhere = known & ~own  # ids that nobody knows stay wrong, and are refused
        local = (tokens - self.vocabulary.start).masked_fill(elsewhere, 0)
        vectors = F.embedding(local, self.weight)
        return self.scheme.reduce(vectors.masked_fill(elsewhere[:, None], 0))


class GatheringNorm(RMSNorm):
    """The last norm: done on this rank's rows, of which all ranks then get all.

    Args:
        config: ModelConfig.
        scheme: AllReduce or SequenceParallel.
    """

    def __init__(self, config, scheme):
        super().__init__(config.width, config.norm_eps)
        self.scheme = scheme

    def forward(self, x):
        """FloatTensor[this rank's rows, D] -> FloatTensor[rows, D]."""
        return self.scheme.gather(super().forward(x))
