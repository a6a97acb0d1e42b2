"""Checks of chapter 03: acceptance, residual, and a block verified token by token."""
import torch

from .report import check, same


def check_acceptance(acceptance):
    """Checks `acceptance(p, q) -> FloatTensor[V]`; True where it passes."""
    return check(acceptance, [
        ((row(0.2, 0.5, 0.3), row(0.4, 0.25, 0.35)), row(0.5, 1.0, 6 / 7),
         "a probability never exceeds 1, and the surplus that has to be thinned "
         "out is the draft's, not the target's."),
        ((row(0.5, 0.5, 0.0), row(0.125, 0.125, 0.75)), row(1.0, 1.0, 0.0),
         "where the target gives a word nothing, the word is never kept; where q is "
         "the smaller one, it is always kept. This isn't the area min(p, q)."),
        ((row(0.3, 0.7, 0.0), row(0.6, 0.0, 0.4)), row(0.5, 0.0, 0.0),
         "a word with q = 0 is never drafted; the task says what its entry is. "
         "Dividing by zero gives inf, and clamping turns inf into 1."),
        ((row(0.25, 0.75, 0.0), row(0.5, 0.5, 0.0)), row(0.5, 1.0, 0.0),
         "0 / 0 is nan, and nan survives a clamp. Where q is 0, don't use the ratio."),
    ])


def check_residual(safe_residual):
    """Checks `safe_residual(p, q) -> FloatTensor[V]`; True where it passes."""
    same = row(0.2, 0.3, 0.5)
    return check(safe_residual, [
        ((row(0.2, 0.5, 0.3), row(0.6, 0.3, 0.1)), row(0.0, 0.5, 0.5),
         "it holds only what the target has more of: nothing is negative, and it is "
         "a distribution, so it sums to 1. Which one is subtracted from which?"),
        ((row(0.7, 0.2, 0.1), row(0.1, 0.4, 0.5)), row(1.0, 0.0, 0.0),
         "words that the draft already overdoes get nothing here: a difference below "
         "zero counts as zero, not as its absolute value."),
        ((same, same.clone()), same,
         "p equals q: nothing is left over, and dividing by that nothing gives nan. "
         "A valid distribution must come out; which one is the target's?"),
        ((same * (1 - 1e-9), same.clone()), same,
         "p is a hair below q everywhere, as rounding can leave it. The two aren't "
         "equal, yet nothing is left over: look at the sum before you divide by it."),
    ])


def check_verify(verify):
    """Checks `verify(p, q, tokens, u) -> (accepted, next)`; True where it passes."""
    p = table((0.2, 0.5, 0.3), (0.1, 0.6, 0.3), (0.7, 0.2, 0.1))
    q = table((0.6, 0.3, 0.1), (0.1, 0.3, 0.6))
    wide = table((0.1, 0.7, 0.2), (0.2, 0.5, 0.3), (0.6, 0.3, 0.1), (0.3, 0.3, 0.4))
    narrow = table((0.4, 0.5, 0.1), (0.2, 0.2, 0.6), (0.6, 0.2, 0.2))
    return check(verify, [
        ((p, q, ids(1, 2), row(0.99, 0.49, 0.95)), (2, 2), parted(
            (2, 2), "both pass: 0.99 < 1 and 0.49 < 0.5.",
            "the bonus comes from the target's own row behind the block, p[K], and "
            "nothing is subtracted from it.")),
        ((p, q, ids(0, 2), row(0.4, 0.2, 0.1)), (0, 1), parted(
            (0, 1), "0.4 isn't below 1/3: the first word is rejected, and all behind "
            "it is void, whatever its own test says.",
            {0: "word 0 is what p would give. The replacement comes from what the "
                "target has left over in that row."})),
        ((p, q, ids(1, 2), row(0.7, 0.6, 0.05)), (1, 1), parted(
            (1, 1), "0.7 < 1 passes, 0.6 isn't below 0.5: the second is rejected.",
            {0: "word 0 is what p would give. The replacement comes from what the "
                "target has left over in the rejected word's own row."})),
        ((wide, narrow, ids(0, 2, 0), row(0.5, 0.1, 0.3, 0.9)), (0, 2), parted(
            (0, 2), "the round ends at the first rejection: two later words would "
            "pass, but they continue a text that isn't there any more.",
            {1: "which number draws the word? u[0] has been used up by the test of the "
                "first draft; u[K] is kept for the last word."})),
        ((wide, narrow, ids(1, 2, 0), row(0.3, 0.49, 0.97, 0.8)), (3, 2), parted(
            (3, 2), "p(x)/q(x) is 1.4, 0.5 and 1.0 here, each in its own row, and all "
            "pass.", "the bonus has a row of its own, the last one of p.")),
        ((p[:1], q[:0], ids(), row(0.5)), (0, 1), parted(
            (0, 1), "K = 0: nothing was drafted, so nothing is accepted.",
            "K = 0: the round is one plain draw from the target, by u[0].")),
        ((p[:2].clone(), p[:1].clone(), ids(1), row(0.999999, 0.05)), (1, 0), parted(
            (1, 0), "p equals q: every draft is accepted, whatever u is.",
            "nothing was rejected, so the bonus is drawn, from p[K] and by u[K].")),
    ])


def parted(expected, about_count, about_word):
    """A hint that says which of the two numbers is wrong, and speaks of that one.

    Args:
        expected: (accepted, next word).
        about_count: what to look at where the first number is wrong.
        about_word: the same for the second; or a dict, wrong word -> the mistake
            that gives it.

    Returns:
        function of what came, as `report.check` takes it.
    """
    elsewhere = ("after a rejection it is drawn from what the target has left over in "
                 "that row, else from p[K]; by u[K] both times.")

    def hint(came):
        if came is None:
            return about_count
        if not isinstance(came, (tuple, list)) or len(came) != 2:
            return "two numbers are wanted: how many stand, and the word behind them."
        if not same(came[0], expected[0]):
            return f"the number of accepted drafts is wrong: {about_count}"
        if isinstance(about_word, str):
            return f"the count is right, the next word isn't: {about_word}"
        known = about_word.get(came[1], elsewhere)
        return f"the count is right, the next word isn't: {known}"

    return hint


def row(*values):
    """FloatTensor[V] in float64."""
    return torch.tensor(values, dtype=torch.float64)


def table(*rows):
    """FloatTensor[rows, V] in float64."""
    return torch.stack([row(*values) for values in rows])


def ids(*values):
    """LongTensor[K], possibly empty."""
    return torch.tensor(values, dtype=torch.long)
