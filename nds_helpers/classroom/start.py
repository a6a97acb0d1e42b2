"""Checks of chapter 00."""
from .report import check


def check_committed(function):
    """Checks `committed(accepted)`, the tokens that a round adds."""
    return check(function, [
        ((0,), 1, "the first guess was refused: what does the target add?"),
        ((2,), 3, "two guesses stood, and the target replaced the third."),
        ((4,), 5, "all four stood, and the target's own next token is free."),
    ])
