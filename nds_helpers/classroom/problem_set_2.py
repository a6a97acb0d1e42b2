"""Checks of problem set 2, for the student: the graded tests use other values.

A rank gets what it holds and nothing more: all other numbers of a matrix are nan, so
that an answer which looks at another rank's piece can't come out right.
"""
import functools
import math

import torch

from ..models.decoder import causal_mask, grouped_attention
from ..parallel.partitions import split_evenly, stretched
from .mlp_split import numbers
from .on_ranks import as_lists, listed, on_ranks
from .report import check


def only(matrix, span, dim=0):
    """A copy of a matrix with nan outside of a range of its rows (or columns)."""
    kept = torch.full_like(matrix, math.nan)
    kept.narrow(dim, span.start, len(span)).copy_(
        matrix.narrow(dim, span.start, len(span)))
    return kept


def columns_on_ranks(function):
    """column_linear on ranks, as a function of (size, x, weight, bias).

    Returns:
        function with the results of `on_ranks`.
    """
    def each(me, x, weight, bias):
        span = split_evenly(len(weight), me.size)[me.rank]
        return function(me, x, only(weight, span), only(bias, span))

    return functools.wraps(function)(on_ranks(each))


def rows_on_ranks(function):
    """row_linear on ranks, as a function of (size, x, weight, bias); x is whole."""
    def each(me, x, weight, bias):
        span = split_evenly(weight.shape[1], me.size)[me.rank]
        return function(me, x[:, span.start:span.stop], only(weight, span, 1), bias)

    return functools.wraps(function)(on_ranks(each))


def attention_on_ranks(function):
    """attention_step on ranks, as a function of (plans, x, weights, d, past).

    `plans` has one plan a rank, and `past` the keys and values of all kv heads.
    """
    def each(me, plans, x, weights, d, past):
        queries, keys, reads = plans[me.rank]
        q, kv = stretched(queries, d), stretched(keys, d)
        wq, wk, wv, wo = weights
        mine = only(wq, q), only(wk, kv), only(wv, kv), only(wo, q, 1)
        held = tuple(part[keys.start:keys.stop] for part in past)
        return function(me, x, mine, d, (queries, keys, list(reads)), held)

    @functools.wraps(function)
    def watched(plans, *arguments):
        return on_ranks(each)(len(plans), plans, *arguments)

    return watched


def norm_on_ranks(function):
    """add_and_norm on ranks, as a function of (size, terms, stream, gain, eps).

    Rank r has terms[r], and its positions of the stream, which is whole here.
    """
    def each(me, terms, stream, gain, eps):
        span = split_evenly(len(stream), me.size)[me.rank]
        return function(me, terms[me.rank], stream[span.start:span.stop], gain, eps)

    return functools.wraps(function)(on_ranks(each))


def whole_attention(x, weights, d, past):
    """What attention_step gives on one device that holds all heads.

    Args:
        x, weights, d: as for attention_step.
        past: keys and values, FloatTensor[G, P, d] each.

    Returns:
        (FloatTensor[T, D], (keys, values)): FloatTensor[G, P + T, d] both.
    """
    q, k, v = ((x @ w.T).view(len(x), -1, d).transpose(0, 1) for w in weights[:3])
    k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
    mask = causal_mask(past[0].shape[1], len(x), len(q) // len(k), x)
    y = grouped_attention(q[None], k[None], v[None], mask) @ weights[3].T
    return y, (k, v)


def check_cut(function):
    """Checks cut(count, size, block) -> list of ranges; True where it passes."""
    return check(listed(function), [
        ((6, 2), [[0, 1, 2], [3, 4, 5]],
         "each rank gets neighbours: a range that begins where the last one ended."),
        ((5, 3), [[0, 1], [2, 3], [4]],
         "5 over 3 ranks: everybody gets one, and the two that are left over go to "
         "the first two ranks. None may be lost."),
        ((7, 4), [[0, 1], [2, 3], [4, 5], [6]],
         "the shares differ by one at most; the last rank isn't there for the rest."),
        ((2, 3), [[0], [1], []], "a rank may get nothing, but it gets a range."),
        ((8, 2, 4), [[0, 1, 2, 3], [4, 5, 6, 7]], "two blocks of 4, one a rank."),
        ((12, 2, 4), [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11]],
         "three blocks of 4: share out blocks, and turn them into numbers last."),
        ((5, 2, 2), [[0, 1, 2, 3], [4]],
         "5 numbers are two blocks of 2 and one that is shorter: three in all."),
    ])


def check_column_linear(function):
    """Checks column_linear(me, x, weight, bias); True where it passes."""
    none, some = torch.zeros(8), torch.arange(8.0) * 10
    return check(columns_on_ranks(function), [
        column_case(1, 2, none, "one rank has all outputs: x times the transpose, and "
                    "one all_gather that has nothing to add."),
        column_case(2, 4, none, "a rank's outputs are rows of `weight`, since PyTorch "
                    "keeps it as [out, in]; gathered, they lie side by side. A nan "
                    "comes from rows that this rank doesn't have."),
        column_case(2, 4, some, "the bias of an output belongs to whoever computes "
                    "it, and is cut with it."),
        column_case(2, 3, some, "3 outputs over 2 ranks: the pieces differ, and "
                    "all_gather has to be told the sizes."),
        column_case(4, 3, some, "rank 3 has no output, and still takes part."),
    ])


def column_case(size, out, bias, hint):
    """A case of `check_column_linear` with T = 2 and two inputs."""
    x, weight = numbers(2, 2).float(), numbers(out, 2).float()
    y = as_lists(x @ weight.T + bias[:out])
    return (size, x, weight, bias[:out]), ("all_gather", *[y] * size), hint


def check_row_linear(function):
    """Checks row_linear(me, x, weight, bias); the check cuts x for the ranks.

    Returns:
        bool, True where every case passed.
    """
    none, some = torch.zeros(2), torch.tensor([100.0, 200.0])
    return check(rows_on_ranks(function), [
        row_case(1, 2, none, "one rank has all inputs: x times the transpose, and one "
                 "all_reduce that has nothing to add."),
        row_case(2, 4, none, "a rank's inputs meet the same columns of `weight`; what "
                 "comes out is a term, and the terms are added, once."),
        row_case(2, 4, some, "the bias belongs to the sum, not to every term of it."),
        row_case(2, 3, some, "3 inputs over 2 ranks: where does rank 1's piece begin?"),
        row_case(4, 3, some, "rank 3 has no input. Its term is zeros, and it still "
                 "takes part in the sum."),
    ])


def row_case(size, inputs, bias, hint):
    """A case of `check_row_linear` with one token and two outputs."""
    x, weight = numbers(1, inputs).float(), numbers(2, inputs).float()
    y = as_lists(x @ weight.T + bias)
    return (size, x, weight, bias), ("all_reduce", *[y] * size), hint


def check_heads_of(function):
    """Checks heads_of(heads, kv_heads, size, rank); True where it passes."""
    return check(listed(function), [
        ((4, 4, 2, 0), [[0, 1], [0, 1], [0, 1]],
         "as many kv heads as query heads: each reads its own."),
        ((4, 4, 2, 1), [[2, 3], [2, 3], [0, 1]],
         "`reads` counts among the kv heads that this rank holds, from 0."),
        ((8, 2, 2, 1), [[4, 5, 6, 7], [1], [0, 0, 0, 0]],
         "query heads 0 to 3 share kv head 0, the other four kv head 1."),
        ((6, 2, 3, 1), [[2, 3], [0, 1], [0, 1]],
         "the rank's two query heads belong to different groups: it holds both kv "
         "heads. Heads are never cut."),
        ((6, 2, 4, 2), [[4], [1], [0]],
         "more ranks than kv heads: a rank keeps a copy of those that it reads."),
        ((9, 3, 2, 1), [[5, 6, 7, 8], [1, 2], [0, 1, 1, 1]],
         "9 query heads over 2 ranks: 5 and 4. Which kv head does query head 5 read?"),
    ])


def check_attention_step(function):
    """Checks attention_step(me, x, weights, d, plan, past); True where it passes."""
    one = [(range(2), range(2), [0, 1])]
    pair = [(range(0, 2), range(0, 1), [0, 0]), (range(2, 4), range(1, 2), [0, 0])]
    odd = [(range(0, 2), range(0, 1), [0, 0]), (range(2, 3), range(0, 1), [0])]
    crossed = [(range(0, 3), range(0, 2), [0, 0, 1]), (range(3, 4), range(1, 2), [0])]
    return check(attention_on_ranks(function), [
        attention_case(one, 0, 1, "one token and no past: it looks at itself only. "
                       "Its key and value are what is cached."),
        attention_case(one, 1, 1, "the cache comes first, the new token behind it; "
                       "scores are divided by the square root of d.", d=4),
        attention_case(one, 1, 2, "the first new token may look at the past and at "
                       "itself, but not at the token behind it."),
        attention_case(pair, 1, 2, "two query heads read the same kv head: `reads` "
                       "says for each which one. Head h is rows h d to (h + 1) d of "
                       "wq, and the same columns of wo."),
        attention_case(odd, 0, 2, "2 heads and 1: where the pieces begin is in the "
                       "plan, and both ranks hold a copy of the same kv head."),
        attention_case(crossed, 2, 2, "rank 0's third query head reads its second kv "
                       "head."),
    ])


def attention_case(plans, length, count, hint, d=1):
    """A case of `check_attention_step` with D = 2 and a past of `length` tokens."""
    heads, kv_heads = (1 + max(plan[i].stop - 1 for plan in plans) for i in (0, 1))
    g = torch.Generator().manual_seed(heads + length)

    def small(*shape):
        return torch.randint(-2, 3, shape, generator=g).float()

    weights = (small(heads * d, 2), small(kv_heads * d, 2), small(kv_heads * d, 2),
               small(2, heads * d))
    past = small(kv_heads, length, d), small(kv_heads, length, d)
    arguments = plans, small(count, 2), weights, d, past
    return arguments, expected_attention(*arguments), hint


def expected_attention(plans, x, weights, d, past):
    """What `attention_on_ranks` gives for a right answer."""
    y, cached = whole_attention(x, weights, d, past)
    return ("all_reduce", *(
        as_lists((y, [part[plan[1].start:plan[1].stop] for part in cached]))
        for plan in plans))


def check_add_and_norm(function):
    """Checks add_and_norm(me, term, stream, gain, eps); True where it passes."""
    plain, gain = torch.ones(2), torch.tensor([1.0, 2.0])
    return check(norm_on_ranks(function), [
        norm_case(1, 1, plain, 0.0, "one rank: its term joins the stream, and the sum "
                  "is divided by the root of its mean square."),
        norm_case(2, 2, plain, 0.0, "reduce_scatter along the positions leaves each "
                  "rank with the sums of its own; only then is there something to "
                  "normalise."),
        norm_case(2, 2, gain, 0.0, "every number of a position has a gain of its own."),
        norm_case(2, 3, gain, 0.5, "3 positions over 2 ranks: both collectives want "
                  "the sizes. And eps stands inside the root."),
        norm_case(3, 2, gain, 0.5, "rank 2 has no position, and still takes part."),
    ])


def norm_case(size, count, gain, eps, hint):
    """A case of `check_add_and_norm` with D = 2."""
    terms = [numbers(count, 2).float() * (rank + 1) for rank in range(size)]
    arguments = size, terms, 10 - numbers(count, 2).float(), gain, eps
    return arguments, expected_norm(*arguments), hint


def expected_norm(size, terms, stream, gain, eps):
    """What `norm_on_ranks` gives for a right answer."""
    stream = stream + sum(terms)
    x = stream * (stream.square().mean(-1, keepdim=True) + eps).rsqrt() * gain
    spans = split_evenly(len(stream), size)
    return ("reduce_scatter, all_gather", *(
        as_lists((stream[span.start:span.stop], x)) for span in spans))


def check_ring_bytes(function):
    """Checks ring_bytes(count, itemsize, size) -> list; True where it passes."""
    return check(function, [
        ((4, 1, 2), [4, 4], "each half of the all-reduce sends one piece of 2 numbers "
         "to the next rank."),
        ((4, 2, 2), [8, 8], "a number has `itemsize` bytes."),
        ((8, 1, 4), [12, 12, 12, 12], "4 ranks: three of four pieces in each half."),
        ((3, 1, 2), [3, 3], "pieces of 2 and 1: rank 0 doesn't send its own in the "
         "first half, and not rank 1's in the second."),
        ((4, 1, 3), [5, 6, 5], "pieces of 2, 1 and 1: who comes after rank 2?"),
        ((5, 4, 1), [0], "one rank has nobody to send anything to."),
    ])
