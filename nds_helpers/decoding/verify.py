"""Verification: how many drafted tokens stand, and which token comes after them.

p is the target's distribution, q the draft's. Row i of p and of q belongs to
drafted token i; p has one row more, for the token after a fully accepted run.

The rules touch p only through `at_drafted`, `surplus` and `conclude`, so that they
hold for a p that lies in slices on several ranks too, which has its own three.
"""
from dataclasses import dataclass
from functools import singledispatch

import torch

from .sampling import draw, uniforms


@dataclass(frozen=True)
class Verdict:
    """What a round commits: `accepted` drafted tokens, then `next_token`.

    `kind` is "corrected" where a drafted token was rejected and replaced, and
    "bonus" where all stood and the target's own next token comes on top.
    """

    accepted: int
    next_token: int
    kind: str


def verify_tokens(p, draft, generator):
    """Token by token: accept x with probability min(1, p(x)/q(x)).

    Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), algorithm 1.

    Args:
        p: FloatTensor[k+1, V], the target's probabilities.
        draft: Draft of k tokens.
        generator: torch.Generator; k + 1 uniforms are taken.

    Returns:
        Verdict.
    """
    k = len(draft.tokens)
    u = uniforms(k + 1, generator)
    passed = u[:k] < acceptance(p, draft).to(u.device)
    accepted = int(passed.long().cumprod(0).sum())  # the run before the first no
    return conclude(p, draft, accepted, u[k].item())


@singledispatch
def conclude(p, draft, accepted, u, weight=1.0):
    """Draws the token after the accepted run, with the uniform number u."""
    if accepted == len(draft.tokens):
        return Verdict(accepted, draw(p[accepted], u), "bonus")
    left = residual(p, draft, accepted, weight)
    return Verdict(accepted, draw(left, u), "corrected")


def acceptance(p, draft):
    """min(1, p(x)/q(x)) at each drafted token x.

    Args:
        p: FloatTensor[k+1, V].
        draft: Draft of k tokens.

    Returns:
        FloatTensor[k], float64.
    """
    at_p, at_q = at_drafted(p, draft)
    return torch.where(at_q > 0, at_p / at_q, 0.0).clamp(max=1.0)


@singledispatch
def at_drafted(p, draft):
    """p(x) and q(x) at each drafted token x, FloatTensor[k] each, float64."""
    picks = draft.tokens[:, None]
    at_p = p[:-1].gather(1, picks)[:, 0].double()
    if draft.probs is None:  # a point mass
        return at_p, torch.ones_like(at_p)
    return at_p, draft.probs.gather(1, picks)[:, 0].double()


def residual(p, draft, i, weight=1.0):
    """What the target has left over where drafted token i was rejected.

    Args:
        p: FloatTensor[k+1, V].
        draft: Draft of k tokens.
        i: index of the rejected token.
        weight: factor on p; below 1 in block verification only.

    Returns:
        FloatTensor[V], max(weight * p - q, 0), not normalised; p itself where
        rounding has left nothing (p equals q).
    """
    if draft.probs is None:
        left = (weight * p[i]).index_fill(0, draft.tokens[i], 0.0)
    else:
        left = (weight * p[i] - draft.probs[i]).clamp(min=0.0)
    return left if bool(left.sum() > 0) else p[i]


def verify_block(p, draft, generator):
    """The block as a whole: keep the longest prefix that passes its own test.

    Sun et al. 2024 (arXiv 2403.10444), algorithm 2. Never accepts fewer tokens
    than token-wise verification on average, and is as exact.

    Args:
        p: FloatTensor[k+1, V], the target's probabilities.
        draft: Draft of k tokens.
        generator: torch.Generator; k + 1 uniforms are taken.

    Returns:
        Verdict.
    """
    k = len(draft.tokens)
    u = uniforms(k + 1, generator)
    weights = prefix_weights(p, draft)
    passed = u[:k] < prefix_acceptance(p, draft, weights).to(u.device)
    accepted = max(passed.nonzero()[:, 0].tolist(), default=-1) + 1
    return conclude(p, draft, accepted, u[k].item(), weights[accepted].item())


def prefix_weights(p, draft):
    """w_0 = 1, w_i = min(1, w_(i-1) p(x_i)/q(x_i)) for each prefix.

    Args:
        p: FloatTensor[k+1, V].
        draft: Draft of k tokens.

    Returns:
        FloatTensor[k+1], float64.
    """
    at_p, at_q = at_drafted(p, draft)
    weights = [at_p.new_tensor(1.0)]
    for ratio in torch.where(at_q > 0, at_p / at_q, 0.0):
        weights.append((weights[-1] * ratio).clamp(max=1.0))
    return torch.stack(weights)


def prefix_acceptance(p, draft, weights):
    """Probability that each prefix of 1 to k tokens passes its own test.

    Args:
        p: FloatTensor[k+1, V].
        draft: Draft of k tokens.
        weights: FloatTensor[k+1] from `prefix_weights`.

    Returns:
        FloatTensor[k], float64: w_k for the whole block, S_i / (S_i + 1 - w_i)
        for a shorter one, with S_i = sum max(w_i p - q, 0) over row i.
    """
    k = len(draft.tokens)
    inner = weights[1:k]  # prefixes of 1 to k-1 tokens
    left = surplus(p, draft, inner)
    inner = torch.where(inner < 1, left / (left + 1 - inner), 1.0)
    return torch.cat([inner, weights[k:]]) if k else weights[:0]


@singledispatch
def surplus(p, draft, weights):
    """What a weight times p has over q, summed over the vocabulary.

    Args:
        p: FloatTensor[k+1, V].
        draft: Draft of k tokens.
        weights: FloatTensor[k-1], for rows 1 to k-1.

    Returns:
        FloatTensor[k-1], float64: sum max(w p - q, 0) of each row.
    """
    k, q = len(draft.tokens), draft.probs
    if q is None:  # a point mass
        q = torch.nn.functional.one_hot(draft.tokens, p.shape[1])
    return (weights[:, None] * p[1:k] - q[1:k]).clamp(min=0).sum(-1).double()
