"""Chapter 05: checks catch the plausible mistakes, cells agree with the package."""
import re

import pytest
import torch
from helpers import TableModel, generator, load_chapter, random_rule, said
from torch.nn.functional import pad

from nds_helpers.classroom.better_draft import check_bigram, check_either
from nds_helpers.decoding import (
    AdaptiveK,
    Draft,
    EitherDrafter,
    ModelDrafter,
    NGramDrafter,
    Round,
    Sampling,
    Trace,
    acceptance,
    draw,
    probabilities,
    speculative,
    uniforms,
    verify_block,
    verify_tokens,
)
from nds_helpers.decoding.verify import prefix_weights
from nds_helpers.lab import distil, drafts, theory
from nds_helpers.models import load_pair
from nds_helpers.models.borrowed import early_exit


@pytest.fixture(scope="module")
def chapter():
    """What the chapter's cells and solutions define."""
    return load_chapter(
        "05_find_a_better_draft", theory=theory, Draft=Draft, draw=draw, pad=pad,
        probabilities=probabilities, uniforms=uniforms, acceptance=acceptance,
        prefix_weights=prefix_weights, speculative=speculative, seeded=generator,
        verify_tokens=verify_tokens, Sampling=Sampling, prompt=[1])


@pytest.mark.parametrize("silent", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_gain_agrees(chapter, silent, k):
    wide = [1.0 + 0.1 * i for i in range(9)]
    for alpha, c in ((0.0, 0.3), (0.7, 0.05), (1.0, 1.0)):
        place = drafts.Place(alpha, c, silent)
        assert chapter.gain(place, k, wide) == pytest.approx(
            drafts.gain(place, k, wide), abs=1e-12)


def test_divergence_agrees(chapter):
    log_p, log_q = torch.randn(2, 3, 7, generator=generator(0)).log_softmax(-1)
    assert torch.equal(chapter.divergence(log_p, log_q),
                       distil.divergence(log_p, log_q))


def test_exits_agree_with_the_drafts_that_exit(chapter):
    target, tokens = load_pair("tiny").target, torch.arange(24).view(2, 12)
    every = list(chapter.exits(target, tokens))
    assert len(every) == target.config.layers
    assert not any(layer._forward_hooks for layer in target.layers)
    for layers in (1, 7, 15):
        expected = early_exit(target, layers).forward(tokens)
        torch.testing.assert_close(every[layers - 1], expected)
    torch.testing.assert_close(every[-1], target.forward(tokens))


def traces(count=90):
    """Random traces, easy and hard, with silent rounds; some end in many plain ones."""
    g = generator(0)
    for number in range(count):
        rate, trace = torch.rand(1, generator=g).item(), Trace()
        for r in range(number):
            k = 0 if number % 3 == 0 and r > number // 5 * (number % 5) else r % 4
            drafted = 0 if r % 5 == 0 else k
            stood = (torch.rand(drafted, generator=g) < rate).long().cumprod(0)
            accepted = int(stood.sum())
            kind = "bonus" if accepted == drafted else "corrected"
            trace.append(Round(k, [0] * drafted, accepted, kind,
                               [0] * (accepted + 1), [], []))
        yield trace


@pytest.mark.parametrize("costs", [
    [1.0, 1.1, 1.2, 1.3, 1.5], [1.0, 1.5, 2.0, 2.5], [1.0, 1.9, 2.8]])
def test_adaptive_agrees_with_the_package(chapter, costs):
    ours, theirs = chapter.adaptive(costs), AdaptiveK(costs)
    chosen = [(ours(trace), theirs(trace)) for trace in traces()]
    assert [a for a, _ in chosen] == [b for _, b in chosen]
    assert len(set(chosen)) > 1


def test_either_agrees_with_the_package(chapter):
    target = TableModel(random_rule(3))
    rounds = [speculative(target, make(NGramDrafter(3, 2), ModelDrafter(
                  TableModel(random_rule(4)))), [1], k=3, max_new_tokens=60).trace
              for make in (chapter.Either, EitherDrafter)]
    ours, theirs = ([(r.guesses, r.tokens) for r in trace] for trace in rounds)
    assert ours == theirs


def test_asked_along_counts_right_wrong_and_silent(chapter):
    # Behind the second 1 comes the 2 that was seen, behind the third it doesn't.
    ids = torch.tensor([1, 2, 1, 2, 1, 3])
    assert chapter.asked_along(NGramDrafter(1), ids) == (2 / 5, 1 / 5)


def test_both_rules_count_what_the_rules_keep(chapter):
    """The averages that it notes are those of real rounds, and the first is shared."""
    target = TableModel(random_rule(1))
    drafter = ModelDrafter(TableModel(random_rule(2)))
    chapter.both_rules.__globals__["target"] = target
    token, block = chapter.both_rules(drafter, 1.0, 3)
    assert token[0] == pytest.approx(block[0]) and (block >= token - 1e-6).all()
    for expected, rule in ((token, verify_tokens), (block, verify_block)):
        rounds = Trace()
        for seed in range(12):
            rounds += speculative(target, drafter, [1], k=3, max_new_tokens=90,
                                  generator=generator(seed), verify=rule).trace[:-3]
        rate = rounds.summary()["committed_per_round"]
        assert rate == pytest.approx(float(expected[-1]), abs=0.3)


def test_counting_tells_the_block_from_the_token_rule(chapter):
    target = torch.tensor([1, 2, 2, 4]) / 9
    shares, rates = zip(*(chapter.first_two(rule, 1500)
                          for rule in (verify_tokens, verify_block)))
    for share in shares:
        assert (share - target).abs().max() < 0.05
    assert rates[1] > rates[0]


@pytest.mark.parametrize("check, name", [(check_either, "Either"),
                                         (check_bigram, "Bigram")])
def test_solutions_pass(chapter, check, name, capsys):
    assert said(check, getattr(chapter, name), capsys).startswith("Passed")


class Unsolved:
    """An exercise that nobody has solved yet."""

    def __init__(self, *given):
        pass

    def reset(self):
        raise NotImplementedError

    def propose(self, sequence, k, sampling, generator):
        raise NotImplementedError


@pytest.mark.parametrize("check", [check_either, check_bigram])
def test_stub_is_not_yet(check, capsys):
    assert "still to be written" in said(check, Unsolved, capsys)


class Either:
    """The right answer; wrong ones change a part of it."""

    def __init__(self, first, second):
        self.first, self.second = first, second

    def reset(self):
        self.first.reset()
        self.second.reset()

    def propose(self, *asked):
        draft = self.first.propose(*asked)
        return draft if len(draft.tokens) else self.second.propose(*asked)


class OnlyFirst(Either):
    def propose(self, *asked):
        return self.first.propose(*asked)


class OnlySecond(Either):
    def propose(self, *asked):
        return self.second.propose(*asked)


class AsksBoth(Either):
    def propose(self, *asked):
        one, two = self.first.propose(*asked), self.second.propose(*asked)
        return one if len(one.tokens) else two


class TheLonger(Either):
    def propose(self, *asked):
        one, two = self.first.propose(*asked), self.second.propose(*asked)
        return one if len(one.tokens) >= len(two.tokens) else two


class OnlyWhereFull(Either):
    def propose(self, sequence, k, *rest):
        draft = self.first.propose(sequence, k, *rest)
        return draft if len(draft.tokens) == k else self.second.propose(
            sequence, k, *rest)


class LooksAtTheTokens(Either):
    def propose(self, *asked):
        draft = self.first.propose(*asked)
        return draft if draft.tokens.any() else self.second.propose(*asked)


class OtherK(Either):
    def propose(self, sequence, k, *rest):
        draft = self.first.propose(sequence, k, *rest)
        return draft if len(draft.tokens) else self.second.propose(
            sequence, k + 1, *rest)


class OtherSampling(Either):
    def propose(self, sequence, k, sampling, generator):
        draft = self.first.propose(sequence, k, sampling, generator)
        return draft if len(draft.tokens) else self.second.propose(
            sequence, k, Sampling(), generator)


class ResetsOne(Either):
    def reset(self):
        self.first.reset()


class ResetsNone(Either):
    def reset(self):
        pass


class OnlyTokens(Either):
    def propose(self, *asked):
        return super().propose(*asked).tokens


class LosesProbs(Either):
    def propose(self, *asked):
        return Draft(super().propose(*asked).tokens)


class OtherProbs(Either):
    def propose(self, sequence, k, *rest):
        draft = super().propose(sequence, k, *rest)
        return Draft(draft.tokens, torch.ones(len(draft.tokens), 10))


class FillsUp(Either):
    def propose(self, sequence, k, *rest):
        draft = self.first.propose(sequence, k, *rest)
        if len(draft.tokens) == k:
            return draft
        more = self.second.propose(torch.cat([sequence, draft.tokens]),
                                   k - len(draft.tokens), *rest)
        both = torch.cat([draft.tokens, more.tokens])
        return Draft(both) if len(draft.tokens) else more


class AsksTheTokens(Either):
    def propose(self, *asked):
        draft = self.first.propose(*asked)
        if draft.tokens:
            return draft
        return self.second.propose(*asked)


class AsksTheProbs(Either):
    def propose(self, *asked):
        draft = self.first.propose(*asked)
        return self.second.propose(*asked) if draft.probs is None else draft


class NeverReturns(Either):
    def propose(self, *asked):
        draft = super().propose(*asked)
        if not len(self.first.propose(*asked).tokens):
            self.first = self.second
        return draft


class ChangesTheText(Either):
    def propose(self, sequence, *rest):
        draft = super().propose(sequence, *rest)
        sequence[-1] = 0
        return draft


@pytest.mark.parametrize("wrong, words", [
    (NeverReturns, "ask it anew"),
    (ChangesTheText, "belongs to the caller"),
    (OnlyFirst, "Who is asked then"),
    (OnlySecond, "so they are the proposal"),
    (AsksBoth, "take its time for nothing"),
    (TheLonger, "take its time for nothing"),
    (OnlyWhereFull, "don't fill up"),
    (FillsUp, "don't fill up"),
    (LooksAtTheTokens, "0 is a token"),
    (AsksTheTokens, "in your line \\d+: if draft.tokens:\n$"),
    (AsksTheProbs, "so its Draft has no probs"),
    (OtherK, "on as they are"),
    (OtherSampling, "on as they are"),
    (ResetsOne, "before each new text"),
    (ResetsNone, "before each new text"),
    (OnlyTokens, "a Draft holds tokens and probs"),
    (LosesProbs, "carries q too"),
    (OtherProbs, "carries q too")])
def test_wrong_either(wrong, words, capsys):
    text = said(check_either, wrong, capsys)
    assert text.startswith("Not yet") and re.search(f"Hint: .*{words}", text)


class ByName(Either):
    def propose(self, sequence, k, sampling, generator):
        draft = self.first.propose(sequence, k=k, sampling=sampling,
                                   generator=generator)
        return draft if len(draft.tokens) else self.second.propose(
            sequence=sequence.clone(), k=k, sampling=sampling, generator=generator)


class Copies(Either):
    def propose(self, *asked):
        draft = super().propose(*asked)
        return Draft(draft.tokens, draft.probs)


@pytest.mark.parametrize("right", [Either, ByName, Copies])
def test_right_either(right, capsys):
    assert said(check_either, right, capsys).startswith("Passed")


@pytest.mark.parametrize("check", [check_either, check_bigram])
@pytest.mark.parametrize("given", [Either(None, None), None])
def test_a_class_is_wanted(check, given, capsys):
    assert "wants your class itself" in said(check, given, capsys)


class Bigram:
    """The right answer; wrong ones change a part of it."""

    def __init__(self, logits):
        self.logits = logits

    def reset(self):
        pass

    def propose(self, sequence, k, sampling, generator):
        last, tokens, rows = int(sequence[-1]), [], []
        for u in self.numbers(k, generator).tolist():
            row = self.row(last, sampling)
            tokens.append(self.choose(row[0], u))
            last = self.after(last, tokens)
            rows.append(row)
        return self.finished(torch.tensor(tokens), torch.cat(rows))

    def numbers(self, k, generator):
        return uniforms(k, generator)

    def row(self, last, sampling):
        return probabilities(self.logits[last:last + 1], sampling)

    def choose(self, row, u):
        return draw(row, u)

    def after(self, last, tokens):
        return tokens[-1]

    def finished(self, tokens, rows):
        return Draft(tokens, rows)


class NeverMovesOn(Bigram):
    def after(self, last, tokens):
        return last


class TakesTheLikeliest(Bigram):
    def choose(self, row, u):
        return int(row.argmax())


class WithoutProbs(Bigram):
    def finished(self, tokens, rows):
        return Draft(tokens)


class RowsAreLogits(Bigram):
    def finished(self, tokens, rows):
        return Draft(tokens, self.logits[tokens])


class ForgetsTheTemperature(Bigram):
    def row(self, last, sampling):
        return super().row(last, Sampling())


class ClaimsAnotherTemperature(Bigram):
    def row(self, last, sampling):
        return super().row(last, Sampling())

    def finished(self, tokens, rows):
        return Draft(tokens, rows ** 2 / (rows ** 2).sum(-1, keepdim=True))


class Columns(Bigram):
    def row(self, last, sampling):
        return probabilities(self.logits[:, last][None], sampling)


class OneNumberForAll(Bigram):
    def numbers(self, k, generator):
        return uniforms(1, generator).repeat(k)


class TheSameEachTime(Bigram):
    def numbers(self, k, generator):
        return uniforms(k, torch.Generator().manual_seed(0))


class ChanceOfItsOwn(Bigram):
    def numbers(self, k, generator):
        return torch.rand(k)


class OneGuess(Bigram):
    def finished(self, tokens, rows):
        return Draft(tokens[:1], rows[:1])


class RowsBelongToTheNext(Bigram):
    def finished(self, tokens, rows):
        return Draft(tokens, rows.roll(-1, 0))


class Bends(Bigram):
    def propose(self, sequence, *rest):
        draft = super().propose(sequence, *rest)
        sequence[-1] = 0
        return draft


class Exact(Bigram):
    def finished(self, tokens, rows):
        return Draft(tokens, rows.double())


def test_a_bigram_in_double_precision_is_right(capsys):
    assert said(check_bigram, Exact, capsys).startswith("Passed")


@pytest.mark.parametrize("wrong", [
    Bends, NeverMovesOn, TakesTheLikeliest, WithoutProbs, RowsAreLogits, Columns,
    ForgetsTheTemperature, ClaimsAnotherTemperature, OneNumberForAll, TheSameEachTime,
    ChanceOfItsOwn, OneGuess, RowsBelongToTheNext])
def test_wrong_bigram(wrong, capsys):
    text = said(check_bigram, wrong, capsys)
    assert text.startswith("Not yet") and "Hint" in text
    assert said(check_bigram, Bigram, capsys).startswith("Passed")
