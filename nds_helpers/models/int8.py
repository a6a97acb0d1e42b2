"""Linears whose weights are whole numbers of eight bits: a quarter of the bytes.

Decoding takes as long as reading the weights does, so fewer bytes are more tokens.
The rest of the model (embedding, norms, attention) stays in float32.
"""
import warnings

import torch
from torch import nn

from .linear import Linear

# Inputs become whole numbers 1 to 127, 64 standing for 0. With the full range, 0 to
# 255, the sums of two products overflow 16 bits on processors with AVX2 only.
STEPS, ZERO = 63, 64
TINY = torch.finfo(torch.float32).tiny


class Int8Linear(nn.Module):
    """y = x W^T + b with rounded weights and rounded inputs.

    Each row of the weight has its own scale, and so has each row of the input: its
    largest element. PyTorch's own dynamic quantisation takes one scale for all rows
    of the input, so that a token's result depends on the tokens beside it, and
    speculation would change what the model says.
    """

    def __init__(self, linear):
        super().__init__()
        self.packed = pack(linear.weight)
        self.bias = linear.bias

    def forward(self, x):
        """FloatTensor[rows, in] -> FloatTensor[rows, out]."""
        size = x.abs().amax(-1, keepdim=True).clamp(min=TINY)  # [rows, 1]
        y = multiply(x / size, self.packed) * size
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


def multiply(x, packed):
    """x W^T for x in [-1, 1], FloatTensor[rows, in], rounded to steps of 1/63."""
    return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
        x, 1 / STEPS, ZERO, packed)


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
    says so.

    Args:
        model: Decoder.

    Returns:
        The same model.
    """
    if not works():
        warnings.warn("int8 isn't available on this processor: the weights stay "
                      "float32.", stacklevel=2)
        return model
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Linear):
                setattr(parent, name, Int8Linear(child))
    return model
