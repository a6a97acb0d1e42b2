"""What an exchange costs: the alpha-beta model, fitted to measurements, then used.

    seconds of a collective = alpha + beta * bytes that a rank sends

(Hockney 1994, "The communication challenge for MPP"). alpha is paid for every call,
however short: it is not the acceptance rate of chapter 03, which has the same name by
custom. 1 / beta is the bandwidth. The bytes are those that `Call.bytes` counts, and a
ring of n ranks takes 2 (n - 1) steps for an all_reduce, n - 1 for an all_gather.
"""
from typing import NamedTuple

import torch


class Cost(NamedTuple):
    """What one collective costs.

    Attributes:
        alpha: seconds a call.
        beta: seconds a byte.
    """

    alpha: float
    beta: float

    def seconds(self, sent):
        """The time of one call in which a rank sends so many bytes."""
        return self.alpha + self.beta * sent


def fit(sent, seconds):
    """The Cost that describes measured calls best: least squares of relative errors.

    Errors are taken relative to the measured time. In seconds, the longest calls would
    decide alone, and alpha is seen in the shortest.

    Args:
        sent: list of bytes, of two sizes or more.
        seconds: list of as many times.

    Returns:
        Cost; neither number is below 0.
    """
    y = torch.tensor(seconds, dtype=torch.float64)
    x = torch.tensor(sent, dtype=torch.float64)
    rows = torch.stack([1 / y, x / y], 1)  # [calls, 2], times (alpha, beta) = 1
    found = torch.linalg.lstsq(rows, torch.ones_like(y)).solution
    if found.min() >= 0:
        return Cost(*found.tolist())
    alone = (rows.sum(0) / rows.square().sum(0)).tolist()  # the best with one of both
    return Cost(0.0, alone[1]) if found[0] < 0 else Cost(alone[0], 0.0)


class Link(NamedTuple):
    """What connects the GPUs.

    Attributes:
        name: str.
        start: seconds a call, before the first byte moves.
        step: seconds that each step of the ring adds.
        bandwidth: bytes a second that a GPU can send.
        source: where the numbers are from.
    """

    name: str
    start: float
    step: float
    bandwidth: float
    source: str

    def all_reduce(self, size):
        """The Cost of an all_reduce over so many ranks."""
        return Cost(self.start + 2 * (size - 1) * self.step, 1 / self.bandwidth)

    def all_gather(self, size):
        """The Cost of an all_gather over so many ranks."""
        return Cost(self.start + (size - 1) * self.step, 1 / self.bandwidth)


# Times from the table by which NCCL itself chooses an algorithm: baseLat and hwLat,
# ring with protocol LL, which serves short messages. Between machines: one GPU each.
_NCCL = "times: NCCL, src/graph/tuning.cc"
NVLINK = Link("NVLink 4", 6.6e-6, 0.6e-6, 450e9,
              f"NVIDIA H100 data sheet: 900 GB/s, both directions together; {_NCCL}")
PCIE = Link("PCIe 5.0 x16", 6.6e-6, 1.0e-6, 64e9,
            f"NVIDIA H100 data sheet: 128 GB/s, both directions together; {_NCCL}")
ETHERNET = Link("100 Gb Ethernet", 6.6e-6, 5.0e-6, 12.5e9,
                f"IEEE 802.3: 100 Gb/s in each direction; {_NCCL}")


class Device(NamedTuple):
    """One GPU.

    Attributes:
        name: str.
        bandwidth: bytes a second from its memory.
        flops: operations a second on 16-bit numbers.
        memory: bytes.
        source: where the numbers are from.
    """

    name: str
    bandwidth: float
    flops: float
    memory: float
    source: str


H100 = Device("H100 SXM", 3350e9, 989e12, 80e9,
              "NVIDIA H100 data sheet (operations: without sparsity)")


class Shape(NamedTuple):
    """As much of a model's shape as the prediction needs.

    Attributes:
        name: str.
        layers, width, vocabulary: ints.
        weights: how many numbers it has in all.
        itemsize: bytes of a number, weights and messages alike.
    """

    name: str
    layers: int
    width: int
    vocabulary: int
    weights: float
    itemsize: int = 2


LLAMA_70B = Shape("Llama 3 70B", 80, 8192, 128256, 70.6e9)  # arXiv 2407.21783


def forward_parts(shape, device, link, size, tokens=1, logits=1):
    """Predicts one forward of a sharded model.

    Computing takes the longer of reading the weights and doing the operations, two a
    weight and token, both spread over the ranks (Williams et al. 2009, "Roofline").
    Attention over the cache is left out. 1 + 2 L sums and the gathered logits follow
    `parallel.traffic`.

    Args:
        shape: Shape; device: Device; link: Link.
        size: int, how many ranks.
        tokens: int, the forward's width.
        logits: int, for how many of them logits are gathered.

    Returns:
        (seconds of computing, seconds of exchange).
    """
    reading = shape.weights * shape.itemsize / device.bandwidth
    working = 2 * shape.weights * tokens / device.flops
    computing = max(reading, working) / size
    if size == 1:
        return computing, 0.0
    share = (size - 1) / size
    stream = tokens * shape.width * shape.itemsize
    words = logits * shape.vocabulary * shape.itemsize
    sums = (1 + 2 * shape.layers) * link.all_reduce(size).seconds(2 * share * stream)
    return computing, sums + link.all_gather(size).seconds(share * words)
