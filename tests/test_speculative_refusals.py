"""The speculative loop: failures, refusals, and drafters that propose little."""
import numpy as np
import pytest
import torch
from helpers import Proposer, Recorder, TableModel, random_rule
from speculation import COUNTING, DRAFTERS, GREEDY, WARM, plain, run, target

from nds_helpers.decoding import (
    Draft,
    ModelDrafter,
    NGramDrafter,
    speculative_rounds,
    verify_tokens,
)


@pytest.mark.parametrize("n", [2, 3, 12])
@pytest.mark.parametrize("part", ["verify", "forward"])
def test_a_failure_inside_verification_leaves_the_cache_as_long_as_it_was(n, part):
    """CASES 12: near max_new_tokens too."""
    model = Recorder(TableModel(COUNTING))
    drafter = Proposer(lambda ids, k: [(ids[-1] + 1 + i) % 5 for i in range(k)])
    working = model.model.forward

    def verify(p, draft, g):
        if part == "verify" and (n < 4 or len(draft.tokens) < 3):
            raise RuntimeError("out of memory")
        return verify_tokens(p, draft, g)

    def forward(tokens, cache):
        out = working(tokens, cache)
        if part == "forward" and len(model.calls) > (1 if n < 4 else 3):
            raise RuntimeError("out of memory")
        return out

    model.model.forward = forward
    text = [0, 1, 2]
    with pytest.raises(RuntimeError, match="out of memory"):
        for r in speculative_rounds(model, drafter, text[:], k=3, max_new_tokens=n,
                                    sampling=GREEDY, verify=verify):
            text += r.tokens
            if n == 12 and len(text) == 11 and part == "verify":
                drafter.choose = lambda ids, k: [0]
    assert model.caches[0].tokens == text[:-1]


PROBS = torch.full((2, 5), 0.2, dtype=torch.float64)


@pytest.mark.parametrize("choice,message", [
    ([1, 2, 3, 4], "proposed 4 tokens, and k was 3"),
    ([1, 5], "an id outside the target's 5"), ([-1], "an id outside the target's 5"),
    (([1], PROBS), r"shape \(2, 5\), for 1 tokens of 5"),
    (([1, 2, 3], PROBS), r"shape \(2, 5\), for 3 tokens of 5"),
    (([1, 2], PROBS[0]), r"shape \(5,\), for 2 tokens"),
    (([1, 2], torch.full((2, 6), 1 / 6)), r"shape \(2, 6\), for 2 tokens of 5")],
    ids=str)
def test_a_drafter_that_breaks_its_contract_is_told_so(choice, message):
    model = Recorder(target())
    with pytest.raises(ValueError, match=message):
        run(model, Proposer(lambda ids, k: choice), (1,))
    assert not model.calls


@pytest.mark.parametrize("tokens,probs,message", [
    ([1], None, "tokens are a LongTensor.k., not list"), (None, None, "not NoneType"),
    (np.array([1]), None, "not ndarray"), (torch.tensor(1), None, r"shape \(\)"),
    (torch.tensor([[1]]), None, r"shape \(1, 1\)"),
    (torch.tensor([1.0]), None, "not torch.float32"),
    (torch.tensor([1, 2]), PROBS.tolist(), "probs must be a FloatTensor.* not list"),
    (torch.tensor([1, 2]), PROBS * 1.01, "row 0 .* isn't a distribution: .* 1.01"),
    (torch.tensor([1, 2]), PROBS.log(), "isn't a distribution"),
    (torch.tensor([1]), torch.tensor([[0.5, 0.7, -0.2]]), "its least is -0.2"),
    (torch.tensor([1]), torch.tensor([[0.5, float("nan")]]), "it sums to nan"),
    (torch.tensor([1]), torch.tensor([[0.5, float("inf")]]), "it sums to inf")],
    ids=lambda x: str(x)[:30])
def test_a_draft_of_another_kind_is_refused_in_one_sentence(tokens, probs, message):
    drafter = Proposer(lambda ids, k: [])
    drafter.propose = lambda *request: Draft(tokens, probs)
    with pytest.raises(ValueError, match=message) as caught:
        run(target(), drafter)
    assert "\n" not in str(caught.value)


def test_a_drafter_that_returns_no_draft_is_told_so():
    drafter = Proposer(lambda ids, k: [])
    drafter.propose = lambda *request: None
    with pytest.raises(ValueError, match="must return a Draft"):
        run(target(), drafter)


def test_a_drafter_that_writes_into_the_text_changes_nothing():
    class Scribbler(NGramDrafter):
        def propose(self, sequence, k, sampling, generator):
            sequence.fill_(0)
            return Draft(sequence[:1])

    result = run(target(), Scribbler())
    assert result.tokens.tolist() == plain(target())


@pytest.mark.parametrize("choice", [[], [2], ([], PROBS[:0]), ([4], PROBS[:1]),
                                    ([1, 2], PROBS.float()),
                                    ([1], PROBS[:1, :3] / 0.6)],
                         ids=str)
def test_a_drafter_may_return_fewer(choice):
    result = run(target(), Proposer(lambda ids, k: choice if k > 1 else []))
    assert result.tokens.tolist() == plain(target())
    assert result.trace[0].k == 3 and result.trace[0].drafted == len(
        choice[0] if isinstance(choice, tuple) else choice)


def test_a_drafter_is_reset_once_a_generation_and_asked_only_where_it_can_help():
    drafter = Proposer(lambda ids, k: [1] * k)
    run(target(), drafter, k=lambda trace: len(trace) % 2, n=6)
    assert drafter.resets == 1 and 0 not in drafter.asked


def test_a_draft_with_a_smaller_context_leaves_the_rest_to_the_target():
    draft = Recorder(TableModel(random_rule(0), max_length=9))
    result = run(target(max_length=40), ModelDrafter(draft), k=3, n=30)
    assert result.tokens.tolist() == plain(target(), n=30)
    assert [r.drafted for r in result.trace][-5:] == [0] * 5
    assert max(cache.length for cache in draft.caches) <= 9
    long = run(target(max_length=40), ModelDrafter(draft), [1] * 20, n=5)
    assert [r.drafted for r in long.trace] == [0] * 5


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_refused(sampling, bad):
    broken = TableModel(lambda prefix: [0.0, bad, 0, 0, 0])
    for model, drafter in ((broken, NGramDrafter()), (broken, DRAFTERS["always 3"]()),
                           (target(), ModelDrafter(broken))):
        with pytest.raises(ValueError, match="logits are probably not finite"):
            run(model, drafter, sampling=sampling)
    with pytest.raises(ValueError, match="logits are probably not finite"):
        plain(broken, sampling=sampling)
