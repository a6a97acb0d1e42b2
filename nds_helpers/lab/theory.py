"""Closed forms for speculation. Leviathan et al. 2023 (arXiv 2211.17192), section 3.

alpha: probability that a drafted token is accepted. c: seconds of one draft step
over seconds of one target step of width 1.
"""
from itertools import accumulate
from operator import mul


def expected_tokens(alpha, k):
    """Tokens committed a round, (1 - alpha^(k+1)) / (1 - alpha); equation 1.

    Args:
        alpha: in [0, 1].
        k: drafted tokens a round, 0 or more.

    Returns:
        float, 1 to k + 1.
    """
    return sum(alpha ** i for i in range(k + 1))


def expected_tokens_by_position(rates):
    """The same where each position has an acceptance rate of its own.

    Args:
        rates: rates[i], acceptance at position i given that it was reached.

    Returns:
        float, 1 + r_1 + r_1 r_2 + ...
    """
    return 1.0 + sum(accumulate(rates, mul))


def accepted_per_drafted(alpha, k):
    """Share of drafted tokens that are kept: alpha (1-alpha^k) / (k (1-alpha))."""
    return (expected_tokens(alpha, k) - 1) / k


def speedup(alpha, k, c, wide=1.0):
    """Speed over plain decoding; theorem 3.8, with the width's cost added.

    Args:
        alpha: in [0, 1].
        k: drafted tokens a round.
        c: one draft step over one target step.
        wide: one target forward of width k + 1 over one of width 1; the paper
            takes 1.

    Returns:
        float; below 1 speculation loses.
    """
    return expected_tokens(alpha, k) / (k * c + wide)


def best_k(alpha, c, limit=32):
    """The K with the highest speedup, 0 (plain decoding) included.

    Returns:
        (k, speedup).
    """
    best = max(range(limit + 1), key=lambda k: speedup(alpha, k, c))
    return best, speedup(alpha, best, c)
