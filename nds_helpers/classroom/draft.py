"""Checks for chapter 02: the agreeing run, what a round commits, n-gram look-up."""
from .report import check


def check_count_accepted(function):
    """Checks count_accepted(guesses, choices) -> int.

    Args:
        function: takes K guessed ids and the target's K + 1 choices, lists.

    Returns:
        bool, True where every case passed.
    """
    return check(function, [
        (([7, 8, 9], [7, 8, 9, 4]), 3,
         "row i of the target judges guess i, and all three agree. The row behind them "
         "has no guess to judge, and its choice isn't one."),
        (([7, 8, 9, 3, 2], [7, 5, 9, 3, 2, 4]), 1, after_a_disagreement),
        (([5, 6], [6, 5, 6]), 0,
         "being somewhere in the list isn't enough: which row judges which guess?"),
        (([3, 4, 5], [9, 3, 4, 5]), 0,
         "row 0 is the target's choice after the last committed token, and that is "
         "the place of the first guess."),
        (([5, 5, 2], [5, 5, 5, 5]), 2,
         "the run ends at the first disagreement, wherever that is."),
        (([], [3]), 0,
         "K may be 0, and then there is one choice and nothing to compare it with."),
    ])


def after_a_disagreement(came):
    """The hint where the first guess agrees, the second doesn't, and three do again."""
    if came == 4:
        return ("later guesses equal their choices, but the target made those after "
                "reading a wrong second guess. Do they count?")
    if came == 2:
        return ("the run has one guess less. Is the one that disagrees counted, or the "
                "target's choice in its place?")
    return "walk from the left: where is the first guess that its row didn't choose?"


def check_commit(function):
    """Checks commit(guesses, choices, end_tokens, budget) -> list of ids.

    Args:
        function: takes K guessed ids, K + 1 choices, a set of end tokens, and the
            most that may be committed.

    Returns:
        bool, True where every case passed.
    """
    return check(function, [
        (([7, 8, 9], [7, 8, 9, 4], {0}, 9), [7, 8, 9, 4],
         "all guesses agree, so the bonus comes on top. Which row saw all of them?"),
        (([7, 8, 9], [7, 5, 6, 4], {0}, 9), [7, 5],
         "behind the agreeing run comes one token: the target's choice in the row "
         "that disagreed, not the guess and not another row's choice."),
        (([7, 8, 9], [1, 2, 3, 4], {0}, 9), [1],
         "no guess agrees, and the round still commits a token."),
        (([7, 0, 9], [7, 0, 9, 4], {0}, 9), [7, 0],
         "an accepted guess is an end token: it is part of the text, and nothing "
         "may follow it."),
        (([7, 8, 0], [7, 8, 0, 4], {0}, 9), [7, 8, 0],
         "the last guess ends the text. Is there still room for a bonus?"),
        (([7, 8, 0], [7, 8, 5, 4], {0}, 9), [7, 8, 5],
         "the draft guessed an end, the target didn't want one: whose word counts?"),
        (([3, 7], [3, 7, 1], {0, 3}, 9), [3],
         "a model may have several end tokens, and each of them ends the text."),
        (([7, 8, 9], [7, 8, 9, 4], {0}, 2), [7, 8],
         "the budget is the most that may be committed, bonus included."),
        (([7, 8, 9], [7, 5, 6, 4], {0}, 1), [7],
         "the budget counts from the front of what would have been committed."),
        (([], [4], {0}, 9), [4],
         "K = 0: nothing guessed, one plain step of the target."),
    ])


def check_look_up(function):
    """Checks look_up(sequence, k, n) -> list of at most k ids.

    Args:
        function: takes the ids so far, how many to propose, and the length of the
            ending to look for.

    Returns:
        bool, True where every case passed.
    """
    return check(function, [
        (([1, 2, 3, 9, 8, 1, 2, 3], 2, 3), [9, 8],
         "propose what came after the earlier 1, 2, 3, without those three."),
        (([1, 2, 5, 1, 2, 6, 1, 2], 1, 2), [6],
         "1, 2 occurs twice before; the task asks for the latest earlier time."),
        (([1, 2, 3, 4], 3, 2), [],
         "3, 4 occurs only as the ending itself, and nothing has followed that yet."),
        (([1, 2, 9, 8, 7, 1, 2], 3, 2), [9, 8, 7],
         "never more than k tokens, or the round would break its budget."),
        (([1, 2, 9, 1, 2], 5, 2), [9, 1, 2],
         "fewer than k are fine: the text stops there."),
        (([5, 6, 4, 5, 7, 6, 5, 6], 1, 2), [4],
         "the whole ending must match, 5 and then 6; a single token isn't enough."),
        (([4, 4, 4, 4], 3, 2), [4],
         "an earlier match may overlap the ending; the latest one starts one place "
         "before it."),
        (([1, 2], 3, 2), [],
         "the ending is the whole text: there is nothing before it."),
        (([1], 3, 2), [],
         "the text is shorter than n: propose nothing."),
    ])
