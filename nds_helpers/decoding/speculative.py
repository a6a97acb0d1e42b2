"""Speculative decoding: draft K tokens, verify K+1 positions in one forward."""
import time

import torch

from .drafters import Draft
from .request import begin, check_count, end_tokens, holds_ids, roll_back
from .sampling import Sampling, probabilities
from .trace import Round, Trace, collect
from .verify import at_drafted, verify_tokens


def speculative(model, drafter, prompt, *, k, max_new_tokens, sampling=None,
                generator=None, verify=verify_tokens):
    """Generates 1 to K+1 tokens a forward, with exactly the target's distribution.

    Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2.

    Args:
        model: the target, a language model.
        drafter: proposes tokens (one of those in drafters.py, or your own).
        prompt: LongTensor[T] or list of ids.
        k: drafted tokens a round, an int; or a policy, called with the trace so
            far, that returns one. 0 is plain decoding.
        max_new_tokens: at most this many; fewer where an end token comes.
        sampling: Sampling; temperature 1 by default.
        generator: torch.Generator; one with seed 0 by default.
        verify: verify_tokens or verify_block.

    Returns:
        Result.

    Raises:
        ValueError: a bad request, or a cache that can't be truncated, before
            the first round; a drafter or policy that breaks its contract.
    """
    return collect(speculative_rounds(
        model, drafter, prompt, k=k, max_new_tokens=max_new_tokens,
        sampling=sampling, generator=generator, verify=verify))


@torch.inference_mode()
def speculative_rounds(model, drafter, prompt, *, k, max_new_tokens, sampling=None,
                       generator=None, verify=verify_tokens, step=None):
    """The same, as a generator: yields each Round when it is committed.

    `step` does a round's forward and verdict: `verified`, or its like over ranks.
    """
    sampling = sampling or Sampling()
    policy, step = as_policy(k), step or verified
    ends = end_tokens(model)
    sequence, cache, generator = begin(model, prompt, max_new_tokens, generator,
                                       reversible=True)
    drafter.reset()
    trace = Trace()
    while sequence.remaining:
        began = time.perf_counter()
        asked = checked_k(policy(trace), sequence.remaining)
        draft = propose(drafter, sequence.ids, asked, sampling, generator, model)
        drafted = time.perf_counter()
        draft, verdict, at_p, at_q = step(model, cache, sequence.ids, draft, sampling,
                                          generator, verify)
        tokens, accepted, kind = commit(draft, verdict, ends)
        sequence.extend(tokens)
        roll_back(cache, sequence.length - 1)
        trace.append(Round(
            k=asked, guesses=draft.tokens.tolist(), accepted=accepted, kind=kind,
            tokens=tokens, p=at_p, q=at_q,
            drafting=drafted - began, verifying=time.perf_counter() - drafted))
        yield trace[-1]
        if tokens[-1] in ends:
            return


def verified(model, cache, ids, draft, sampling, generator, verify):
    """One target forward of width k+1, and the verdict on it.

    Returns:
        (draft, Verdict, p at the drafted tokens, q there): the last two are lists.
        If anything fails, the cache is as long as before.
    """
    before = cache.length
    window = torch.cat([ids[-1:], draft.tokens])
    try:
        p = probabilities(model.forward(window, cache), sampling)
        verdict = verify(p, draft, generator)
    except BaseException:
        cache.truncate(before)
        raise
    at_p, at_q = at_drafted(p, draft)
    return draft, verdict, at_p.tolist(), at_q.tolist()


def commit(draft, verdict, end_token_ids):
    """The tokens that a verdict commits, up to and with the first end token.

    Returns:
        (tokens: list of ids, accepted: int, kind). An end token inside the
        accepted run ends the output there; nothing behind it counts.
    """
    run = draft.tokens[:verdict.accepted].tolist()
    for i, token in enumerate(run):
        if token in end_token_ids:
            return run[:i + 1], i + 1, "ended"
    return run + [verdict.next_token], verdict.accepted, verdict.kind


def as_policy(k):
    """An int becomes a policy that always returns it."""
    if callable(k):
        return k
    check_count("k", k)
    return lambda trace: k


def checked_k(k, remaining):
    """K for this round: near the end no more than can still be committed."""
    check_count("k", k)
    return min(k, remaining - 1)


def propose(drafter, ids, k, sampling, generator, model):
    """Asks the drafter for k tokens and checks what comes back.

    The drafter gets a copy of the text: whatever it does to it stays there.

    Returns:
        Draft with probs of width V: a draft with fewer ids gives the others
        probability 0.
    """
    if k == 0:
        return Draft(ids[:0])
    draft = drafter.propose(ids.clone(), k, sampling, generator)
    width = model.vocab_size
    tokens = getattr(draft, "tokens", None)
    check_tokens(tokens, k, width)
    if draft.probs is None:
        return Draft(tokens.to(ids))
    check_probs(draft.probs, len(tokens), width)
    probs, missing = draft.probs, width - draft.probs.shape[1]
    if missing:
        probs = torch.nn.functional.pad(probs, (0, missing))
    return Draft(tokens.to(ids), probs.to(ids.device))


def check_tokens(tokens, k, width):
    """Requires a LongTensor of at most k ids that the target knows."""
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 1 or not (
            len(tokens) == 0 or holds_ids(tokens)):
        raise ValueError("the drafter must return a Draft whose tokens are a "
                         f"LongTensor[k], not {described(tokens)}.")
    if len(tokens) > k:
        raise ValueError(f"the drafter proposed {len(tokens)} tokens, and k was {k}.")
    if not all(0 <= token < width for token in tokens.tolist()):
        raise ValueError(f"the drafter proposed an id outside the target's {width}.")


def check_probs(probs, count, width):
    """Requires a FloatTensor[count, width or less] with a distribution in each row.

    A draft that lies about its distribution would change what the target says.
    """
    if not isinstance(probs, torch.Tensor) or not probs.is_floating_point():
        raise ValueError("the drafter's probs must be a FloatTensor[k, V] or None, "
                         f"not {described(probs)}.")
    if probs.dim() != 2 or len(probs) != count or probs.shape[1] > width:
        raise ValueError(f"the drafter's probs have shape {tuple(probs.shape)}, for "
                         f"{count} tokens of {width} ids.")
    exact = torch.promote_types(probs.dtype, torch.float32)
    rows = torch.stack([probs.sum(-1, dtype=exact), probs.amin(-1).to(exact)], 1)
    for i, (total, least) in enumerate(rows.tolist()):  # a nan fails both
        if not (least >= 0 and abs(total - 1) <= 1e-3):
            raise ValueError(f"row {i} of the drafter's probs isn't a distribution: "
                             f"it sums to {total:.4g} and its least is {least:.4g}.")


def described(thing):
    """What a thing is, in a few words: a tensor's type and shape, or its class."""
    if isinstance(thing, torch.Tensor):
        return f"{thing.dtype} of shape {tuple(thing.shape)}"
    return type(thing).__name__
