"""Rotary position embedding: positions become rotations of query and key pairs."""
import math

import torch


def inverse_frequencies(config):
    """How fast each pair of dimensions turns, in radians per position.

    Args:
        config: ModelConfig.

    Returns:
        FloatTensor[head_width / 2], float32. Su et al. 2021, section 3.4.2; the
        Llama 3 kind slows the slow pairs by `factor` and blends in between
        (Grattafiori et al. 2024, section 3.2, as in the released code).
    """
    d = config.head_width
    powers = torch.arange(0, d, 2, dtype=torch.int64).float() / d
    frequency = 1.0 / config.rope_theta ** powers
    if config.rope["rope_type"] == "default":
        return frequency
    low, high = config.rope["low_freq_factor"], config.rope["high_freq_factor"]
    turns = config.rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)  # 1 fast pair, 0 slow pair
    return (1 - keep) * frequency / config.rope["factor"] + keep * frequency


class Rotary:
    """Tables of cos and sin, grown on demand, one row a position."""

    def __init__(self, config):
        self.config = config
        self.table = None  # [positions, head_width] twice: cos, signed sin

    def rows(self, start, stop, like):
        """cos and sin for positions start..stop-1, each [T, head_width].

        They take dtype and device from the tensor `like`; angles are computed
        in float32, as in `transformers`. sin carries the sign of the rotation.
        """
        table = self.table
        if (table is None or len(table[0]) < stop or table[0].dtype != like.dtype
                or table[0].device != like.device):
            positions = max(stop, 256 if table is None else 2 * len(table[0]))
            self.table = table = self._build(positions, like)
        return table[0][start:stop], table[1][start:stop]

    @torch.inference_mode(False)  # the table outlives the generation that built it
    def _build(self, positions, like):
        angles = torch.outer(torch.arange(positions).float(),
                             inverse_frequencies(self.config))
        cos, sin = angles.cos(), angles.sin()
        pair = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        return tuple(part.to(like) for part in pair)


def rotate(x, cos, sin):
    """Turns each pair (i, i + d/2) of x by its position's angle.

    Args:
        x: FloatTensor[B, heads, T, d].
        cos, sin: FloatTensor[T, d] from `Rotary.rows`.

    Returns:
        FloatTensor[B, heads, T, d]. Rolling by half the width brings each
        element's partner beside it; the sign sits in sin.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
