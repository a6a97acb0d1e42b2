"""A draft on a rank of its own, which works ahead while the others verify.

Liu et al. 2024 (arXiv 2408.11850, "PEARL") let the draft go on during the target's
forward. Ours bets on the whole round: all guesses are accepted, and the bonus token
is what the draft would say there. Where the bet is lost, the draft made ahead is
thrown away and another is made, as if it had never been. So the text is the one that
a single device writes, token for token.
"""
import time
from typing import NamedTuple

import torch

from ..decoding import Draft
from ..decoding.request import end_tokens
from ..decoding.sampling import uniforms


class Ready(NamedTuple):
    """A draft made ahead, and the bet that it rests on.

    Attributes:
        ids: LongTensor[n], the text that it continues.
        k: how many tokens were wanted.
        before, after: states of the random generator around it.
        draft: Draft.
    """

    ids: torch.Tensor
    k: int
    before: torch.Tensor
    after: torch.Tensor
    draft: Draft


class Ahead:
    """A drafter that can draft the next round before this one's verdict is known.

    Args:
        drafter: the drafter that does it.
        ends: ids of the end tokens.
        length: tokens of prompt and output together, at most.
    """

    def __init__(self, drafter, ends, length):
        self.drafter, self.ends, self.length = drafter, ends, length

    def reset(self):
        """Forgets the text and the bet."""
        self.drafter.reset()
        self.ready = self.last = None

    def propose(self, sequence, k, sampling, generator):
        """The draft made ahead where the bet is won, a fresh one otherwise."""
        ready, self.ready = self.ready, None
        if ready and ready.k == k and torch.equal(ready.ids, sequence) and (
                torch.equal(ready.before, generator.get_state())):
            draft = ready.draft
            generator.set_state(ready.after)
        else:
            draft = self.drafter.propose(sequence, k, sampling, generator)
        self.last = sequence, k, draft, sampling, generator.get_state()
        return draft

    def go_on(self):
        """Drafts the round that follows if the last draft is accepted as a whole.

        The bonus token is drawn from the draft's probabilities with the very number
        that the verdict will draw it with from the target's: where the two agree
        roughly, they then mostly give the same token.
        """
        if self.last is None:  # this round had no draft
            return
        (ids, k, draft, sampling, state), self.last = self.last, None
        count, generator = len(draft.tokens), torch.Generator()
        accepted = torch.cat([ids, draft.tokens.to(ids)])
        k = min(k, self.length - len(accepted) - 2)  # behind a bonus token
        if k <= 0 or self.ended(draft.tokens):
            return
        generator.set_state(state)
        uniforms(count, generator)  # those that accept; the next one draws
        bonus = self.drafter.propose(accepted.clone(), 1, sampling, generator).tokens
        if len(bonus) == 0 or self.ended(bonus):
            return
        ids = torch.cat([accepted, bonus.to(ids)])
        generator.set_state(state)
        uniforms(count + 1, generator)  # all of the verdict's
        before = generator.get_state()
        draft = self.drafter.propose(ids.clone(), k, sampling, generator)
        self.ready = Ready(ids, k, before, generator.get_state(), draft)

    def ended(self, tokens):
        """Whether an end token is among these."""
        return any(token in self.ends for token in tokens.tolist())


class Elsewhere:
    """Stands in, on rank 0, for a target whose shards the other ranks hold.

    It owns no word of the vocabulary: its logits are 0 wide. While the others work,
    it lets the drafter work ahead.

    Args:
        facts: what `facts_of` says of the target.
        device: where the group's tensors are.

    Attributes:
        ahead: the Ahead that is called in each round; set once there is one.
        seconds: how long it took in the last round.
        vocabulary: range of the words that this rank has logits for: none.
    """

    vocabulary = range(0)

    def __init__(self, facts, device):
        self.vocab_size, self.end_token_ids = facts["vocab_size"], facts["ends"]
        self.max_length, self.ahead = facts["max_length"], None
        self._nothing = dict(dtype=getattr(torch, facts["dtype"]), device=device)

    def new_cache(self, max_length):
        """A cache of nothing but its length."""
        return Length()

    def forward(self, tokens, cache):
        """Counts a prompt: LongTensor[T]."""
        cache.length += len(tokens)

    def hidden(self, tokens, cache):
        """[1, T] -> FloatTensor[1, T, 0]; meanwhile the next round is drafted."""
        cache.length += tokens.shape[1]
        began = time.perf_counter()
        self.ahead.go_on()
        self.seconds = time.perf_counter() - began
        return torch.empty(*tokens.shape, 0, **self._nothing)

    def local_logits(self, x):
        """FloatTensor[1, T, 0], as it came."""
        return x


class Length:
    """The length of a cache that others hold."""

    def __init__(self):
        self.length = 0

    def truncate(self, length):
        """Goes back to a length."""
        self.length = length


def facts_of(model):
    """What a rank without the target must know of it: a dict that JSON can hold."""
    dtype = getattr(model, "dtype", None) or next(
        p.dtype for p in model.parameters() if p.is_floating_point())
    return {"vocab_size": model.vocab_size, "ends": list(end_tokens(model)),
            "max_length": getattr(model, "max_length", None),
            "dtype": str(dtype).removeprefix("torch.")}
