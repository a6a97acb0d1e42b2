"""Slices of the vocabulary: the same probabilities, and an exact verdict on them."""
import pytest
import torch
from enumeration import EXACT, SAMPLINGS, Feed, V, honest, laws, variation
from helpers import VERIFIERS, generator

from nds_helpers.decoding import Draft, Sampling, probabilities, verify
from nds_helpers.distributed.slices import FIRST_GUESS, sliced_probabilities
from nds_helpers.distributed.verdict import Slices
from nds_helpers.parallel import simulate

MANY = [Sampling(0.0), Sampling(1.0), Sampling(0.3), Sampling(1.0, top_k=1),
        Sampling(0.8, top_k=7), Sampling(1.0, top_k=500), Sampling(1.0, top_p=0.5),
        Sampling(2.0, top_p=0.999), Sampling(1.0, top_p=1e-9),
        Sampling(1.2, top_k=40, top_p=0.7)]


def edges(width, size):
    """Where uneven slices begin and end; with few words some are empty."""
    return [width * r * r // size**2 for r in range(size)] + [width]


def sliced(logits, sampling, size):
    """`sliced_probabilities` on simulated ranks, put together again."""
    cuts = edges(logits.shape[1], size)

    def work(me):
        local = logits[:, cuts[me.rank]:cuts[me.rank + 1]]
        return sliced_probabilities(local, sampling, me.group, cuts[me.rank])

    return torch.cat(simulate(work, size), 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("sampling", MANY, ids=str)
@pytest.mark.parametrize("width", [3, 50, 1000])
def test_slices_equal_the_whole(size, sampling, width):
    for logits in (4 * torch.randn(3, width, generator=generator(width)).double(),
                   torch.randn(3, width, generator=generator(width)).round()):  # ties
        whole = probabilities(logits, sampling)
        parts = sliced(logits, sampling, size)
        assert parts.dtype == whole.dtype
        assert torch.equal(parts > 0, whole > 0)
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)
        if logits.dtype == torch.float64:
            torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-14)


def test_a_nucleus_wider_than_the_first_guess():
    logits = torch.zeros(2, 5 * FIRST_GUESS, dtype=torch.float64)
    sampling = Sampling(1.0, top_p=0.95)
    assert torch.equal(sliced(logits, sampling, 2) > 0,
                       probabilities(logits, sampling) > 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(1.0)], ids=str)
def test_logits_that_are_not_finite_are_refused_on_every_rank(bad, sampling):
    logits = torch.tensor([[0.0, bad, 1.0, 2.0]])

    def work(me):
        local = logits[:, 2 * me.rank:2 * me.rank + 2]
        p = sliced_probabilities(local, sampling, me.group, 2 * me.rank)
        slices = Slices(p, Draft(torch.tensor([], dtype=torch.long)), [], "tokens",
                        me.group, [2, 2])
        with pytest.raises(ValueError, match="can't draw a token"):
            slices.ask_draw(0, 0.5, 1.0) if me.rank == 0 else slices.follow()

    simulate(work, 2)


class SlicedFeed(Feed):
    """The enumeration's outcome, from slices: every rank goes through it in step."""

    def __init__(self, me, q_from):
        self.me, self.q_from = me, q_from
        self.cuts = edges(V, me.size)

    def outcome(self, verifier, p, draft, u):
        me, here = self.me, slice(*self.cuts[self.me.rank:self.me.rank + 2])
        at_q = torch.ones(len(draft.tokens), dtype=torch.float64)
        if draft.probs is not None:
            at_q = draft.probs.gather(1, draft.tokens[:, None])[:, 0]
        known = self.q_from == "here" or me.rank == 0
        slices = Slices(p[:, here], Draft(draft.tokens, draft.probs if known else None),
                        at_q, self.q_from, me.group,
                        [b - a for a, b in zip(self.cuts, self.cuts[1:])])
        slices._invert = self.invert
        if me.rank == 0:
            Feed.u = torch.tensor([*u, 0.123], dtype=torch.float64)
            verdict = verifier(slices, draft, None)
        else:
            verdict = slices.follow()
        return verdict.accepted, self.law, verdict.kind

    def invert(self, weights, u, otherwise=None):
        """Writes down what would be drawn from; `otherwise` where that is nothing."""
        sizes = [b - a for a, b in zip(self.cuts, self.cuts[1:])]
        whole = self.me.group.all_gather(weights, sizes=sizes)
        if not whole.sum() > 0:
            return self.invert(otherwise, u)
        self.law = (whole / whole.sum()).double().numpy()
        return int(whole.argmax())


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("q_from", ["here", "rank 0"])
@pytest.mark.parametrize("k, size", [(1, 2), (2, 3), (3, 2)])
def test_a_round_over_slices_has_exactly_the_targets_distribution(
        monkeypatch, verifier, sampling, q_from, k, size):
    monkeypatch.setattr(verify, "uniforms", lambda count, generator: Feed.u)
    law, guess = laws(1, sampling), laws(2, sampling)
    for found in simulate(lambda me: variation(SlicedFeed(me, q_from), verifier, law,
                                               honest(guess), k), size):
        assert found < EXACT


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_certain_draft_over_slices_is_exact(monkeypatch, verifier, sampling):
    monkeypatch.setattr(verify, "uniforms", lambda count, generator: Feed.u)
    law = laws(1, sampling)

    def step(prefix):
        one = torch.eye(V, dtype=torch.float64)[(sum(prefix) + len(prefix)) % V].numpy()
        return one, one

    for found in simulate(lambda me: variation(SlicedFeed(me, "tokens"), verifier, law,
                                               step, 2, certain=True), 2):
        assert found < EXACT


@pytest.mark.parametrize("u", [0.0, 0.2, 0.5, 0.75, 1 - 2**-53])
@pytest.mark.parametrize("weights", [
    [.25, .25, 0, .5, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0], [.5, .5, 0, 0, 0],
    [0, 1e-300, 0, 0, 0]])
def test_the_same_number_draws_the_same_token(u, weights):
    """DESIGN 3.7: whole rows and slices of rows, at every edge."""
    p = torch.tensor([weights], dtype=torch.float64)
    expected = verify.draw(p[0], u)
    for size in (1, 2, 3, 4):
        cuts = edges(V, size)

        def work(me, cuts=cuts):
            slices = Slices(p[:, cuts[me.rank]:cuts[me.rank + 1]],
                            Draft(torch.tensor([], dtype=torch.long)), [], "tokens",
                            me.group, [b - a for a, b in zip(cuts, cuts[1:])])
            return slices._invert(slices.p[0], u)

        assert simulate(work, size) == [expected] * size
