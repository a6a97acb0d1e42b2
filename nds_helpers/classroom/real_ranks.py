"""Checks for chapter 08: a function for ranks, a late rank, the price of a token."""
from .on_ranks import on_ranks
from .report import check

TIMES = "in a ring of n, a rank sends 2 (n - 1) / n times the tensor: 1.5 for n = 4."


def check_sum_of_list(function):
    """Checks sum_of_list(me, numbers) -> float on simulated ranks.

    Args:
        function: takes a Rank and a list of floats.

    Returns:
        bool, True where every case passed.
    """
    return check(on_ranks(function), [
        sum_case(1, [1.5, 2.0], "one rank has everything to add, and still calls one "
                 "all_reduce."),
        sum_case(2, [1.0, 2.0, 4.0, 8.0], "every number belongs to exactly one rank; "
                 "then the ranks' parts are added up, once."),
        sum_case(3, [1.0, 2.0, 4.0, 8.0, 16.0], "5 numbers over 3 ranks: none may be "
                 "left over."),
        sum_case(4, [3.0, 5.0], "ranks without a number take part with 0, in a tensor "
                 "of the same type as the others'."),
        sum_case(2, [1e8, 0.25], "float64 has room for both, float32 hasn't."),
    ])


def sum_case(size, numbers, hint):
    """A case of `check_sum_of_list`."""
    return (size, numbers), ("all_reduce", *[sum(numbers)] * size), hint


def check_late_rank(function):
    """Checks late_rank(started) -> int.

    Args:
        function: takes started[rank][call], seconds.

    Returns:
        bool, True where every case passed.
    """
    return check(function, [
        ([[[1.0, 6.0], [3.0, 5.5]]], 1,
         "in call 0 rank 0 waits 2 s, in call 1 rank 1 waits 0.5 s."),
        ([[[5.0], [1.0], [2.0]]], 0,
         "who waits longest came first; the late one is who waits least."),
        ([[[9.0, 10.5, 12.5], [1.0, 11.0, 13.0]]], 0,
         "rank 0 was late once, but by 8 s; add up seconds, not how often."),
        ([[[0.0, 9.0, 19.0], [1.0, 9.5, 10.0], [2.0, 11.0, 12.0], [3.0, 8.0, 11.0]]],
         0, "all calls count, the last one too."),
        ([[[3.0, 8.0, 9.5], [1.0, 4.0, 9.6]]], 0,
         "the first calls count as much as the last."),
    ])


def check_exchange_seconds(function):
    """Checks exchange_seconds(alpha, beta, layers, width, itemsize, n) -> float.

    Args:
        function: takes two floats and four ints.

    Returns:
        bool, True where every case passed.
    """
    return check(function, [
        ((1.0, 0.0, 1, 8, 2, 2), 3.0, "a layer has two sums, and the embedding one; "
         "each call pays alpha."),
        ((1.0, 0.0, 10, 8, 2, 2), 21.0, "every layer adds two sums, the embedding is "
         "there only once."),
        ((0.0, 1.0, 1, 8, 2, 2), 48.0, "a sum has `width` numbers of `itemsize` bytes, "
         "and two ranks send them once."),
        ((0.0, 1.0, 1, 8, 4, 2), 96.0, "a number has `itemsize` bytes."),
        ((0.0, 1.0, 1, 8, 2, 4), 72.0, TIMES),
        ((1.0, 0.0, 1, 8, 2, 4), 3.0, "alpha is given for this number of ranks: don't "
         "multiply it by n again."),
        ((1.0, 0.5, 1, 8, 2, 1), 0.0, "one rank has nobody to exchange anything with."),
    ])
