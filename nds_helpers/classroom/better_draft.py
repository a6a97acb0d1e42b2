"""Checks for chapter 05: a draft with a second to ask, and one out of a table."""
import functools
from dataclasses import dataclass, field

import torch

from ..decoding import Draft, Sampling, probabilities
from .leader import generator
from .report import check

TEXT, DRAWS = torch.tensor([3, 1, 4]), 400


@dataclass
class Scripted:
    """A drafter that proposes what it was told to, and notes what it was asked."""

    guesses: list
    asked: list = field(default_factory=list)
    resets: int = 0

    def reset(self):
        """Counts."""
        self.resets += 1

    def propose(self, *arguments):
        """The first k of the guesses, certain."""
        self.asked.append(arguments)
        return Draft(torch.tensor(self.guesses[:arguments[1]], dtype=torch.long))


def check_either(drafter_type):
    """Checks a class Either(first, second); True where it passes.

    Args:
        drafter_type: takes two drafters and makes a third.
    """
    return examined(drafter_type, either_guesses, [
        (([7, 8], [5, 6], 2), ([7, 8], "second not asked"),
         "the first has guesses, so they are the proposal. Asking the second as well "
         "would take its time for nothing."),
        (([], [5, 6], 2), ([5, 6], "second asked"),
         "the first is silent: its Draft has no tokens. Who is asked then?"),
        (([7], [5, 6], 2), ([7], "second not asked"),
         "one guess where two were asked for is a guess all the same."),
        (([], [], 2), ([], "second asked"),
         "both may be silent; then so is the proposal."),
        (([0], [5, 6], 2), ([0], "second not asked"),
         "0 is a token like any other: look at how many tokens there are."),
        (([], [5, 6, 7], 1), ([5], "second asked"),
         "hand k, sequence, sampling and generator on as they are."),
    ])


def either_guesses(make, first, second, k):
    """(tokens proposed, whether the second was asked), or what went wrong."""
    one, two = Scripted(first), Scripted(second)
    drafter = make(one, two)
    drafter.reset()
    if (one.resets, two.resets) != (1, 1):
        return f"reset() resets both: {one.resets} and {two.resets} times were counted"
    asked = TEXT, k, Sampling(0.8), generator(0)
    draft = drafter.propose(*asked)
    if not isinstance(draft, Draft):
        return f"propose returns a Draft, not a {type(draft).__name__}"
    for scripted in (one, two):
        for came in scripted.asked:
            if len(came) != 4 or any(a is not b for a, b in zip(came, asked)):
                return "the drafters were asked with other arguments than propose got"
    return draft.tokens.tolist(), f"second {'' if two.asked else 'not '}asked"


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
    draft = drafter.propose(TEXT, 3, sampling, generator(0))
    if not isinstance(draft, Draft) or draft.tokens.shape != (3,):
        return "propose returns a Draft of k tokens, here 3"
    if exam == "a chain":
        return draft.tokens.tolist()
    if draft.probs is None or draft.probs.shape != (3, 5):
        return "probs has a row of 5 for each of the 3 tokens"
    if exam == "a row":
        before = torch.cat([TEXT[-1:], draft.tokens[:-1]])
        rows = probabilities(table[before], sampling)
        return "right" if torch.allclose(draft.probs, rows, atol=1e-6) else (
            "other rows than those of the tokens before")
    if exam == "the draws":
        return frequencies(drafter, table, sampling)
    with torch.random.fork_rng([]):
        again = drafter.propose(TEXT, 3, sampling, generator(0))
        others = [drafter.propose(TEXT, 3, sampling, generator(seed)).tokens.tolist()
                  for seed in range(20)]
    if again.tokens.tolist() != draft.tokens.tolist():
        return "the same seed gave other guesses"
    return "right" if len(set(map(tuple, others))) > 1 else "every seed gave the same"


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
        return check(drafter_type, cases)

    @functools.wraps(drafter_type, updated=())
    def watched(*arguments):
        return exam(drafter_type, *arguments)

    return check(watched, cases)
