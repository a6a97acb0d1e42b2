"""Checks for chapter 05: a draft with a second to ask, and one out of a table."""
import functools
import re
from dataclasses import dataclass

import torch
from torch.nn.functional import one_hot

from ..decoding import Draft, Sampling, probabilities
from .leader import generator
from .report import brief, check

TEXT, DRAWS = torch.tensor([3, 1, 4]), 400
OTHER_PROBS = re.compile("without probs|with other probs")
TROUBLES = {
    "reset()": "`reset()` is called before each new text, for all who remember "
               "anything.",
    "not a Draft": "a Draft holds tokens and probs: hand on the one that you got.",
    "other arguments": "hand sequence, k, sampling and generator on as they are.",
    "has guesses again": "it may be silent now and have guesses later: ask it anew in "
                         "each proposal.",
    "was changed": "the text belongs to the caller: `clone()` what you want to change.",
}


@dataclass(eq=False)
class Scripted:
    """A drafter that proposes what it was told to, and notes what it was asked."""

    guesses: list
    certain: bool = False

    def __post_init__(self):
        self.asked, self.resets = [], 0

    def __repr__(self):
        return f"drafter of {self.guesses}"

    def reset(self):
        """Counts."""
        self.resets += 1

    def propose(self, sequence, k, sampling, generator):
        """The first k of the guesses."""
        self.asked.append((sequence, k, sampling, generator))
        return self.draft(k)

    def draft(self, k):
        """A Draft whose row for a guess gives that guess 0.55, if it isn't certain."""
        tokens = torch.tensor(self.guesses[:k], dtype=torch.long)
        if self.certain or not len(tokens):
            return Draft(tokens)
        return Draft(tokens, 0.05 + 0.5 * one_hot(tokens, 10))


def check_either(drafter_type):
    """Checks a class Either(first, second); True where it passes.

    Args:
        drafter_type: takes two drafters and makes a third.
    """
    two = [5, 6]
    return examined(drafter_type, either_guesses, [
        either_case([7, 8], two, 2, "[7, 8] with probs, second not asked",
                    "the first has guesses, so they are the proposal. Asking the "
                    "second as well would take its time for nothing."),
        either_case([], two, 2, "[5, 6] with probs, second asked",
                    "the first is silent: its Draft has no tokens. Who is asked then?"),
        either_case([7], two, 2, "[7] with probs, second not asked",
                    "one guess where two were asked for is a guess all the same: "
                    "don't fill up."),
        either_case([], [], 2, "[], second asked",
                    "both may be silent; then so is the proposal."),
        either_case([0], two, 2, "[0] with probs, second not asked",
                    "0 is a token like any other: look at how many tokens there are."),
        either_case([7], two, 1, "[7] without probs, second not asked",
                    "the first was certain here, so its Draft has no probs. It has a "
                    "token, though.", certain=True),
        either_case([], [5, 6, 7], 1, "[5] with probs, second asked",
                    "hand sequence, k, sampling and generator on as they are."),
    ])


def either_case(first, second, k, expected, idea, certain=False):
    """A case for `check`; certain: the first has no probs, as look-up has none."""
    def hint(came):
        """What goes with the trouble that came, else the idea of the case."""
        if came and OTHER_PROBS.sub("with probs", came) == expected:
            return ("the Draft carries q too, and verification judges by it: hand it "
                    "on as it is.")
        return next((words for trouble, words in TROUBLES.items()
                     if came and trouble in came), idea)

    return (Scripted(first, certain), Scripted(second), k), expected, hint


def either_guesses(make, one, two, k):
    """What came of one proposal, in words: guesses, probs, who was asked."""
    drafter = make(one, two)
    drafter.reset()
    if (one.resets, two.resets) != (1, 1):
        return f"reset() reached the first {one.resets} times, the second {two.resets}"
    asked = TEXT.clone(), k, Sampling(0.8), generator(0)
    draft = drafter.propose(*asked)
    if not torch.equal(asked[0], TEXT):
        return "the text that propose got was changed"
    if not isinstance(draft, Draft):
        return f"propose returned a {type(draft).__name__}, not a Draft"
    if not one.asked:
        return "the first was not asked"
    silent = not one.guesses
    if not all(unchanged(came, asked) for came in one.asked + silent * two.asked):
        return "the drafters were asked with other arguments than propose got"
    came = (f"{torch.as_tensor(draft.tokens).tolist()}"
            f"{about_probs(draft, (two if silent else one).draft(k))}, "
            f"second {'' if two.asked else 'not '}asked")
    one.guesses = [9] * k if silent else one.guesses
    if silent and 9 not in drafter.propose(*asked).tokens:
        return "the first has guesses again, and isn't heard"
    return came


def unchanged(came, asked):
    """Whether a drafter was asked what propose was; a copy of the text will do."""
    return torch.equal(came[0], asked[0]) and came[1:3] == asked[1:3] and (
        came[3] is asked[3])


def about_probs(draft, handed):
    """What a proposal says about q; handed: the Draft that it should be."""
    if not len(draft.tokens):
        return ""
    if draft.probs is None:
        return " without probs"
    kept = handed.probs is not None and torch.equal(draft.probs, handed.probs)
    return " with probs" if kept else " with other probs"


def check_bigram(drafter_type):
    """Checks a class Bigram(logits), logits FloatTensor[V, V]; True where it passes.

    Args:
        drafter_type: takes the table and makes a drafter.
    """
    return examined(drafter_type, bigram_exam, [
        (("a chain", 0.0), [0, 2, 1],
         "each guess comes from the row of the token before it: first the last token "
         "of the text, then your own guess."),
        (("a row", 1.0), "right", "probs[i] is the row that token i was drawn from."),
        (("a row", 0.5), "right",
         "`probabilities(logits, sampling)` applies the temperature, and the drafter "
         "has to draw with it."),
        (("the draws", 1.0), "right",
         "a token has to come as often as its row says: `draw(row, u)` with a fresh "
         "uniform number u for each guess."),
        (("the generator", 1.0), "right",
         "all chance comes from the generator that propose is given."),
    ])


def bigram_exam(make, exam, temperature):
    """The guesses of a chain, or "right", or what went wrong."""
    table = torch.randn(5, 5, generator=generator(7))
    if exam == "a chain":  # 4 -> 0 -> 2 -> 1
        table[[4, 0, 2], [0, 2, 1]] = 9.0
    drafter, sampling = make(table), Sampling(temperature)
    drafter.reset()
    text = TEXT.clone()
    draft = drafter.propose(text, 3, sampling, generator(0))
    if not torch.equal(text, TEXT):
        return "the text that propose got was changed: clone() it first"
    if not isinstance(draft, Draft) or draft.tokens.shape != (3,):
        return "propose returns a Draft of k tokens, here 3"
    if exam == "a chain":
        return draft.tokens.tolist()
    if draft.probs is None or draft.probs.shape != (3, 5):
        return "probs has a row of 5 for each of the 3 tokens"
    if exam == "a row":
        before = torch.cat([TEXT[-1:], draft.tokens[:-1]])
        rows = probabilities(table[before], sampling)
        return "right" if torch.allclose(draft.probs.to(rows), rows, atol=1e-6) else (
            "other rows than those of the tokens before")
    if exam == "the draws":
        return frequencies(drafter, table, sampling)
    with torch.random.fork_rng([]):
        same, others = ({tuple(drafter.propose(TEXT, 3, sampling, generator(seed))
                               .tokens.tolist()) for seed in seeds}
                        for seeds in ([0] * 20, range(20)))
    if same != {tuple(draft.tokens.tolist())}:
        return "the same seed gave other guesses"
    return "right" if len(others) > 1 else "every seed gave the same"


def frequencies(drafter, table, sampling):
    """Whether first and second guesses come as often as their rows say."""
    one = probabilities(table[TEXT[-1:]], sampling)[0]
    two = one @ probabilities(table, sampling)
    counts, stream = torch.zeros(2, len(table)), generator(1)
    for _ in range(DRAWS):
        for place, token in enumerate(drafter.propose(TEXT, 2, sampling,
                                                      stream).tokens.tolist()):
            counts[place, token] += 1
    expected = DRAWS * torch.stack([one, two])
    far = (counts - expected).abs() / (expected + 1).sqrt()
    return "right" if far.max() < 5 else "tokens come more or less often than probs say"


def examined(drafter_type, exam, cases):
    """Runs `check` on what an exam of a class says."""
    if not callable(drafter_type):
        print("Not yet: the check wants your class itself, its name without brackets, "
              f"and got {brief(drafter_type)}.")
        return False

    @functools.wraps(drafter_type, updated=())
    def watched(*arguments):
        return exam(drafter_type, *arguments)

    return check(watched, cases)
