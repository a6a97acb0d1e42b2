"""Checks of chapter 04: alpha-hat, tokens a round, the best K."""
from ..decoding import Round, Trace
from .report import check


def check_alpha_hat(alpha_hat):
    """Checks `alpha_hat(trace) -> float`; True where it passes."""
    return check(alpha_hat, [
        ((rounds((4, 2, "corrected"), (4, 4, "bonus"), (4, 0, "corrected")),), 0.75,
         "count only guesses that were tested. Behind a rejection nobody looked, so "
         "those guesses are neither right nor wrong."),
        ((rounds((3, 3, "bonus"), (3, 3, "bonus")),), 1.0,
         "nothing was rejected here: a bonus token is not a failure, and it isn't an "
         "accepted guess either."),
        ((rounds((5, 1, "corrected"), (2, 2, "bonus"), (1, 0, "corrected")),), 0.6,
         "add up all rounds first, then divide once: a mean of the rounds' own rates "
         "gives a short round as much weight as a long one."),
        ((rounds((4, 3, "corrected"), (4, 1, "ended")),), 0.8,
         "the second round ended at an accepted end token. Fewer guesses than K were "
         "kept, and yet none was rejected: which field tells you?"),
        ((rounds((4, 1, "corrected"), (0, 0, "bonus"), (0, 0, "bonus")),), 0.5,
         "rounds with K = 0 tested nothing, and they should change nothing."),
    ])


def check_expected_committed(expected_committed):
    """Checks `expected_committed(rates) -> float`; True where it passes."""
    return check(expected_committed, [
        (([0.8],), 1.8,
         "one guess: the round commits 1 token or 2. What does the target always add?"),
        (([0.9, 0.5],), 2.35,
         "the second guess counts only if the first one stood too, so its chance is "
         "a product. Nothing is divided by K."),
        (([0.5, 0.9],), 1.95,
         "the order matters: a good second guess is of little use behind a bad first."),
        (([0.0, 1.0, 1.0],), 1.0,
         "the first guess never stands, so nothing behind it is reached."),
        (([1.0, 1.0, 1.0],), 4.0,
         "if every guess stands, all K are committed, and the bonus comes on top."),
        (([],), 1.0, "K = 0 is plain decoding: one token a round."),
        (([0.8] * 5,), 3.68928,
         "equal rates: 1 + 0.8 + 0.8^2 + ... up to the fifth power."),
    ])


def check_best_k(best_k):
    """Checks `best_k(alpha, c, limit) -> int`; True where it passes."""
    return check(best_k, [
        ((0.8, 0.1, 16), 6,
         "compare speed, not tokens: a round costs K c + 1 target steps, so the "
         "draft's time must be in the denominator."),
        ((0.8, 0.05, 16), 8,
         "a cheaper draft makes a longer block worth while; nothing caps it."),
        ((0.5, 0.3, 16), 1, "try every K and keep the one with the highest speedup."),
        ((0.1, 0.3, 16), 0,
         "speculation can lose at every K above 0. Which K means plain decoding, and "
         "is it among those that you try?"),
        ((0.95, 0.01, 4), 4, "the limit itself may be chosen."),
        ((1.0, 0.2, 8), 8,
         "alpha = 1 is allowed, and (1 - a^(K+1)) / (1 - a) divides by zero there."),
    ])


class Shown(Trace):
    """A Trace that prints in one line: accepted/drafted and kind of each round."""

    def __repr__(self):
        return ", ".join(f"{r.accepted}/{r.drafted} {r.kind}" for r in self)


def rounds(*described):
    """A Trace from (drafted, accepted, kind) triples; the ids are made up."""
    trace = Shown()
    for drafted, accepted, kind in described:
        guesses = list(range(10, 10 + drafted))
        last = [] if kind == "ended" else [5]
        trace.append(Round(k=drafted, guesses=guesses, accepted=accepted, kind=kind,
                           tokens=guesses[:accepted] + last, p=[0.5] * drafted,
                           q=[0.5] * drafted))
    return trace
