"""Measurements: seconds a step, bandwidth, overlap of two models, speedup."""
import statistics
import time
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from numbers import Integral
from types import SimpleNamespace

import torch

from ..decoding import (
    ModelDrafter,
    Sampling,
    Trace,
    autoregressive,
    autoregressive_rounds,
    probabilities,
    speculative,
    speculative_rounds,
    verify_tokens,
)
from ..decoding.request import device_of
from .theory import expected_tokens_by_position


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one thing: median, and the middle half around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values):
        """From a list of at least two numbers."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


def seconds(action, repeats=15):
    """Runs `action` once to warm up, then `repeats` times.

    Returns:
        Spread of seconds a run.
    """
    action()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return Spread.of(taken)


@torch.inference_mode()
def forward_seconds(model, width, context=128, repeats=15):
    """Time of one forward of `width` tokens behind `context` cached ones.

    Returns:
        Spread of seconds. The probabilities and one look at them are included,
        as in a real round.
    """
    cache = model.new_cache(context + width)
    text = some_text(context + width).to(device_of(model))
    if context:
        model.forward(text[:context], cache)
    window = text[context:]

    def step():
        p = probabilities(model.forward(window, cache), Sampling())
        p[-1, 0].item()
        cache.truncate(context)

    return seconds(step, repeats)


def weight_bytes(model):
    """Bytes of weights that one forward of one token reads.

    A tied embedding counts once, as the head; an untied one is a look-up of one
    row and doesn't count.
    """
    weights = dict(model.named_parameters())
    if not model.config.tied:
        del weights["embed_tokens.weight"]
    return sum(w.numel() * w.element_size() for w in weights.values())


def memory_bandwidth(megabytes=256, repeats=7):
    """Bytes a second that this machine reads from memory, all threads at work.

    Returns:
        Spread of bytes a second, from summing an array that no cache holds.
    """
    block = torch.ones(megabytes * 2**20 // 4)
    taken = seconds(block.sum, repeats)
    size = block.numel() * 4
    return Spread(size / taken.median, size / taken.high, size / taken.low)


@torch.inference_mode()
def overlap(target, draft, tokens, sampling):
    """sum_x min(p(x), q(x)) after each token of a text; its mean is alpha.

    Args:
        target, draft: models over the same ids.
        tokens: LongTensor[T], the target's own sample for an estimate of alpha.
        sampling: Sampling of both.

    Returns:
        FloatTensor[T]. Leviathan et al. 2023, corollary 3.6.
    """
    p = probabilities(target.forward(tokens, target.new_cache(len(tokens))), sampling)
    q = probabilities(draft.forward(tokens, draft.new_cache(len(tokens))), sampling)
    return torch.minimum(p, q).sum(-1)


@dataclass(frozen=True)
class Comparison:
    """Plain decoding against speculation, side by side in one run.

    Attributes:
        k, temperature: the setting.
        plain, speculative: Spread of seconds a token, over the generations.
        speedup: seconds a token, plain over speculative, of the same prompt: the
            median over the generations, so that one that was held up doesn't count.
        predicted: the formula's speedup from each generation's own rates and the
            costs: the median again.
        rates: acceptance by position over all of them, given that it was reached.
        summary: Trace.summary() of all speculative runs together.
        costs: the step times behind `predicted`, see `step_costs`.
    """

    k: int
    temperature: float
    plain: Spread
    speculative: Spread
    speedup: float
    predicted: float
    rates: tuple
    summary: dict
    costs: dict


def compare(pair, prompts, k, sampling, max_new_tokens=64, repeats=1,
            verify=verify_tokens, costs=None):
    """Decodes every prompt both ways, in turns, and sets prediction beside it.

    Args:
        pair: Pair.
        prompts: list of LongTensor[T]; at least two generations in all.
        k: drafted tokens a round, 1 or more.
        sampling: Sampling.
        max_new_tokens: tokens a generation.
        repeats: rounds over all prompts.
        verify: verify_tokens or verify_block.
        costs: dict of seconds t_one, t_wide, t_draft; when None, measured
            between the generations, so that a slow minute slows both alike.

    Returns:
        Comparison.

    Raises:
        ValueError: a k below 1.
    """
    at_least_one("k", k)
    drafter = ModelDrafter(pair.draft)
    ways = {"plain": (autoregressive, pair.target),
            "fast": (partial(speculative, k=k, verify=verify), pair.target, drafter)}
    runs, measured = {name: [] for name in ways}, []
    for number, (seed, prompt) in enumerate(product(range(repeats), prompts)):
        for name in reversed(ways) if number % 2 else ways:  # each goes first in turn
            runs[name].append(timed(
                *ways[name], prompt, max_new_tokens=max_new_tokens, sampling=sampling,
                generator=seeded(seed)))
        if costs is None:
            middle = len(prompt) + max_new_tokens // 2
            measured.append(step_costs(pair, k, middle, sampling, verify, 1))
    costs = costs or middle_costs(measured)
    plain, fast = (per_token(runs[name]) for name in ways)
    traces = [result.trace for _, result in runs["fast"]]
    trace = Trace(chain(*traces))
    return Comparison(
        k, sampling.temperature, Spread.of(plain), Spread.of(fast),
        statistics.median(one / other for one, other in zip(plain, fast)),
        statistics.median(predict(rates(each), k, costs) for each in traces),
        rates(trace), trace.summary(), costs)


def rates(trace):
    """Share accepted at each position, among the rounds that reached it."""
    return tuple(accepted / reached for accepted, reached in trace.by_position())


def step_costs(pair, k, context=96, sampling=None, verify=verify_tokens, repeats=5):
    """Seconds of the three steps that the formula needs.

    Each is a whole turn of its loop, with sampling and bookkeeping. None comes
    from a speculative run: the target verifies guesses that are there already,
    the draft guesses beside it. They take turns, because each pushes the
    other's weights out of the processor's cache, as in a real round.

    Args:
        pair: Pair.
        k: drafted tokens a round, 1 or more.
        context: tokens in the cache.
        sampling: Sampling; temperature 1 by default.
        verify: verify_tokens or verify_block.
        repeats: bursts of rounds; the median counts.

    Returns:
        dict: t_one, a plain step; t_wide, a round of width k + 1 without its
        drafting; t_draft, one drafted token.
    """
    return middle_costs([step_burst(pair, k, context, sampling or Sampling(), verify)
                         for _ in range(repeats)])


def step_burst(pair, k, context, sampling, verify, rounds=8):
    """One burst of `step_costs`: the mean of a few rounds of each step, as a dict."""
    room = (rounds + 1) * (k + 1)
    limit = getattr(pair.target, "max_length", None) or context + room
    text = some_text(max(1, min(context, limit - room)))
    target, drafter = endless(pair.target), ModelDrafter(pair.draft)
    g = seeded(0)
    draft = drafter.propose(text, k, sampling, g)
    settings = dict(max_new_tokens=room, sampling=sampling, generator=g)
    plain = autoregressive_rounds(target, text, **settings)
    wide = speculative_rounds(target, Ready(draft), text, k=k, verify=verify,
                              **settings)
    next(plain), next(wide)  # the first round feeds the text
    one = [timed(next, plain)[0] for _ in range(rounds)]
    verifying, drafting = [], []
    for i in range(rounds):
        verifying.append(timed(next, wide)[0])
        # Every other time all guesses stood: the draft then has two tokens to feed.
        sequence = torch.cat([text, draft.tokens, text[:1]]) if i % 2 else text
        taken, draft = timed(drafter.propose, sequence, k, sampling, g)
        drafting.append(taken / k)
    return {"t_one": statistics.mean(one), "t_wide": statistics.mean(verifying),
            "t_draft": statistics.mean(drafting)}


class Ready:
    """A drafter whose guesses are there already: what is left is the target's step."""

    def __init__(self, draft):
        self.draft = draft

    def reset(self):
        """Nothing changes between proposals."""

    def propose(self, sequence, k, sampling, generator):
        """The same guesses, whatever the text."""
        return self.draft


def predict(rates, k, costs):
    """Speedup that rates by position and step costs promise."""
    round_seconds = k * costs["t_draft"] + costs["t_wide"]
    return expected_tokens_by_position(rates) * costs["t_one"] / round_seconds


def middle_costs(measured):
    """The median of each step time over a list of dicts."""
    return {name: statistics.median(costs[name] for costs in measured)
            for name in measured[0]}


def at_least_one(name, value):
    """Requires a whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number, 1 or more, not {value!r}.")


def some_text(length):
    """LongTensor[length] of ids that every model knows; a clock can't read."""
    return torch.arange(length) % 2


def endless(model):
    """The same language model without end tokens."""
    names = "forward prefill new_cache parameters vocab_size max_length".split()
    return SimpleNamespace(end_token_ids=(), **{
        name: getattr(model, name) for name in names if hasattr(model, name)})


def seeded(seed):
    """A torch.Generator with this seed."""
    return torch.Generator().manual_seed(seed)


def timed(action, *args, **kwargs):
    """(seconds, what the action returned)."""
    began = time.perf_counter()
    result = action(*args, **kwargs)
    return time.perf_counter() - began, result


def per_token(runs):
    """Seconds a token of each (seconds, Result) pair."""
    return [taken / len(result.tokens) for taken, result in runs]
