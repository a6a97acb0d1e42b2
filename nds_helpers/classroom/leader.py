"""Checks of chapter 09: a leader's round, softmax over slices, a draw over slices.

The student's functions run on simulated ranks. What counts is each rank's result,
and for slices also how much was sent.
"""
from functools import wraps

import torch

from ..decoding import Draft, Sampling, probabilities, verify_tokens
from .on_ranks import as_lists, on_ranks
from .report import check

FEW, MANY = "sent a few numbers", "sent whole slices"


def check_one_round(one_round, leader_type):
    """Checks `one_round(me, shard, cache, ids, k, leader)`; True where it passes.

    Args:
        one_round: the student's function.
        leader_type: the chapter's Leader, of which only rank 0 gets one.
    """
    def each(me, guesses, seed):
        leader = None
        if me.rank == 0:
            leader = leader_type(Guesser(guesses), Sampling(), generator(seed))
        cache = Cache(TEXT[:-1])
        ids = one_round(me, Shard(me.group), cache, torch.tensor(TEXT), K, leader)
        return torch.as_tensor(ids), cache.tokens

    cases = [
        (2, [2, 2, 2, 1], 3, "all ranks need the same text afterwards, and a cache one "
                             "token shorter. Who decides, and who is told?"),
        (2, [2, 2, 2, 1], 0, "rejected guesses have to leave the cache of every rank, "
                             "even where none stands; one token is committed then."),
        (3, [4, 1], 39, "where every guess stands, the bonus follows all of them. A "
                        "drafter may propose fewer than k."),
        (2, [], 2, "a round without a guess commits one token: the target's own."),
        (3, [5, 1, 0, 2], 25, "nothing here depends on the number of ranks."),
    ]
    return check(results_of(one_round, each), [
        ((size, guesses, seed), [expected_round(guesses, seed)] * size, hint)
        for size, guesses, seed, hint in cases])


def check_softmax_slice(softmax_slice):
    """Checks `softmax_slice(group, logits) -> FloatTensor[R, W]`; True if it passes."""
    def each(me, slices):
        p = softmax_slice(me.group, slices[me.rank])
        return p, sent(me.group, 24 * me.size * len(p))

    cases = [
        ([table([1, 2], [0, 1]), table([3, 0], [1, 1])],
         "a row sums to 1 over all slices together, so each rank divides by the same "
         "number, and that number needs all ranks."),
        ([table([1000, 999]), table([998, 1000])],
         "exp(1000) is inf. Subtract the row's largest first."),
        ([table([-1000, -1001]), table([3, 2])],
         "what one rank calls the largest isn't the row's: with a largest of its own "
         "on each rank, the sums don't fit together."),
        ([table([1], [9]), table([2, 0], [0, 9]), table([4], [2])],
         "slices may have different widths, and there may be any number of ranks."),
        ([table(range(60)), table(range(60))],
         "two exchanges of one number a row do it. The slices stay where they are."),
    ]
    return check(results_of(softmax_slice, each), [
        ((len(slices), slices), [[p, FEW] for p in softmax_in_slices(slices)], hint)
        for slices, hint in cases])


def check_draw_slice(draw_slice):
    """Checks `draw_slice(group, weights, start, u) -> int`; True where it passes."""
    def each(me, slices, u):
        start = sum(map(len, slices[:me.rank]))
        token = draw_slice(me.group, slices[me.rank], start, u)
        return token, sent(me.group, 24 * me.size)

    tenths = [row(0.1, 0.3), row(0.2, 0.4)]
    cases = [
        (tenths, 0.3, 1, "every rank needs the token, also where its slice lacks it."),
        (tenths, 0.95, 3, "the point lies in the second slice: measure it from where "
                          "that slice begins, and count the words before it."),
        ([2 * w for w in tenths], 0.5, 2,
         "weights needn't sum to 1: the point is u times the total over all slices."),
        ([row(0.5, 0.25), row(0.25, 1.0)], 0.375, 2,
         "a point on the border belongs to the next slice, as everywhere on the "
         "ruler: the first word whose running sum passes the point."),
        ([row(0.5, 0.5), row(0.0, 0.0), row(1.0)], 0.5, 4,
         "a slice may weigh nothing, and then it never owns the point."),
        ([row(*[0.0, 1.0] * 40), row(*[1.0] * 80)], 0.905, 148,
         "the ranks need each other's totals, one number each, and no weights."),
    ]
    return check(results_of(draw_slice, each), [
        ((len(slices), slices, u), [[token, FEW]] * len(slices), hint)
        for slices, u, token, hint in cases])


def results_of(function, each):
    """All ranks' results of `each`, as a function named like the student's."""
    watched = on_ranks(each)

    @wraps(function)
    def run(size, *arguments):
        return list(watched(size, *arguments)[1:])

    return run


def sent(group, few):
    """Whether a rank has sent at most `few` bytes, in words."""
    return FEW if sum(call.bytes for call in group.calls) <= few else MANY


def softmax_in_slices(slices):
    """The softmax of the slices' whole rows, cut where they were, as lists."""
    widths = [s.shape[1] for s in slices]
    return as_lists(torch.cat(slices, 1).softmax(-1).split(widths, 1))


def row(*values):
    """FloatTensor[W] in float64."""
    return torch.tensor(values, dtype=torch.float64)


def table(*rows):
    """FloatTensor[R, W] in float64."""
    return torch.stack([row(*values) for values in rows])


def generator(seed):
    """A random stream of its own."""
    return torch.Generator().manual_seed(seed)


# A target for a leader's round: six words, whose logits depend on the last one only.
WORDS, TEXT, K = 6, [4, 2], 4
LAW = torch.randn(WORDS, WORDS, generator=generator(9), dtype=torch.float64)


class Shard:
    """One rank's slice of LAW as a sharded model: what the chapter's cells call."""

    end_token_ids, vocab_size = (), WORDS

    def __init__(self, group):
        width = WORDS // group.size
        self.vocabulary = range(group.rank * width, (group.rank + 1) * width)

    def hidden(self, tokens, cache=None):
        """[1, T] ids -> [1, T, WORDS], which nobody but `local_logits` looks into."""
        cache.tokens += tokens[0].tolist()
        return LAW[tokens]

    def local_logits(self, x):
        """[1, T, WORDS] -> [1, T, W]"""
        return x[..., self.vocabulary.start:self.vocabulary.stop]


class Cache:
    """A cache that holds the ids themselves."""

    def __init__(self, tokens):
        self.tokens = list(tokens)

    @property
    def length(self):
        """How many tokens it holds."""
        return len(self.tokens)

    def truncate(self, length):
        """Keeps the first `length` tokens."""
        del self.tokens[length:]


class Guesser:
    """A drafter that always proposes the same ids, as point masses."""

    def __init__(self, guesses):
        self.guesses = guesses

    def propose(self, sequence, k, sampling, generator):
        """The first k of its ids."""
        return Draft(torch.tensor(self.guesses[:k], dtype=torch.long))


def expected_round(guesses, seed):
    """The text and the cache's content after a round, on every rank."""
    window = torch.tensor(TEXT[-1:] + guesses)
    verdict = verify_tokens(probabilities(LAW[window], Sampling()), Draft(window[1:]),
                            generator(seed))
    text = TEXT + guesses[:verdict.accepted] + [verdict.next_token]
    return [text, text[:-1]]
