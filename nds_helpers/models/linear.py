"""A linear layer that multiplies few rows the fast way round."""
import torch
import torch.nn.functional as F
from torch import nn

FEW = 9  # rows; a round of K = 8 still counts as few
SLOW = 1, 3, 7  # rows that take longer than one more does
MKL = torch.backends.mkl.is_available()


class Linear(nn.Linear):
    """y = x W^T + b, fast for few rows."""

    def forward(self, x):
        """FloatTensor[rows, in] -> FloatTensor[rows, out]."""
        return multiply(x, self.weight, self.bias)


def multiply(x, weight, bias=None):
    """x W^T + b, with the weight as the left factor where x has few rows.

    Decoding multiplies each weight matrix by one row (plain) or by K + 1 rows (a
    round), so its time is the time to read the weights. On x86 processors PyTorch
    uses MKL, which reads them at a fraction of the memory's speed when asked for
    x W^T with few rows, and two to three times faster when asked for (W x^T)^T. It
    likes 2, 4 and 8 columns: 1, 3 and 7 are slower than one more, so that the last
    row is then given twice.

    Args:
        x: FloatTensor[rows, in].
        weight: FloatTensor[out, in].
        bias: FloatTensor[out], or None.

    Returns:
        FloatTensor[rows, out].
    """
    count = x.shape[0]
    if not (MKL and x.is_cpu and 0 < count <= FEW):
        return F.linear(x, weight, bias)
    # MKL is slow again where x^T itself lies row by row: contiguous prevents it.
    columns = (torch.cat([x, x[-1:]]) if count in SLOW else x.contiguous()).t()
    if bias is None:
        y = torch.mm(weight, columns)  # [out, rows]
    else:
        y = torch.addmm(bias[:, None], weight, columns)
    return y.t()[:count]


class Stacked(Linear):
    """Several linears over the same input, their weights one below the other.

    One multiplication reads them all, where each would wait for the one before.

    Attributes:
        parts: dict, name -> rows of its weight, in their order.
    """

    def __init__(self, width, parts, bias=False):
        super().__init__(width, sum(parts.values()), bias)
        self.parts = parts

    def rows(self, name):
        """The slice of the weight's rows that belongs to the part `name`."""
        names = list(self.parts)
        sizes = list(self.parts.values())
        start = sum(sizes[:names.index(name)])
        return slice(start, start + self.parts[name])
