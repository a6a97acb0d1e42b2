"""Speculative decoding: draft K tokens, verify K+1 positions in one forward."""
import time

import torch

from .drafters import Draft
from .request import begin, check_cache, check_count, roll_back
from .sampling import Sampling, probabilities
from .trace import Round, Trace, collect
from .verify import at_drafted, verify_tokens


def speculative(model, drafter, prompt, *, k, max_new_tokens, sampling=None,
                generator=None, verify=verify_tokens):
    """Generates 1 to K+1 tokens a forward, with exactly the target's distribution.

    Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2.

    Args:
        model: the target, a language model.
        drafter: proposes tokens (ModelDrafter, NGramDrafter, or your own).
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
                       generator=None, verify=verify_tokens):
    """The same, as a generator: yields each Round when it is committed."""
    sampling = sampling or Sampling()
    policy = as_policy(k)
    sequence, cache, generator = begin(model, prompt, max_new_tokens, generator)
    check_cache(cache)
    drafter.reset()
    trace = Trace()
    while sequence.remaining:
        began = time.perf_counter()
        asked = checked_k(policy(trace), sequence.remaining)
        draft = propose(drafter, sequence.ids, asked, sampling, generator, model)
        drafted = time.perf_counter()
        p, verdict = verified(model, cache, sequence.ids, draft, sampling,
                              generator, verify)
        tokens, accepted, kind = commit(draft, verdict, model.end_token_ids)
        sequence.extend(tokens)
        roll_back(cache, sequence.length - 1)
        at_p, at_q = at_drafted(p, draft)
        trace.append(Round(
            k=asked, guesses=draft.tokens.tolist(), accepted=accepted, kind=kind,
            tokens=tokens, p=at_p.tolist(), q=at_q.tolist(),
            drafting=drafted - began, verifying=time.perf_counter() - drafted))
        yield trace[-1]
        if tokens[-1] in model.end_token_ids:
            return


def verified(model, cache, ids, draft, sampling, generator, verify):
    """One target forward of width k+1, and the verdict on it.

    Returns:
        (p: FloatTensor[k+1, V], Verdict). If anything fails, the cache is as
        long as before.
    """
    before = cache.length
    window = torch.cat([ids[-1:], draft.tokens])
    try:
        p = probabilities(model.forward(window, cache), sampling)
        return p, verify(p, draft, generator)
    except BaseException:
        cache.truncate(before)
        raise


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

    Returns:
        Draft with probs of width V: a draft with fewer ids gives the others
        probability 0.
    """
    if k == 0:
        return Draft(ids[:0])
    draft = drafter.propose(ids, k, sampling, generator)
    tokens, probs = draft.tokens.to(ids), draft.probs
    count, width = len(tokens), model.vocab_size
    if count > k:
        raise ValueError(f"the drafter proposed {count} tokens, and k was {k}.")
    if count and not 0 <= int(tokens.min()) <= int(tokens.max()) < width:
        raise ValueError(f"the drafter proposed an id outside the target's {width}.")
    if probs is None:
        return Draft(tokens)
    missing = width - probs.shape[-1]
    if tuple(probs.shape[:-1]) != (count,) or missing < 0:
        raise ValueError(f"the drafter's probs have shape {tuple(probs.shape)}, for "
                         f"{count} tokens of {width} ids.")
    if missing:
        probs = torch.nn.functional.pad(probs, (0, missing))
    return Draft(tokens, probs.to(ids.device))
