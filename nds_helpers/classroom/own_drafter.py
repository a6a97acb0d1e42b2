"""What a student's own drafter is examined for, and where it stands.

Four questions, each answered with one word where all is well: does it keep to the
contract, is its q what it draws from, does reset() make it forget, and does it guess
better than n-grams.
"""
import functools
import time

import torch

from ..decoding import NGramDrafter, Sampling, autoregressive
from ..decoding.drafters import common_prefix
from ..decoding.speculative import propose
from ..models import load_pair
from ..models.pairs import DATA
from .leader import generator
from .report import check

K, LENGTH = 4, 60  # guesses a round; tokens of each greedy text
PROMPTS = ("ROMEO.\nO, she doth teach",
           "JULIET.\nGood night, good night! Parting is such",
           "KING HENRY.\nOnce more unto the",
           "HAMLET.\nTo be, or not to be")
MARGIN = 0.15  # tokens a round by which a drafter has to beat n-grams


@functools.cache
def tiny():
    """The tiny pair, loaded once."""
    return load_pair("tiny")


@functools.cache
def corpus():
    """A text that draft and target have not been trained on: a tuple of ids."""
    text = (DATA / "heldout.txt").read_text(encoding="utf-8")
    return tuple(tiny().encode(text).tolist())


def decoded(ids):
    """Ids as text."""
    return tiny().decode(ids)


@functools.cache
def greedy_texts(prompts=PROMPTS):
    """What the tiny target writes behind each prompt at temperature 0.

    Returns:
        list of (prompt, new), lists of ids.
    """
    pair, texts = tiny(), []
    for prompt in map(pair.encode, prompts):
        result = autoregressive(pair.target, prompt, max_new_tokens=LENGTH,
                                sampling=Sampling(0))
        texts.append((prompt.tolist(), result.tokens.tolist()))
    return texts


def proposed(drafter, ids, k, sampling, stream):
    """A proposal of a drafter that keeps to the contract, or else a ValueError."""
    return propose(drafter, torch.tensor(ids), k, sampling, stream, tiny().target)


def replay(drafter, prompt, new, k=K):
    """Lets a drafter guess along while a known greedy text is written again.

    Args:
        drafter: is reset first.
        prompt, new: lists of ids.
        k: at most so many guesses a round.

    Returns:
        list of (guesses: list of ids, accepted: int), one a round.
    """
    drafter.reset()
    rounds, done, stream = [], 0, generator(0)
    while done < len(new):
        asked = min(k, len(new) - done - 1)
        guesses = proposed(drafter, prompt + new[:done], asked, Sampling(0),
                           stream).tokens.tolist()
        rounds.append((guesses, common_prefix(guesses, new[done:])))
        done += rounds[-1][1] + 1
    return rounds


def committed(drafter, texts):
    """Mean tokens committed a round, over texts of (prompt, new)."""
    return sum(len(new) / len(replay(drafter, prompt, new))
               for prompt, new in texts) / len(texts)


def contract(make, texts):
    """Whether proposals are what a drafter may propose: "kept", or what is wrong."""
    drafter, guesses = make(), 0
    for prompt, new in texts:
        ids = prompt + new
        for n, k, sampling in [(1, 4, Sampling()), (2, 1, Sampling(0)),
                               (len(ids) // 2, 2, Sampling(0.7)),
                               (len(ids), 4, Sampling(0)), (len(ids), 1, Sampling())]:
            drafter.reset()
            draft = proposed(drafter, ids[:n], k, sampling, generator(n))
            guesses += len(draft.tokens)
    return "kept" if guesses else "it never guesses"


def honesty(make, texts, repeats=150):
    """Whether q is what guesses are drawn from: "honest", or how one can tell.

    A token's count, less the sum of its q over all rows, has mean 0 and a variance
    of the sum of q (1 - q). Five deviations aren't chance.
    """
    drafter, width = make(), tiny().target.vocab_size
    drawn, expected, variance = torch.zeros(3, width, dtype=torch.float64)
    for prompt, new in texts:
        certain = None
        for seed in range(repeats):
            drafter.reset()
            draft = proposed(drafter, prompt + new, K, Sampling(), generator(seed))
            if draft.probs is None:
                certain = draft.tokens if certain is None else certain
                if not torch.equal(certain, draft.tokens):
                    return "no probs, although its guesses are drawn"
                continue
            q = draft.probs.double()
            if (q.gather(1, draft.tokens[:, None]) == 0).any():
                return "a guess has probability 0 in its row"
            drawn += torch.bincount(draft.tokens, minlength=width)
            expected += q.sum(0)
            variance += (q * (1 - q)).sum(0)
    far = (drawn - expected).abs() / (variance + 1).sqrt()
    if far.max() < 5:
        return "honest"
    worst = int(far.argmax())
    return (f"token {worst} came {int(drawn[worst])} times, where its probs sum to "
            f"{expected[worst]:.0f}")


def forgetting(make, texts):
    """Whether guesses depend on anything from before reset(): "forgets" if not."""
    first, *others = texts
    drafter = make()
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        alone = replay(make(), *first)
        for other in others:
            replay(drafter, *other)
        torch.manual_seed(2)
        again = replay(drafter, *first), replay(drafter, *first)
    same = all(rounds == alone for rounds in again)
    return "forgets" if same else "other guesses than a fresh drafter's"


def score(make, texts):
    """Whether it beats n-grams by enough: "better", or both figures."""
    own, ngrams = committed(make(), texts), committed(NGramDrafter(), texts)
    if own >= ngrams + MARGIN:
        return "better"
    return f"{own:.2f} tokens a round, n-grams {ngrams:.2f}"


def check_drafter(drafter_type):
    """Checks a drafter class that takes the corpus; True where it passes.

    Args:
        drafter_type: drafter_type(corpus) makes a drafter.
    """
    exams = {"contract": contract, "q": honesty, "reset": forgetting, "score": score}

    @functools.wraps(drafter_type, updated=())
    def watched(exam):
        return exams[exam](lambda: drafter_type(corpus()), greedy_texts())

    return check(watched, [
        (("contract",), "kept", "propose returns a Draft of at most k ids, as a "
         "LongTensor; a text may have a single token. And it has to guess something."),
        (("q",), "honest", "probs[i] is the row that token i was drawn from, with the "
         "generator; None says that there was no chance in it."),
        (("reset",), "forgets", "after reset() a drafter behaves like a new one. And "
         "all chance comes from the generator that it is given."),
        (("score",), "better", "look far back in the text, and where that knows "
         f"nothing, in the corpus. {MARGIN} tokens a round more are wanted."),
    ])


def leaderboard(drafter):
    """Prints what a drafter is worth on this machine; it gives no points.

    alpha is measured on greedy texts, the costs of a guess and of a target's forward
    by the clock; their speedup is chapter 04's formula.

    Args:
        drafter: an object with propose and reset.
    """
    from ..lab.measure import forward_seconds  # plots come with it; ranks need none
    from ..lab.theory import speedup

    began, rounds = time.perf_counter(), []
    for prompt, new in greedy_texts():
        rounds += replay(drafter, prompt, new)
    guesses = sum(len(drafted) for drafted, _ in rounds)
    a_guess = (time.perf_counter() - began) / max(guesses, 1)
    accepted = sum(count for _, count in rounds)
    rejected = sum(count < len(drafted) for drafted, count in rounds)
    alpha = accepted / max(accepted + rejected, 1)
    one, wide = (forward_seconds(tiny().target, width).median for width in (1, K + 1))
    gain = speedup(alpha, K, a_guess / one, wide / one)
    print(f"{committed(drafter, greedy_texts()):.2f} tokens a round at K = {K}")
    print(f"alpha {alpha:.2f}, c {a_guess / one:.3f}, expected speedup {gain:.2f}"
          + (": it loses here" if gain < 1 else ""))
