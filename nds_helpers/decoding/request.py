"""What every generation checks before anything runs, and its growing sequence."""
from numbers import Integral

import torch


class Sequence:
    """The prompt and what has been committed behind it, in one buffer."""

    def __init__(self, prompt, room):
        self.start = self.length = len(prompt)
        self._ids = torch.cat([prompt, prompt.new_zeros(room)])

    @property
    def ids(self):
        """LongTensor[length], a view."""
        return self._ids[:self.length]

    @property
    def remaining(self):
        """How many tokens may still be committed."""
        return len(self._ids) - self.length

    def extend(self, tokens):
        """Commits a list of ids."""
        end = self.length + len(tokens)
        self._ids[self.length:end] = torch.tensor(tokens)
        self.length = end


def begin(model, prompt, max_new_tokens, generator, reversible=False):
    """Checks a request, then makes its sequence, cache and generator.

    Args:
        model: a language model: forward, new_cache, vocab_size, end_token_ids.
        prompt: LongTensor[T] or list of ids, at least one.
        max_new_tokens: int, at least 0.
        generator: torch.Generator, or None for one with seed 0.
        reversible: whether the cache must be able to go back.

    Returns:
        (Sequence, cache, torch.Generator). The cache holds all but the last
        token of the prompt: that one has been fed to nobody.

    Raises:
        ValueError: an empty prompt, ids out of range, too many tokens for the
            model's context, a cache that can't go back.
    """
    prompt = check_prompt(prompt, model.vocab_size)
    check_count("max_new_tokens", max_new_tokens)
    limit = getattr(model, "max_length", None)
    total = len(prompt) + max_new_tokens
    if limit is not None and total > limit:
        raise ValueError(
            f"the prompt ({len(prompt)} tokens) plus max_new_tokens "
            f"({max_new_tokens}) exceeds the model's context of {limit}; shorten "
            "one of them.")
    cache = model.new_cache(total)
    if reversible:
        check_cache(cache)
    prompt = prompt.to(device_of(model))
    feed = getattr(model, "prefill", model.forward)
    if len(prompt) > 1:
        feed(prompt[:-1], cache)
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    return Sequence(prompt, max_new_tokens), cache, generator


def check_prompt(prompt, vocab_size):
    """Returns the prompt as LongTensor[T], or says what is wrong with it."""
    try:
        prompt = torch.as_tensor(prompt)
    except (TypeError, ValueError, RuntimeError):  # text, None, a ragged list
        raise ValueError("the prompt must be token ids; use pair.encode(text) "
                         "to turn text into ids.") from None
    if prompt.dim() != 1 or len(prompt) == 0:
        raise ValueError("the prompt must be a list of at least one token id, "
                         f"not a tensor of shape {tuple(prompt.shape)}.")
    if not holds_ids(prompt):
        raise ValueError(f"the prompt must hold whole ids, not {prompt.dtype}.")
    prompt = prompt.long()
    outside = prompt[(prompt < 0) | (prompt >= vocab_size)]
    if len(outside):
        raise ValueError(f"token id {int(outside[0])} is outside the model's "
                         f"vocabulary (0 to {vocab_size - 1}).")
    return prompt


def holds_ids(tensor):
    """Whether a tensor's type is one of whole numbers."""
    kind = tensor.dtype
    return not (kind.is_floating_point or kind.is_complex or kind == torch.bool)


def end_tokens(model):
    """The ids that end a text, as a tuple; a model may give one id, or None."""
    ends = model.end_token_ids
    if ends is None:
        return ()
    return (ends,) if isinstance(ends, Integral) else tuple(int(i) for i in ends)


def check_count(name, value):
    """Requires a whole number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise ValueError(f"{name} must be a whole number, 0 or more, not {value!r}.")


def check_cache(cache):
    """Refuses a fresh cache that can't be rolled back, before anything is fed."""
    try:
        cache.truncate(cache.length)
    except (AttributeError, NotImplementedError, TypeError):
        raise ValueError(
            f"{type(cache).__name__} can't be truncated: a rejected token could "
            "never be taken back, so speculation refuses it.") from None


def roll_back(cache, length):
    """Truncates, and requires that the cache really did."""
    cache.truncate(length)
    if cache.length != length:
        raise ValueError(f"the cache holds {cache.length} tokens after "
                         f"truncate({length}): its rollback doesn't work.")


def device_of(model):
    """Where a model's weights are; the CPU for a model that has none."""
    parameters = getattr(model, "parameters", None)
    first = next(iter(parameters()), None) if parameters else None
    return torch.device("cpu") if first is None else first.device
