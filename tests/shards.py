"""What the tests of sharding share: decoders of many shapes, and a walk through one."""
import torch
from helpers import CONFIGS, SMALL, generator

from nds_helpers.models import Decoder, ModelConfig
from nds_helpers.models.config import config_from_dict

WIDE = dict(atol=1e-10, rtol=0)
NARROW = dict(atol=1e-4, rtol=0)

# 97 words: divisible by no number of ranks. 51 columns: by 3 alone.
ODD = ModelConfig(vocab_size=97, width=32, layers=2, heads=8, kv_heads=2, head_width=4,
                  mlp_width=51, max_length=64)
SHAPES = {name: config_from_dict(SMALL | given) for name, given in CONFIGS.items()}
SHAPES |= {
    "9 heads, 3 kv heads": ModelConfig(
        vocab_size=97, width=576, layers=2, heads=9, kv_heads=3, head_width=64,
        mlp_width=1536, max_length=64, tied=True),  # SmolLM2-135M, but for its depth
    "8 heads, 2 kv heads, 97 words": ODD,
}


def random_decoder(config, seed=0):
    """A Decoder in float64, with no weight left at its initial value."""
    model, g = Decoder(config).double(), generator(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=g, dtype=torch.float64)
        if "norm" in name:
            weight.data = 1 + 0.3 * noise
        else:  # the stream keeps its size whatever the width
            weight.data = noise / weight.shape[-1] ** 0.5
    return model.eval().requires_grad_(False)


def walk(model):
    """What a decoder answers to a batch, in steps, after a rollback, to one token.

    Returns:
        list of FloatTensor [..., V].
    """
    ids = torch.randint(model.vocab_size, (2, 20), generator=generator(1))
    ids[0, :4] = torch.arange(model.vocab_size)[-4:]
    cache = model.new_cache(24, batch=2)
    out = [model.forward(ids), model.forward(ids[1])]
    out += [model.forward(part, cache) for part in ids.split([9, 1, 5, 1, 4], dim=1)]
    cache.truncate(11)
    out += [model.forward(part, cache) for part in ids[:, 3:9].split([1, 5], dim=1)]
    single = model.new_cache(8)
    model.prefill(ids[0, :5], single, chunk=2)
    out += [model.forward(ids[0, 5:6], single), model.forward(ids[0, :1])]
    return out


def assert_walks_equal(found, expected, tolerance):
    """Compares what every rank found with what one device did."""
    for rank, outputs in enumerate(found):
        for i, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
            torch.testing.assert_close(output, wanted, **tolerance,
                                       msg=lambda m: f"rank {rank}, step {i}: {m}")  # noqa: B023
