"""Checks of problem set 1, for the student: the graded tests use other values."""
import functools

import torch

from ..decoding import Draft, Sampling
from .decode import ToyCache, ToyModel
from .distribution import table
from .report import check


class Wanderer(ToyModel):
    """A toy like chapter 01's whose text doesn't settle on one token.

    Attributes:
        reads: (tokens in the cache, tokens fed) of each forward.
    """

    def __init__(self, end_token_ids=()):
        super().__init__()
        self.end_token_ids, self.reads = end_token_ids, []

    def forward(self, tokens, cache):
        """LongTensor[T] -> FloatTensor[T, 10]; the cache grows by T."""
        self.reads.append((cache.length, len(tokens)))
        self.positions += len(tokens)
        logits = torch.zeros(len(tokens), 10)
        for row, token in zip(logits, tokens.tolist()):
            cache.tokens.append(token)
            state = 1
            for seen in cache.tokens:  # hangs on all tokens and on their order
                state = (31 * state + seen + 7) % 997
            row[state % 10] = 2.0
            row[state // 10 % 10] += 1.0
        return logits


class ScriptedDrafter:
    """Guesses what comes next in a given text, wrongly at some places.

    Attributes:
        asked: the k of each proposal.
        given: the guesses of each proposal, lists.
        resets: how often the drafter was reset.
    """

    def __init__(self, text, wrong=()):
        self.script = [(token + 1) % 10 if place in wrong else token
                       for place, token in enumerate(text)]
        self.asked, self.given, self.resets = [], [], 0

    def reset(self):
        """Counts the call; there is nothing to forget."""
        self.resets += 1

    def propose(self, sequence, k, sampling, generator):
        """Draft of k point masses, or fewer at the end of the text."""
        self.asked.append(k)
        self.given.append(self.script[len(sequence):len(sequence) + k])
        return Draft(torch.tensor(self.given[-1], dtype=torch.long))


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


def check_draft_tokens(function):
    """Checks draft_tokens(model, cache, sequence, k, sampling, u); True if right."""
    @functools.wraps(function)
    def watched(text, cached, u, sampling):
        model, cache = Wanderer(), ToyCache()
        cache.tokens = text[:cached]
        draft = function(model, cache, torch.tensor(text), len(u), sampling,
                         torch.tensor(u))
        if not isinstance(draft, Draft):
            return draft
        tokens = draft.tokens.tolist()
        at_q = [round(draft.probs[i, x].item(), 4) for i, x in enumerate(tokens)]
        return tokens, at_q, f"{cache.length} in the cache", f"{model.positions} fed"

    return check(watched, [
        (([3, 1], 1, [0.5], Sampling(0)), ([2], [1.0], "2 in the cache", "1 fed"),
         "the cache lacks the last token of the text only: feed that, then draw."),
        (([3, 1], 1, [0.95, 0.05], Sampling()),
         ([9, 0], [0.0552, 0.0552], "3 in the cache", "2 fed"),
         "each guess is drawn by its own u, not taken by its rank; the last one is "
         "fed to nobody."),
        (([3, 1, 2], 1, [0.5], Sampling(0)), ([5], [1.0], "3 in the cache", "2 fed"),
         "the cache lags behind by two: both are fed, in one forward."),
        (([3, 1], 1, [0.95], Sampling(0.5)), ([8], [0.1056], "2 in the cache", "1 fed"),
         "the draft keeps to the temperature that it is given."),
        (([3, 1], 1, [0.95], Sampling(1.0, top_k=2)),
         ([8], [0.2689], "2 in the cache", "1 fed"),
         "top_k = 2: two tokens are left, in the row that is drawn from as in the one "
         "that is handed over."),
    ])


def check_speculate(function):
    """Checks speculate(target, drafter, prompt, k, ...) at temperature 0.

    Returns:
        bool, True where every case passed.
    """
    @functools.wraps(function)
    def watched(prompt, k, max_new_tokens, guesses, end_tokens):
        target, drafter = Wanderer(end_tokens), ScriptedDrafter(prompt + guesses)
        tokens = function(target, drafter, list(prompt), k, max_new_tokens,
                          Sampling(temperature=0), torch.Generator().manual_seed(0))
        return tokens, f"{target.positions} fed"

    right = [2, 5, 9, 4, 1, 0]
    return check(watched, [
        (([3, 1], 2, 6, right, ()), (right, "7 fed"),
         "all guesses are right: two rounds of two guesses and a bonus."),
        (([3, 1], 2, 4, [2, 0, 9, 4], ()), (right[:4], "6 fed"),
         "the second guess is wrong. What it left in the cache has to go."),
        (([3, 1], 4, 6, [0] * 6, ()), (right, "21 fed"),
         "no guess is right: each round commits the target's token and no guess."),
        (([3, 1], 4, 3, right, ()), (right[:3], "4 fed"),
         "three tokens are wanted: two guesses, and the one that the target adds."),
        (([3, 1], 4, 6, right, (7, 9)), (right[:3], "6 fed"),
         "9 is an end token, accepted in the middle of a round: nothing follows it."),
        (([3], 3, 2, [], ()), ([1, 2], "2 fed"),
         "the prompt has one token, and the drafter knows nothing: plain decoding."),
    ])


def check_tokens_per_round(function):
    """Checks tokens_per_round(alpha, k); True where it passes."""
    return check(function, [
        ((0.8, 1), 1.8, "one guess: the round commits 1 token or 2, on average?"),
        ((0.5, 2), 1.75, "the second guess counts only where the first one stands."),
        ((0.6, 0), 1.0, "K = 0 is plain decoding: one token a round."),
        ((1.0, 4), 5.0, "alpha = 1: all stand, and the bonus comes on top. Does your "
         "formula divide by zero there?"),
        ((0.0, 3), 1.0, "alpha = 0: the corrected token is all that is left."),
    ])
