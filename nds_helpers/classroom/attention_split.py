"""Checks for chapter 07: heads to ranks, attention on ranks, bytes of cache."""
import torch

from ..models.decoder import causal_mask, grouped_attention
from .decode import shape
from .on_ranks import as_lists, listed, on_ranks
from .report import check


def check_assign_heads(function):
    """Checks assign_heads(heads, kv_heads, size) -> list of (query heads, kv heads).

    Args:
        function: takes three ints, and gives two ranges a rank; lists of the same
            ints pass too.

    Returns:
        bool, True where every case passed.
    """
    return check(listed(function), [
        ((4, 4, 2), [[[0, 1], [0, 1]], [[2, 3], [2, 3]]],
         "as many kv heads as query heads: neighbours stay together."),
        ((8, 4, 2), [[[0, 1, 2, 3], [0, 1]], [[4, 5, 6, 7], [2, 3]]],
         "cut the kv heads, and let each bring the query heads that read it: kv head "
         "g is read by H/G of them, from g * H/G on."),
        ((9, 3, 2), [[[0, 1, 2, 3, 4, 5], [0, 1]], [[6, 7, 8], [2]]],
         "a group, a kv head and its query heads, stays whole; the first ranks take "
         "what is left over."),
        ((8, 4, 3), [[[0, 1, 2, 3], [0, 1]], [[4, 5], [2]], [[6, 7], [3]]],
         "one group more for the first rank; the others get one each."),
        ((8, 2, 4), [[[0, 1], [0]], [[2, 3], [0]], [[4, 5], [1]], [[6, 7], [1]]],
         "more ranks than kv heads: ranks share out a group's query heads, and each "
         "keeps a copy of its kv head."),
        ((6, 2, 3), [[[0, 1], [0]], [[2], [0]], [[3, 4, 5], [1]]],
         "the ranks themselves are shared out among the kv heads, fairly: the first "
         "kv head gets one rank more. Then its query heads are cut for these."),
    ])


def check_attention_rank(function):
    """Checks attention_rank(me, x, wq, wk, wv, wo, d, shares) on ranks.

    Args:
        function: takes a Rank, FloatTensor[T, D], [D, H d], [D, G d], [D, G d] and
            [H d, D], the head width, and (query heads, kv heads) for each rank.

    Returns:
        bool, True where every case passed.
    """
    one = [(range(2), range(2))]
    each = [(range(0, 1), range(0, 1)), (range(1, 2), range(1, 2))]
    groups = [(range(0, 2), range(0, 1)), (range(2, 4), range(1, 2))]
    uneven = [(range(0, 2), range(0, 2)), (range(2, 3), range(2, 3))]
    copied = [(range(0, 1), range(0, 1)), (range(1, 2), range(0, 1))]
    return check(on_ranks(function), [
        attention_case(one, "one rank has all heads: attend, then wo, then one "
                       "all_reduce that has nothing to add."),
        attention_case(each, "head h is columns h d to (h + 1) d of wq; the same rows "
                       "of wo take what it fetched. The rest is a sum, once."),
        attention_case(groups, "query heads and kv heads are counted apart: columns "
                       "of wk and wv go by the rank's kv heads."),
        attention_case(uneven, "the ranks have 2 heads and 1: how wide a piece is "
                       "depends on the rank. Take it from shares."),
        attention_case(copied, "both ranks hold a copy of the same kv head, and each "
                       "has a query head of its own."),
    ])


def attention_case(shares, hint):
    """A case of `check_attention_rank` with T = 2, D = 1 and d = 2."""
    heads, kv_heads = (1 + max(rank[i].stop - 1 for rank in shares) for i in (0, 1))
    g, d = torch.Generator().manual_seed(heads), 2
    x = torch.tensor([[1.0], [-2.0]])
    wq, wk, wv = (torch.randint(-2, 3, (1, n * d), generator=g).float()
                  for n in (heads, kv_heads, kv_heads))
    wo = torch.randint(-2, 3, (heads * d, 1), generator=g).float()
    q, k, v = ((x @ w).view(1, 2, -1, d).transpose(1, 2) for w in (wq, wk, wv))
    y = grouped_attention(q, k, v, causal_mask(0, 2, heads // kv_heads, x)) @ wo
    arguments = len(shares), x, wq, wk, wv, wo, d, shares
    return arguments, ("all_reduce", *[as_lists(y)] * len(shares)), hint


def check_cache_bytes(function):
    """Checks cache_bytes(config, size, length, itemsize) -> list of bytes, one a rank.

    Args:
        function: takes a ModelConfig, the number of ranks, tokens, and bytes a
            number.

    Returns:
        bool, True where every case passed.
    """
    return check(function, [
        ((shape(1, 4, 4, 4, 16), 1, 10, 2), [640],
         "one rank holds a key and a value for every token and kv head."),
        ((shape(3, 8, 4, 4, 32), 2, 10, 2), [960, 960],
         "the cache holds kv heads, not query heads, in every layer."),
        ((shape(1, 9, 3, 4, 36), 2, 10, 2), [320, 160],
         "3 kv heads over 2 ranks: 2 and 1. Heads are never cut."),
        ((shape(1, 8, 2, 4, 32), 4, 10, 4), [320, 320, 320, 320],
         "more ranks than kv heads: every rank keeps a copy of one."),
        ((shape(1, 8, 2, 16, 32), 2, 10, 1), [320, 320],
         "a head is as wide as head_width says, whatever width / heads is."),
    ])
