"""The one place where logits become probabilities, and probabilities a token."""
import math
from dataclasses import dataclass
from numbers import Real

import torch

from .request import check_count


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen: temperature, then top-k, then top-p.

    Attributes:
        temperature: 0 takes the likeliest token, 1 leaves the model as it is.
        top_k: keep the k likeliest tokens; 0 keeps all. Of equally likely ones
            the lowest ids stay, here and below: as argmax does.
        top_p: keep the smallest set of likeliest tokens whose probability
            reaches top_p; 1.0 keeps all. Holtzman et al. 2020, section 3.1.

    Raises:
        ValueError: a value out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        if not (isinstance(self.temperature, Real) and self.temperature >= 0
                and math.isfinite(self.temperature)):
            raise ValueError("temperature must be 0 (greedy) or a positive number, "
                             f"not {self.temperature!r}.")
        check_count("top_k", self.top_k)
        if not (isinstance(self.top_p, Real) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p!r}.")


def probabilities(logits, sampling):
    """Turns logits into the probabilities that tokens are drawn from.

    Draft and target both go through here, so both see the same temperature,
    top-k and top-p.

    Args:
        logits: FloatTensor[..., V].
        sampling: Sampling.

    Returns:
        FloatTensor[..., V], float32 (float64 stays float64); every row sums to 1.
        Temperature 0 gives a one-hot row. Logits that aren't finite give a row
        that `draw` refuses.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if sampling.temperature == 0:
        best = logits.max(-1, keepdim=True)
        one = 1 + 0 * best.values  # nan where the logits aren't finite
        return torch.zeros_like(logits).scatter_(-1, best.indices, one)
    # The largest becomes 0 first: a tiny temperature then can't overflow.
    temperature = max(sampling.temperature, torch.finfo(logits.dtype).tiny)
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        logits = keep_top_k(logits, sampling.top_k)
    p = logits.softmax(-1)
    return keep_top_p(p, sampling.top_p) if sampling.top_p < 1 else p


def keep_top_k(logits, k):
    """-inf outside the k likeliest; of equal ones the lowest ids stay.

    `topk` alone takes any of the equal ones, and not the same ones in a pass of
    another width: plain and speculative decoding would then differ.
    """
    least = logits.topk(k, dim=-1).values[..., -1:]
    above, level = logits > least, logits == least
    room = k - above.sum(-1, keepdim=True)
    kept = above | (level & (level.cumsum(-1) <= room))
    return logits.masked_fill(~kept, -math.inf)


def keep_top_p(p, top_p):
    """Zeroes the tokens outside the nucleus and renormalises; [..., V] -> [..., V].

    A sum that reaches top_p but for rounding has reached it.
    """
    ordered, order = p.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered  # probability of the likelier ones
    short = before < top_p - 8 * torch.finfo(p.dtype).eps
    kept = torch.where(short, ordered, 0.0)
    kept[..., 0] = ordered[..., 0]
    kept = torch.zeros_like(p).scatter_(-1, order, kept)
    return kept / kept.sum(-1, keepdim=True)


def uniforms(count, generator):
    """`count` uniform numbers in [0, 1), float64, on the generator's device."""
    return torch.rand(count, generator=generator, dtype=torch.float64,
                      device=generator.device)


def draw(weights, u):
    """Draws one token by inverting the cumulative sum.

    Args:
        weights: FloatTensor[V], not negative; need not sum to 1.
        u: the uniform number in [0, 1) that decides, a float.

    Returns:
        int, the first token at which the cumulative sum passes u times the
        total: a token of weight 0 is never drawn.

    Raises:
        ValueError: the weights are all zero or not finite.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[-1].item()
    check_total(total)
    return invert(cumulative, u * total)


def invert(cumulative, point):
    """The first place at which a cumulative sum, FloatTensor[V], passes `point`.

    A point that rounding has put at the end or beyond counts as just before it.
    """
    point = min(point, math.nextafter(cumulative[-1].item(), 0.0))
    return int(torch.searchsorted(cumulative, point, right=True))


def check_total(total):
    """Requires that weights sum to something that can be drawn from."""
    if not 0 < total < math.inf:
        raise ValueError(f"can't draw a token: the weights sum to {total}; the "
                         "model's logits are probably not finite.")
