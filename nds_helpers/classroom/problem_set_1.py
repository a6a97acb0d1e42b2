"""Checks of problem set 1, for the student: the graded tests use other values."""
from .distribution import table
from .report import check


def check_to_probabilities(function):
    """Checks to_probabilities(logits, temperature, top_k, top_p); True if it passes."""
    one = table((8, 4, 2, 2)).log()
    two = table((1, 3), (3, 1)).log()
    return check(function, [
        ((one,), table((0.5, 0.25, 0.125, 0.125)),
         "no cut and temperature 1: this is the softmax."),
        ((two,), table((0.25, 0.75), (0.75, 0.25)),
         "every row is a distribution of its own: along which dimension?"),
        ((one, 0.5), table((64, 16, 4, 4)) / 88,
         "what does the temperature divide, and when?"),
        ((two, 0), table((0, 1), (1, 0)),
         "at temperature 0 nothing can be divided: all goes to the likeliest."),
        ((one, 1.0, 2), table((2 / 3, 1 / 3, 0, 0)),
         "after top-k a row must sum to 1 again."),
        ((one, 1.0, 0, 0.7), table((2 / 3, 1 / 3, 0, 0)),
         "the first token has 0.5 and doesn't reach 0.7 alone; the second does it, "
         "and belongs to the kept ones."),
        ((one, 1.0, 3, 0.55), table((1.0, 0, 0, 0)),
         "after top-k the first token has 4/7, which is above 0.55: top-p looks at the "
         "distribution that top-k has left."),
    ])
