"""Policies: how many tokens to draft in the next round."""
import statistics
import time
from itertools import accumulate, islice

import torch

from .request import device_of
from .sampling import Sampling

RECENT = 24  # rounds that count for the acceptance rate
PRIOR, WEIGHT = 0.5, 2  # the rate that is believed at first, as so many guesses
PAUSE = 16  # plain rounds at least between two trials, where speculation doesn't pay


class AdaptiveK:
    """Takes the K with the most tokens a second, by what was accepted lately.

    With acceptance rate alpha a round of K guesses commits 1 + alpha + ... + alpha^K
    tokens on average (Leviathan et al. 2023, equation 1), and takes costs[K]
    seconds. Where plain decoding (K = 0) is best, one guess is tried now and then, as
    a text may become easier: the longer it hasn't, the more seldom.

    Args:
        costs: costs[k], seconds of a round with k drafted tokens, from k = 0 to the
            largest k that may be chosen; see `round_costs`.
    """

    def __init__(self, costs):
        if len(costs) < 2 or not all(cost > 0 for cost in costs):
            raise ValueError("AdaptiveK needs the seconds of a round for K = 0, 1 and "
                             f"so on, not {costs!r}; measure them with round_costs.")
        self.costs = list(costs)

    def __call__(self, trace):
        """K for the next round, given the Trace so far."""
        alpha = recent_acceptance(trace)
        best = max(range(len(self.costs)), key=lambda k: self.speed(alpha, k))
        if best == 0 and plain_rounds(trace) >= max(PAUSE, len(trace) // 2):
            return 1
        return best

    def speed(self, alpha, k):
        """Expected tokens a second."""
        return sum(alpha ** i for i in range(k + 1)) / self.costs[k]


def recent_acceptance(trace):
    """Accepted guesses over those that were judged, in the last rounds with any."""
    recent = list(islice((r for r in reversed(trace) if r.drafted), RECENT))
    accepted = sum(r.accepted for r in recent)
    judged = accepted + sum(r.kind == "corrected" for r in recent)
    return (accepted + PRIOR * WEIGHT) / (judged + WEIGHT)


def plain_rounds(trace):
    """How many rounds in a row, up to now, were asked for no guess."""
    for count, r in enumerate(reversed(trace)):
        if r.k:
            return count
    return len(trace)


@torch.inference_mode()
def round_costs(model, drafter, largest=8, context=96, repeats=5):
    """Measures what a round costs, guess by guess.

    Args:
        model: the target, a language model.
        drafter: as in `speculative`; its text is forgotten.
        largest: the largest K to measure, 1 or more.
        context: tokens that stand before the round, more than `largest`.
        repeats: rounds of each K; the median counts.

    Returns:
        list of seconds, entry k for a round with k drafted tokens. None is less than
        the one before: more work that takes less time is noise, and would be taken
        for a reason to draft more.

    Raises:
        ValueError: nothing to measure, or too short a text for it.
    """
    if not 1 <= largest < context:
        raise ValueError("round_costs needs 1 <= largest < context, not "
                         f"{largest!r} and {context!r}.")
    # Where the vocabulary is large enough nothing repeats: a look-up finds nothing,
    # and a drafter behind it has to guess, which costs more.
    text = (torch.arange(context) % model.vocab_size).to(device_of(model))
    cache, generator = model.new_cache(context + largest), torch.Generator()
    model.forward(text[:-1], cache)
    drafter.reset()

    def one(k):
        began = time.perf_counter()
        if k:
            drafter.propose(text, k, Sampling(), generator)
        window = torch.cat([text[-1:], text[:k]])
        model.forward(window, cache)[-1, 0].item()  # a look waits for a GPU
        cache.truncate(context - 1)
        return time.perf_counter() - began

    one(largest)  # the first time is slow: the drafter reads the text
    taken = [[one(k) for k in range(largest + 1)] for _ in range(repeats)]
    drafter.reset()
    return list(accumulate((statistics.median(times) for times in zip(*taken)), max))
