"""The draft on a rank of its own, ahead of the others: the text stays the same."""
import pytest
import torch
from helpers import VERIFIERS, Proposer, TableModel, generator, random_rule
from ranked import SlicedTable
from speculation import check_same_rounds

from nds_helpers.decoding import ModelDrafter, NGramDrafter, Sampling, speculative
from nds_helpers.distributed.ahead import Ahead
from nds_helpers.distributed.generation import rounds_on_ranks, speculative_on_ranks
from nds_helpers.parallel import simulate

V = 13
WAYS = ["gathered", "sliced"]
SAMPLINGS = [Sampling(0.0), Sampling(0.8), Sampling(1.0, top_k=4),
             Sampling(0.7, top_k=6, top_p=0.7)]
PROMPTS = [[1 + i % 12, i * i % V, (7 * i) % V] for i in range(20)]
REQUEST = dict(k=3, max_new_tokens=20, sampling=Sampling(0.8))


def near(seed=1, sharpness=0.97):
    """A draft that resembles the target: it wins some bets and loses others."""
    return TableModel(random_rule(seed, V, sharpness), V)


DRAFTERS = {
    "itself": lambda: ModelDrafter(near(sharpness=1.0)),
    "alike": lambda: ModelDrafter(near(sharpness=0.6)),
    "another": lambda: ModelDrafter(near(2)),
    "n-grams": lambda: NGramDrafter(),
    "none": lambda: Proposer(lambda ids, k: []),
}


def team_work(me, drafter, prompt, request, **target):
    """One rank's part: rank 0 drafts, the others hold the target."""
    team = me.group.subgroup(range(1, me.size))
    if team is None:
        return rounds_on_ranks(me, None, drafter(), prompt, **request)
    model = SlicedTable(team.rank, team.size, vocab_size=V, **target)
    return rounds_on_ranks(me, model, None, None, **request | dict(seed=99))


def on_ranks(size, drafter, prompt=(1, 2, 3), target=None, **settings):
    """The rounds of all simulated ranks."""
    return simulate(lambda me: list(team_work(
        me, drafter, prompt, REQUEST | settings, **target or {})), size)


def alone(drafter, prompt=(1, 2, 3), seed=0, target=None, **settings):
    return speculative(SlicedTable(0, 1, vocab_size=V, **target or {}), drafter(),
                       prompt, generator=generator(seed), **REQUEST | settings)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("logits", WAYS)
@pytest.mark.parametrize("verify", VERIFIERS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_it_equals_one_device(size, logits, verify, drafter):
    for i, prompt in enumerate(PROMPTS[::1 if drafter == "alike" else 7]):
        settings = dict(verify=verify, sampling=SAMPLINGS[i % len(SAMPLINGS)], seed=i)
        expected = alone(DRAFTERS[drafter], prompt, **settings).trace
        for rounds in on_ranks(size, DRAFTERS[drafter], prompt, logits=logits,
                               **settings):
            check_same_rounds(rounds, expected)


@pytest.mark.parametrize("logits", WAYS)
@pytest.mark.parametrize("k", [0, 1, 5, lambda trace: (3, 0, 0, 4)[len(trace) % 4]])
def test_any_k_and_policy(logits, k):
    expected = alone(DRAFTERS["alike"], k=k).trace
    for rounds in on_ranks(3, DRAFTERS["alike"], k=k, logits=logits):
        assert [(r.k, r.tokens) for r in rounds] == [(r.k, r.tokens) for r in expected]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("ends", [(4, 9), (2,)])
def test_an_end_token_ends_all_ranks(temperature, ends):
    settings = dict(target=dict(end_token_ids=ends), max_new_tokens=60,
                    sampling=Sampling(temperature))
    for prompt in PROMPTS[:8]:
        expected = alone(DRAFTERS["itself"], prompt, **settings).trace
        for rounds in on_ranks(2, DRAFTERS["itself"], prompt, **settings):
            assert [r.tokens for r in rounds] == [r.tokens for r in expected]


def test_a_draft_whose_context_ends_early():
    def short():
        return ModelDrafter(TableModel(random_rule(1, V), V, max_length=12))

    expected = alone(short).tokens.tolist()
    for rounds in on_ranks(2, short):
        assert sum((r.tokens for r in rounds), []) == expected


def greedy_verifier(p, draft, generator):
    """Accepts as `verify_tokens` does, but takes one number more than it should."""
    torch.rand(1, generator=generator)
    return VERIFIERS[0](p, draft, generator)


def test_a_verifier_that_takes_other_numbers_loses_every_bet():
    """The draft would otherwise be made of the numbers that judge it."""
    expected = alone(DRAFTERS["itself"], verify=greedy_verifier).tokens.tolist()
    rounds = on_ranks(2, DRAFTERS["itself"], verify=greedy_verifier)[0]
    assert sum((r.tokens for r in rounds), []) == expected


class Noting(ModelDrafter):
    """Notes each proposal: how many collectives its rank had made, and the length."""

    def __init__(self, model, group, noted):
        super().__init__(model)
        self.group, self.noted = group, noted

    def propose(self, sequence, k, sampling, generator):
        made = [call.operation for call in self.group.calls]
        self.noted.append((made.count("gather"), k))
        return super().propose(sequence, k, sampling, generator)


def proposals(model, **settings):
    """(verdicts so far, k) at each proposal on rank 0, and its rounds."""
    noted = []

    def work(me):
        return list(team_work(me, lambda: Noting(model, me.group, noted), [1, 2, 3],
                              REQUEST | settings))

    return noted, simulate(work, 2)[0]


def test_bets_that_are_won_leave_nothing_to_draft_in_between():
    """Round i + 1 is drafted before the logits of round i are gathered."""
    noted, rounds = proposals(near(sharpness=1.0), sampling=Sampling(0.0),
                              max_new_tokens=16)  # 4 rounds of 3 + 1
    assert [r.accepted for r in rounds] == [3] * 4
    # Round 0 and, in it, a bonus token and round 1; in round 1 another bonus token...
    assert noted == [(0, 3), (0, 1), (0, 3), (1, 1), (1, 3), (2, 1), (2, 3)]
    assert all(r.drafting > 0 for r in rounds[:-1])


def test_a_bet_that_is_lost_is_drafted_again():
    noted, rounds = proposals(near(2), sampling=Sampling(0.0), max_new_tokens=40)
    early = range(len(rounds) // 2)  # where the end does not yet shorten a draft
    lost = [i for i in early if rounds[i].kind == "corrected"]
    assert lost
    made = [verdicts for verdicts, k in noted if k > 1]
    for i in early:  # with i + 1 verdicts: round i + 1 again, and round i + 2 ahead
        assert made.count(i + 1) == (2 if i in lost else 1)


@pytest.mark.parametrize("logits", WAYS)
def test_caches_and_collectives_are_in_step_after_every_round(logits):
    def work(me):
        team = me.group.subgroup([1, 2])
        model = None if team is None else SlicedTable(team.rank, 2, vocab_size=V)
        caches, seen, length = [], [], 3
        if model:
            model.new_cache = lambda n, new=model.new_cache: caches.append(new(n)) or (
                caches[-1])
        drafter = DRAFTERS["alike"]() if model is None else None
        for r in rounds_on_ranks(me, model, drafter, [1, 2, 3], logits=logits,
                                 **REQUEST):
            length += len(r.tokens)
            assert not caches or caches[0].length == length - 1
            seen.append((len(me.group.calls), caches and tuple(caches[0].tokens)))
        return seen, [call.operation for call in me.group.calls]

    first, *team = simulate(work, 3)
    assert team[0] == team[1] and first[1] == team[0][1]
    assert [n for n, _ in first[0]] == [n for n, _ in team[0][0]]


@pytest.mark.parametrize("models, drafters", [
    ((1, 0), (1, 0)), ((0, 0), (1, 0)), ((0, 1), (0, 1)), ((0,), (1,)), ((0,), (0,))])
def test_ranks_that_lack_something_are_refused_alike(models, drafters):
    def work(me):
        model = SlicedTable(0, 1, vocab_size=V) if models[me.rank] else None
        drafter = DRAFTERS["alike"]() if drafters[me.rank] else None
        with pytest.raises(ValueError, match="only rank 0 may have None"):
            speculative_on_ranks(me, model, drafter, [1], **REQUEST)

    simulate(work, len(models))


def test_a_bad_request_is_refused_on_every_rank_alike():
    def work(me):
        with pytest.raises(ValueError, match="outside the model's vocabulary"):
            team_work(me, DRAFTERS["alike"], [V], REQUEST)
        with pytest.raises(ValueError, match="exceeds the model's context of 9"):
            list(team_work(me, DRAFTERS["alike"], [1], REQUEST, max_length=9))

    simulate(work, 3)


def test_work_ahead_that_fails_ends_all_ranks():
    def choose(ids, k):
        if len(ids) > 3:
            raise RuntimeError("no idea")
        return [1]

    with pytest.raises(RuntimeError, match="rank 0 failed: RuntimeError: no idea"):
        on_ranks(2, lambda: Proposer(choose))


def test_nothing_is_drafted_ahead_where_the_text_may_end():
    """Behind an end token, or behind the last token that fits, comes nothing."""
    asked = Proposer(lambda ids, k: [4, 5, 6][:k])
    ahead = Ahead(asked, ends=(5,), length=20)
    ahead.reset()
    ahead.propose(torch.tensor([1, 2]), 3, None, generator())
    ahead.go_on()
    assert asked.asked == [3] and ahead.ready is None
    ahead = Ahead(asked, ends=(), length=7)  # 2 + 3 + a bonus token + one to draw
    ahead.reset()
    ahead.propose(torch.tensor([1, 2]), 3, None, generator())
    ahead.go_on()
    assert asked.asked == [3, 3] and ahead.ready is None
