"""Verification over slices: rank 0 decides, every rank does its part of the sums.

The rules themselves are `verify_tokens` and `verify_block`, unchanged: rank 0 hands
them a `Slices` where they expect p, and whatever they ask of it becomes a small
message to the others.
"""
import math

import torch

from ..decoding.sampling import check_total, invert
from ..decoding.verify import Verdict, at_drafted, conclude, surplus

SURPLUS, DRAW = 0, 1  # what rank 0 can ask the others to do with it


class Slices:
    """One round's probabilities, target's and draft's, in slices of the vocabulary.

    Args:
        p: FloatTensor[k+1, W], this rank's slice, from `sliced_probabilities`.
        draft: Draft; its tokens are the same on every rank.
        at_q: FloatTensor[k], float64, q at the drafted tokens.
        q_from: "tokens" where the draft is a point mass, "here" where every rank has
            draft.probs, "rank 0" where only that one has them.
        group: Group of the ranks that hold the slices.
        sizes: W of every rank.
    """

    def __init__(self, p, draft, at_q, q_from, group, sizes):
        self.p, self.draft, self.at_q, self.q_from = p, draft, at_q, q_from
        self.group, self.sizes = group, sizes
        self.start = sum(sizes[:group.rank])
        self.at_p = self._at_drafted()

    def follow(self):
        """What the ranks other than 0 do: their part, until a token is drawn.

        Returns:
            Verdict, the same as rank 0's.
        """
        while True:
            task, i, u, *weights = self._message().tolist()
            if task == DRAW:
                return self._draw(int(i), u, weights[0])
            self._surplus(self.p.new_tensor(weights, dtype=torch.float64))

    def ask_surplus(self, weights):
        """Rank 0's side of `surplus`."""
        if len(weights):
            self._message(SURPLUS, 0, 0.0, weights.tolist())
            return self._surplus(weights)
        return weights

    def ask_draw(self, i, u, weight):
        """Rank 0's side of `conclude`."""
        self._message(DRAW, i, u, [weight])
        return self._draw(i, u, weight)

    def _message(self, task=0, i=0, u=0.0, weights=()):
        """Rank 0's request, on every rank: FloatTensor[3 + max(1, k-1)], float64."""
        message = torch.zeros(3 + max(1, len(self.draft.tokens) - 1),
                              dtype=torch.float64)
        values = [task, i, u, *weights]
        message[:len(values)] = torch.tensor(values, dtype=torch.float64)
        return self.group.broadcast(message.to(self.p.device))

    def _at_drafted(self):
        """p at the drafted tokens, FloatTensor[k], float64; each from its owner."""
        tokens = self.draft.tokens - self.start
        mine = ((tokens >= 0) & (tokens < self.p.shape[1])).nonzero()[:, 0]
        at_p = torch.zeros(len(tokens), dtype=torch.float64, device=self.p.device)
        at_p[mine] = self.p[mine, tokens[mine]].double()
        return self.group.all_reduce(at_p) if len(tokens) else at_p

    def _surplus(self, weights):
        """Sum of max(w p - q, 0) over rows 1 to k-1, float64."""
        k = len(self.draft.tokens)
        left = weights[:k - 1, None] * self.p[1:k] - self._q(1, k)
        return self.group.all_reduce(left.clamp(min=0).sum(-1).double())

    def _q(self, first, last):
        """This rank's slice of q's rows first to last-1."""
        here = slice(self.start, self.start + self.p.shape[1])
        if self.q_from == "here":
            return self.draft.probs[first:last, here]
        if self.q_from == "rank 0":
            rows = self.draft.probs if self.group.rank == 0 else self._template()
            return self.group.scatter(rows[first:last], dim=1, sizes=self.sizes)
        hits = self.draft.tokens[first:last, None] == torch.arange(
            here.start, here.stop, device=self.p.device)
        return hits.to(self.p.dtype)

    def _template(self):
        """Shape and type of the rows that rank 0 will hand out; no memory behind it."""
        shape = len(self.draft.tokens), sum(self.sizes)
        return self.p.new_empty(1).expand(shape)

    def _draw(self, i, u, weight):
        """Draws the token behind i accepted ones by inverting the cumulative sum."""
        if i == len(self.draft.tokens):
            return Verdict(i, self._invert(self.p[i], u), "bonus")
        left = (weight * self.p[i] - self._q(i, i + 1)[0]).clamp(min=0)
        return Verdict(i, self._invert(left, u, self.p[i]), "corrected")

    def _invert(self, weights, u, otherwise=None):
        """The token at u times the total; `otherwise` where the total is 0.

        Each rank's total tells all where its slice begins on the ruler. The one that
        u points at finds the token, and the sum of all answers is that token.
        """
        cumulative = weights.cumsum(-1, dtype=torch.float64)
        own = cumulative[-1:] if len(weights) else cumulative.new_zeros(1)
        sums = self.group.all_gather(own).tolist()
        total = sum(sums)
        if not total > 0 and otherwise is not None:
            return self._invert(otherwise, u)
        check_total(total)
        point = min(u * total, math.nextafter(total, 0.0))
        owner, before = 0, 0.0
        while point >= before + sums[owner]:
            before += sums[owner]
            owner += 1
        token = torch.zeros(1, dtype=torch.long, device=weights.device)
        if owner == self.group.rank:
            token += self.start + invert(cumulative, point - before)
        return self.group.all_reduce(token).item()


@at_drafted.register
def _(p: Slices, draft):
    return p.at_p, p.at_q


@surplus.register
def _(p: Slices, draft, weights):
    return p.ask_surplus(weights)


@conclude.register
def _(p: Slices, draft, accepted, u, weight=1.0):
    return p.ask_draw(accepted, u, weight)
