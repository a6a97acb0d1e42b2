"""Linears whose weights are whole numbers of eight bits: a quarter of the bytes.

Decoding takes as long as reading the weights does, so fewer bytes are more tokens.
The rest of the model (embedding, norms, attention) stays in float32.
"""
import math
import warnings

import torch
from torch import nn

from .linear import Linear

# A number between -1 and 1 is written as two digits, each a whole number from -63 to
# 63: the first counts 63rds, the second what is left, in units 126 times smaller. The
# engine stores a digit as 1 to 127, ZERO standing for 0: with 0 to 255, sums of two
# products would overflow 16 bits on processors with AVX2 only.
DIGIT, ZERO, SMALLER = 63, 64, 126
TINY = torch.finfo(torch.float32).tiny


class Int8Linear(nn.Module):
    """y = x W^T + b with weights of eight bits.

    Each row of the weight has its own scale, and so has each row of the input: its
    largest element. PyTorch's own dynamic quantisation takes one scale for all rows
    of the input, so that a token's result depends on the tokens beside it, and
    speculation would change what the model says.

    Few elements of an input are large, and one digit would round all the others
    away. A second digit costs a second row, which is cheap where reading the weight
    takes most of the time.
    """

    def __init__(self, linear):
        super().__init__()
        self.packed = pack(linear.weight)
        self.bias = linear.bias

    def forward(self, x):
        """FloatTensor[rows, in] -> FloatTensor[rows, out]."""
        unit = torch.linalg.vector_norm(x, math.inf, dim=-1, keepdim=True)
        unit = (unit / DIGIT).clamp(min=TINY)  # [rows, 1]
        x = x / unit
        first = x.round()
        digits = torch.cat([first, (x - first) * SMALLER])  # [2 * rows, in]
        first, second = multiply(digits, self.packed).chunk(2)
        y = torch.add(first, second, alpha=1 / SMALLER) * unit
        return y if self.bias is None else y + self.bias


def pack(weight):
    """FloatTensor[out, in] -> the engine's own layout of round(weight / scale)."""
    scale = weight.abs().amax(1).clamp(min=TINY).double() / 127  # [out]
    zero = torch.zeros(len(scale), dtype=torch.long)
    with warnings.catch_warnings():  # the types are to go; the engine stays
        warnings.simplefilter("ignore")
        rounded = torch.quantize_per_channel(weight.float(), scale, zero, 0,
                                             torch.qint8)
        return torch.ops.quantized.linear_prepack(rounded, None)


def multiply(digits, packed):
    """digits W^T, FloatTensor[rows, in] of digits, rounded to whole ones first."""
    return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
        digits, 1.0, ZERO, packed)


def works():
    """Whether this processor's engine has the operation; ARM's has not."""
    try:
        multiply(torch.ones(1, 16), pack(torch.ones(16, 16)))
    except (RuntimeError, AttributeError):
        return False
    return True


def quantise(model):
    """Replaces every linear of a float32 model on the CPU, in place.

    Where the processor's engine can't do it, the model stays as it is and a warning
    says so. A draft that is quantised changes the speed of speculation and never what
    is said; an early exit shares its layers, so that its target changes too.

    Args:
        model: Decoder.

    Returns:
        The same model.

    Raises:
        TypeError: a linear does more than multiply, as those of a shard do.
    """
    for child in model.modules():
        if isinstance(child, Linear) and type(child).forward is not Linear.forward:
            raise TypeError(f"quantise can't replace a {type(child).__name__}, which "
                            "works with other ranks; it takes whole models.")
    if not works():
        warnings.warn("int8 isn't available on this processor: the weights stay "
                      "float32.", stacklevel=2)
        return model
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Linear):
                setattr(parent, name, Int8Linear(child))
    return model
