"""Checks of problem set 3, for the student: the graded tests use other values.

The ranks are simulated, up to question 4, which starts two real ones. The drafter of
question 5 is examined in own_drafter.py.
"""
import functools

import torch

from ..decoding import Draft, Sampling, speculative, verify_tokens
from ..decoding.speculative import commit
from ..distributed import RankError, Workers
from ..parallel.partitions import split_evenly
from .leader import FEW, Cache, generator, results_of, sent, table
from .on_ranks import as_lists, in_one_line
from .own_drafter import decoded, greedy_texts
from .problem_set_1 import ScriptedDrafter, Wanderer
from .report import check

RIGHT = [2, 5, 9, 4, 1, 0]  # what a Wanderer writes behind 3, 1


class WandererShard(Wanderer):
    """One rank's words of a Wanderer; every forward is a sum over all ranks.

    So ranks that have read different texts get nonsense, and ranks that read windows
    of different widths, or not as often, are found out.

    Args:
        group: Group of the ranks.
        end_token_ids: tuple of ids.
    """

    def __init__(self, group, end_token_ids=()):
        super().__init__(end_token_ids)
        self.group = group
        self.vocabulary = split_evenly(self.vocab_size, group.size)[group.rank]

    def hidden(self, tokens, cache):
        """LongTensor[1, T] -> FloatTensor[1, T, 10], the sum of all ranks' terms."""
        logits = self.forward(tokens[0], cache)
        term = torch.zeros_like(logits)
        self.local_logits(term).copy_(self.local_logits(logits))
        return self.group.all_reduce(term)[None]

    def local_logits(self, x):
        """[..., 10] -> [..., W], this rank's words."""
        return x[..., self.vocabulary.start:self.vocabulary.stop]


def argmax_on_ranks(function):
    """argmax_over on ranks, as a function of (size, slices), one slice a rank."""
    def each(me, slices):
        start = sum(s.shape[1] for s in slices[:me.rank])
        ids = function(me.group, slices[me.rank], start)
        return ids, sent(me.group, 24 * me.size * len(slices[0]))

    return results_of(function, each)


def greedy_on_ranks(function):
    """write_greedily on ranks: (size, prompt, k, max_new_tokens, guesses, ends).

    `guesses` is what rank 0's drafter takes for the text behind the prompt.
    """
    def each(me, prompt, k, max_new_tokens, guesses, ends):
        shard = WandererShard(me.group, ends)
        drafter = ScriptedDrafter(prompt + guesses) if me.rank == 0 else None
        tokens = function(me, shard, drafter, prompt, k, max_new_tokens)
        return tokens, f"{shard.positions} fed"

    return results_of(function, each)


def expected_greedy(size, prompt, k, max_new_tokens, guesses, ends):
    """What `greedy_on_ranks` gives for a right answer: as on one device."""
    target = Wanderer(ends)
    result = speculative(target, ScriptedDrafter(prompt + guesses), prompt, k=k,
                         max_new_tokens=max_new_tokens, sampling=Sampling(0))
    return [[result.tokens.tolist(), f"{target.positions} fed"]] * size


def settle_on_ranks(function):
    """settle on ranks, as a function of (size, p, q, guesses, ids, ends, seed).

    `p` has the rows that each rank sees, and rank r's generator the seed plus r.
    """
    def each(me, p, q, guesses, ids, ends, seed):
        draft = Draft(torch.tensor(guesses, dtype=torch.long),
                      q if me.rank == 0 else None)
        cache = Cache(ids + guesses)
        text = function(me, p[me.rank], draft, ids, cache, ends,
                        generator(seed + me.rank))
        return text, cache.tokens

    return results_of(function, each)


def expected_settled(size, p, q, guesses, ids, ends, seed):
    """What `settle_on_ranks` gives for a right answer: rank 0's verdict."""
    draft = Draft(torch.tensor(guesses, dtype=torch.long), q)
    text = ids + commit(draft, verify_tokens(p[0], draft, generator(seed)), ends)[0]
    return [[text, text[:-1]]] * size


def real_ranks(*calls):
    """Runs functions one after the other on the same two real ranks.

    Args:
        calls: tuples (function, its arguments behind `me`).

    Returns:
        list, every rank's result of the last one, tensors as lists.

    Raises:
        RuntimeError: a rank failed; which one and why, in one line.
    """
    with Workers(2, timeout=30, debug=True) as workers:
        try:
            for function, *arguments in calls:
                results = workers.run(function, *arguments)
        except RankError as error:
            raise in_one_line(error) from error
    return as_lists(results)


def held(me):
    """What a rank keeps in me.state, in words."""
    shard, drafter = (me.state.get(name, "missing") for name in ("shard", "drafter"))
    return [f"{type(shard).__name__} with {getattr(shard, 'vocabulary', 'no words')}",
            type(drafter).__name__]


def hold_wanderer(me, text, ends):
    """Puts a toy where question 4's write_text finds shard and drafter."""
    me.state["shard"] = WandererShard(me.group, ends)
    me.state["drafter"] = ScriptedDrafter(text) if me.rank == 0 else None


def held_after(function):
    """What two real ranks hold after settle_in(me), as a function without arguments."""
    return functools.wraps(function)(lambda: real_ranks((function,), (held,)))


def written_on_ranks(function):
    """write_text on two real ranks: (prompt, k, max_new_tokens, guesses, ends)."""
    @functools.wraps(function)
    def watched(prompt, k, max_new_tokens, guesses, ends):
        return real_ranks((hold_wanderer, prompt + guesses, ends),
                          (function, prompt, k, max_new_tokens))

    return watched


def check_argmax_over(function):
    """Checks argmax_over(group, logits, start); True where it passes."""
    return check(argmax_on_ranks(function), [
        argmax_case([table([1, 3, 2])], "one rank has all words."),
        argmax_case([table([1, 0], [5, 0]), table([2, 7], [1, 2])],
                    "row 0's largest logit is on rank 1. Which id does the second word "
                    "of that slice have? And every rank needs the answer."),
        argmax_case([table([-3, -2]), table([-1, -4])],
                    "logits may all be below zero: what do you begin with?"),
        argmax_case([table([0, 4, 1]), table([4, 2])],
                    "equal logits on two ranks: the lowest id wins, as argmax has it."),
        argmax_case([table([2, 2]), table([1, 1]), table([0, 2])],
                    "equal logits, within a slice and on two ranks."),
        argmax_case([table([0, 1], [1, 0]), table([], [])],
                    "rank 1 has no word at all, and still takes part."),
        argmax_case([table(range(60)), table(range(60))],
                    "a value and an id from each rank are enough. The slices stay "
                    "where they are."),
    ])


def argmax_case(slices, hint):
    """A case of `check_argmax_over`."""
    ids = torch.cat(slices, 1).argmax(1).tolist()
    return (len(slices), slices), [[ids, FEW]] * len(slices), hint


def check_write_greedily(function):
    """Checks write_greedily(me, shard, drafter, prompt, k, max_new_tokens).

    Returns:
        bool, True where every case passed.
    """
    cases = [
        ((1, [3, 1], 2, 6, RIGHT, ()),
         "one rank, and all guesses are right: two rounds of two guesses and a bonus."),
        ((2, [3, 1], 2, 6, RIGHT, ()),
         "rank 1 has no drafter, but it reads the same window. Who tells it the "
         "guesses, and how many they are?"),
        ((2, [3, 1], 2, 4, [2, 0, 9, 4], ()),
         "the second guess is wrong: what it left in the cache has to go, on every "
         "rank."),
        ((3, [3, 1], 4, 6, [0] * 6, ()),
         "no guess is right: each round commits the target's choice, and no guess."),
        ((2, [3, 1], 4, 3, RIGHT, ()),
         "three tokens are wanted: two guesses, and the one that the target adds."),
        ((2, [3, 1], 4, 6, RIGHT, (7, 9)),
         "9 is an end token, accepted in the middle of a round: nothing follows it."),
        ((2, [3], 3, 2, [], ()),
         "the prompt has one token, and the drafter knows nothing: plain decoding."),
    ]
    return check(greedy_on_ranks(function), [
        (case, expected_greedy(*case), hint) for case, hint in cases])


def check_settle(function):
    """Checks settle(me, p, draft, ids, cache, ends, generator); True if it passes."""
    p = table([0.2, 0.3, 0.5], [0.6, 0.2, 0.2], [0.1, 0.1, 0.8])
    q = table([0.1, 0.1, 0.8], [0.2, 0.7, 0.1])
    tie = [table([0, 1, 0], [0, 0, 1]), table([1, 0, 0], [0, 0, 1])]
    cases = [
        ((1, [p], q, [2, 0], [1], (), 0), "one rank: a verdict, then text and cache."),
        ((2, [p, p], q, [2, 1], [1], (), 3),
         "each rank has random numbers of its own. Whose count?"),
        ((2, tie, None, [1], [2, 0], (), 0),
         "rank 1 sees a near-tie the other way round. Whose p counts?"),
        ((3, [p] * 3, q, [2, 0], [0, 1], (), 4),
         "the ranks' caches have read all guesses: how much of that may stay?"),
        ((2, [p, p], None, [2, 0], [1], (2,), 6),
         "a guess that was accepted is an end token: the text ends with it."),
        ((2, [p[2:]] * 2, None, [], [0, 1], (), 1),
         "no guess at all: the token is the target's own."),
    ]
    return check(settle_on_ranks(function), [
        (case, expected_settled(*case), hint) for case, hint in cases])


def check_settle_in(function):
    """Checks settle_in(me) on two real ranks; True where it passes."""
    return check(held_after(function), [
        ((), [["ShardedDecoder with range(0, 2048)", "ModelDrafter"],
              ["ShardedDecoder with range(2048, 4096)", "NoneType"]],
         "`shard` is this rank's part of the target, with its words; `drafter` is a "
         "ModelDrafter on rank 0 and None on rank 1. Both keys, on both ranks."),
    ])


def check_write_text(function):
    """Checks write_text(me, prompt, k, max_new_tokens) on two real ranks.

    Your write_greedily does the work there: it has to be right first.

    Returns:
        bool, True where every case passed.
    """
    return check(written_on_ranks(function), [
        (([3, 1], 2, 6, RIGHT, ()), [RIGHT] * 2,
         "shard and drafter are in me.state, on every rank; both ranks take part in "
         "everything, and both return the text."),
        (([3, 1], 3, 4, [0] * 4, (9,)), [RIGHT[:3]] * 2,
         "what lies in me.state counts, whatever it is: this isn't the tiny pair."),
    ])


def check_together(settle_in, write_text):
    """Both, with the tiny pair; shows the text that two processes have written."""
    (prompt, new), *_ = greedy_texts()
    if check(functools.wraps(write_text)(lambda *given: real_ranks(
            (settle_in,), (write_text, *given))), [
                ((prompt, 4, len(new)), [new] * 2,
                 "the target's own greedy text is wanted; do the checks above pass?")]):
        print(decoded(prompt + new))
