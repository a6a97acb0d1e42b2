"""What a rank asks its group for, and the checks on it."""
from typing import NamedTuple

import torch


class Request(NamedTuple):
    """What a rank asks its group for, after the checks.

    Attributes:
        operation: the collective's name.
        x: tensor, detached; None for a barrier.
        dim: the dimension along which x is, or will be, in pieces; at least 0.
        sizes: tuple, every rank's size along dim; () where nothing is in pieces.
        root: the rank that a broadcast or scatter comes from or a gather goes to.
    """

    operation: str
    x: torch.Tensor | None = None
    dim: int = 0
    sizes: tuple = ()
    root: int | None = None

    def __str__(self):
        """"all_gather of float32 [2, 3+4] on cpu": alike on all ranks, or a mistake."""
        if self.x is None:
            return self.operation
        shape = [str(n) for n in self.x.shape]
        if self.sizes:
            shape[self.dim] = "+".join(map(str, self.sizes))
        root = "" if self.root is None else f", root {self.root}"
        dtype = str(self.x.dtype).removeprefix("torch.")
        return (f"{self.operation} of {dtype} [{', '.join(shape)}] "
                f"on {self.x.device.type}{root}")


ALIKE = ("every rank must make the same call, with the same shapes and types (for "
         "pieces of different sizes, pass sizes)")


def unlike(calls):
    """The RuntimeError for ranks that call different things.

    Args:
        calls: list of str, every rank's Request as text.
    """
    said = "; ".join(f"rank {r} called {call}" for r, call in enumerate(calls))
    return RuntimeError(f"{said}; {ALIKE}")


def tensor(operation, x):
    """x without its gradient, where it is a tensor."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{operation} needs a tensor; got {type(x).__name__}")
    return x.detach()


def numbers(operation, x):
    """x without its gradient, where it is a tensor that can be summed."""
    x = tensor(operation, x)
    if x.dtype == torch.bool:
        raise TypeError(f"{operation} sums numbers; turn the booleans into them first, "
                        "with x.int()")
    return x


def slice_bytes(request):
    """Bytes of one slice of a request's tensor across its dimension."""
    others = request.x.shape[:request.dim] + request.x.shape[request.dim + 1:]
    return others.numel() * request.x.element_size()
