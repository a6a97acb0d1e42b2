"""Plain autoregressive decoding: the baseline, one forward a token."""
import time

import torch

from .request import begin, end_tokens
from .sampling import Sampling, draw, probabilities, uniforms
from .trace import Round, collect


def autoregressive(model, prompt, *, max_new_tokens, sampling=None, generator=None):
    """Generates one token a forward.

    Args:
        model: a language model (DESIGN: forward, new_cache, vocab_size,
            end_token_ids).
        prompt: LongTensor[T] or list of ids.
        max_new_tokens: at most this many; fewer where an end token comes.
        sampling: Sampling; temperature 1 by default.
        generator: torch.Generator; one with seed 0 by default.

    Returns:
        Result.

    Raises:
        ValueError: a bad request, before anything runs.
    """
    return collect(autoregressive_rounds(
        model, prompt, max_new_tokens=max_new_tokens, sampling=sampling,
        generator=generator))


@torch.inference_mode()
def autoregressive_rounds(model, prompt, *, max_new_tokens, sampling=None,
                          generator=None):
    """The same, as a generator: yields each token's Round when it is there."""
    sampling = sampling or Sampling()
    ends = end_tokens(model)
    sequence, cache, generator = begin(model, prompt, max_new_tokens, generator)
    while sequence.remaining:
        began = time.perf_counter()
        p = probabilities(model.forward(sequence.ids[-1:], cache), sampling)
        token = draw(p[0], uniforms(1, generator).item())
        sequence.extend([token])
        yield Round(k=0, guesses=[], accepted=0, kind="bonus", tokens=[token],
                    p=[], q=[], verifying=time.perf_counter() - began)
        if token in ends:
            return
