"""Checks for chapter 06: pieces of a matrix, the MLP on ranks, an all-reduce in two."""
import functools

import torch
from torch.nn.functional import silu

from .on_ranks import as_lists, listed, on_ranks
from .report import check

UNEVEN = "the pieces differ by one at most, and the first ones are the larger."
FEW = ("every rank gets a piece, even where fewer than `size` are left to give: an "
       "empty one has no columns (or no rows), but it is there.")


def numbers(rows, columns):
    """LongTensor[rows, columns] that counts up from 1: short to print."""
    return torch.arange(1, rows * columns + 1).reshape(rows, columns)


def check_split_columns(function):
    """Checks split_columns(matrix, size) -> list of matrices.

    Args:
        function: takes FloatTensor[in, out] and the number of ranks.

    Returns:
        bool, True where every case passed.
    """
    return check(listed(function), [
        ((numbers(2, 4), 2), [[[1, 2], [5, 6]], [[3, 4], [7, 8]]],
         "a rank gets whole columns, neighbours of one another: the rows are cut."),
        ((numbers(1, 5), 2), [[[1, 2, 3]], [[4, 5]]], UNEVEN),
        ((numbers(1, 6), 4), [[[1, 2]], [[3, 4]], [[5]], [[6]]],
         "6 columns over 4 ranks: everybody gets one, and two are left over for the "
         "first two ranks. `chunk` would make three pieces."),
        ((numbers(1, 2), 3), [[[1]], [[2]], [[]]], FEW),
    ])


def check_split_rows(function):
    """Checks split_rows(matrix, size) -> list of matrices.

    Args:
        function: takes FloatTensor[in, out] and the number of ranks.

    Returns:
        bool, True where every case passed.
    """
    return check(listed(function), [
        ((numbers(4, 2), 2), [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
         "a rank gets whole rows, neighbours of one another."),
        ((numbers(5, 1), 2), [[[1], [2], [3]], [[4], [5]]], UNEVEN),
        ((numbers(6, 1), 4), [[[1], [2]], [[3], [4]], [[5]], [[6]]],
         "6 rows over 4 ranks: everybody gets one, and two are left over for the "
         "first two ranks. `chunk` would make three pieces."),
        ((numbers(2, 1), 3), [[[1]], [[2]], []], FEW),
    ])


def check_mlp_rank(function):
    """Checks mlp_rank(me, x, gate_up, down, bias) -> FloatTensor[T, D] on ranks.

    Args:
        function: takes a Rank, FloatTensor[T, D], [D, 2 M], [M, D] and [D].

    Returns:
        bool, True where every case passed.
    """
    none, some = torch.zeros(2), torch.tensor([10.0, 20.0])
    return check(on_ranks(function), [
        mlp_case(1, 4, none, "one rank holds everything: down of silu(gate) * up, and "
                 "one all_reduce that has nothing to add."),
        mlp_case(2, 4, none, "rank 0's columns of gate must meet the same columns of "
                 "up, and the same rows of down; then the terms are added, once."),
        mlp_case(2, 4, some, "the bias belongs to the sum, not to every term of it."),
        mlp_case(3, 4, none, "4 columns over 3 ranks: 2, 1 and 1, for gate, for up "
                 "and for the rows of down alike."),
        mlp_case(4, 3, some, "the last rank is left without a column. Its term is "
                 "zeros, and it still takes part in the sum."),
    ])


def mlp_case(size, width, bias, hint):
    """A case of `check_mlp_rank` with one token, D = 2 and M = width."""
    g = torch.Generator().manual_seed(width)
    x = torch.tensor([[1.0, -2.0]])
    gate_up = torch.randint(-3, 4, (2, 2 * width), generator=g).float()
    down = torch.randint(-3, 4, (width, 2), generator=g).float()
    gate, up = (x @ gate_up).chunk(2, -1)
    y = as_lists((silu(gate) * up) @ down + bias)
    return (size, x, gate_up, down, bias), ("all_reduce", *[y] * size), hint


def check_all_reduce_in_two(function):
    """Checks all_reduce_in_two(me, x) -> tensor like x on ranks.

    Args:
        function: takes a Rank and a tensor; rank r is given (r + 1) times the one
            that the check shows.

    Returns:
        bool, True where every case passed.
    """
    def each(me, x):
        return function(me, x * (me.rank + 1))

    watched = functools.wraps(function)(on_ranks(each))
    return check(watched, [
        two_case(2, torch.tensor([1.0, 2.0]), "the first half leaves each rank with "
                 "the sum of its piece, the second hands all pieces to all."),
        two_case(3, torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
                 "the result has x's own shape."),
        two_case(2, torch.tensor([1.0, 2.0, 3.0]),
                 "3 numbers over 2 ranks: both collectives want to be told the "
                 "sizes, one a rank."),
        two_case(3, torch.tensor([[5.0], [7.0]]), "2 numbers over 3 ranks: a size "
                 "may be 0, and the sizes add up to all numbers of x."),
    ])


def two_case(size, x, hint):
    """A case of `check_all_reduce_in_two`."""
    total = as_lists(x * sum(range(1, size + 1)))
    return (size, x), ("reduce_scatter, all_gather", *[total] * size), hint
