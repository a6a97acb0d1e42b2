"""Speculation over ranks equals speculation on one device, and no rank disagrees."""
import pytest
import torch
from helpers import VERIFIERS, Proposer, TableModel, generator, random_rule
from ranked import SlicedTable
from speculation import check_same_rounds

from nds_helpers.decoding import ModelDrafter, NGramDrafter, Sampling, speculative
from nds_helpers.distributed.generation import rounds_on_ranks, speculative_on_ranks
from nds_helpers.parallel import simulate

V = 13
WAYS = ["gathered", "sliced"]
SAMPLINGS = [Sampling(0.0), Sampling(0.8), Sampling(1.0, top_k=4),
             Sampling(0.7, top_k=6, top_p=0.7)]
PROMPTS = [[1 + i % 12, i * i % V, (7 * i) % V] for i in range(20)]


def draft_model(**settings):
    return TableModel(random_rule(2, V), V, **settings)


DRAFTERS = {
    "model": lambda: ModelDrafter(draft_model()),
    "n-grams": lambda: NGramDrafter(),
    "none": lambda: Proposer(lambda ids, k: []),
}


def on_ranks(size, drafter, prompt=(1, 2, 3), *, everywhere=False, target=SlicedTable,
             **settings):
    """Results of all simulated ranks; the others know nothing of rank 0's request."""
    request = dict(k=3, max_new_tokens=20, sampling=Sampling(0.8), seed=5) | settings

    def work(me):
        model = target(me.rank, me.size, vocab_size=V)
        if me.rank:
            alien = request | dict(seed=me.rank, sampling=Sampling(2.0))
            return speculative_on_ranks(me, model, drafter() if everywhere else None,
                                        None, **alien)
        return speculative_on_ranks(me, model, drafter(), prompt, **request)

    return simulate(work, size)


def alone(drafter, prompt=(1, 2, 3), seed=5, logits=None, **settings):
    request = dict(k=3, max_new_tokens=20, sampling=Sampling(0.8)) | settings
    return speculative(SlicedTable(0, 1, vocab_size=V), drafter(), prompt,
                       generator=generator(seed), **request)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("logits", WAYS)
@pytest.mark.parametrize("verify", VERIFIERS)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("everywhere", [False, True])
def test_it_equals_one_device(size, logits, verify, drafter, everywhere):
    """CASES 22: the other ranks' seeds and settings don't count."""
    many = drafter == "model" and not everywhere
    for i, prompt in enumerate(PROMPTS[::1 if many else 7]):
        settings = dict(verify=verify, sampling=SAMPLINGS[i % len(SAMPLINGS)], seed=i)
        expected = alone(DRAFTERS[drafter], prompt, **settings)
        for result in on_ranks(size, DRAFTERS[drafter], prompt, everywhere=everywhere,
                               logits=logits, **settings):
            assert torch.equal(result.tokens, expected.tokens)
            check_same_rounds(result.trace, expected.trace)


@pytest.mark.parametrize("logits", WAYS)
@pytest.mark.parametrize("k", [0, 1, 5, lambda trace: (3, 0, 0, 4)[len(trace) % 4]])
def test_any_k_and_policy(logits, k):
    """The other ranks' policy is never asked; CASES 13: a schedule with zeros."""
    expected = alone(DRAFTERS["model"], k=k)
    for result in on_ranks(3, DRAFTERS["model"], k=k, logits=logits):
        assert torch.equal(result.tokens, expected.tokens)
        assert [r.k for r in result.trace] == [r.k for r in expected.trace]


@pytest.mark.parametrize("logits", WAYS)
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_ranks_that_see_a_tie_differently_still_agree(logits, everywhere, temperature):
    """CASES 21: logits of a near-tie differ by 1e-6 from rank to rank."""
    def tie(shift):
        return lambda prefix: [1.0 + shift * (i % 2) for i in range(V)]

    class Tied(SlicedTable):
        def __init__(self, rank, size, **settings):
            super().__init__(rank, size, **settings)
            self.rule = tie(1e-6 * (-1) ** rank)

    made = iter(range(9))
    results = on_ranks(
        3, lambda: ModelDrafter(TableModel(tie(1e-6 * (-1) ** next(made)), V)),
        everywhere=everywhere, target=Tied, logits=logits, max_new_tokens=40,
        sampling=Sampling(temperature))
    assert all(torch.equal(r.tokens, results[0].tokens) for r in results)
    counts = [[r.accepted for r in result.trace] for result in results]
    assert counts == counts[:1] * 3


def test_a_replica_that_drafts_otherwise_is_not_trusted():
    """Its q is another one: rank 0's is handed out instead, and all stays exact."""
    seeds = iter([2, 3, 4])

    def drafter():
        return ModelDrafter(TableModel(random_rule(next(seeds), V), V))

    expected = alone(DRAFTERS["model"], max_new_tokens=60)
    for result in on_ranks(3, drafter, everywhere=True, logits="sliced",
                           max_new_tokens=60):
        assert torch.equal(result.tokens, expected.tokens)


@pytest.mark.parametrize("logits", WAYS)
@pytest.mark.parametrize("everywhere", [False, True])
def test_caches_and_collectives_are_in_step_after_every_round(logits, everywhere):
    def work(me):
        caches, seen = [], []
        model = SlicedTable(me.rank, me.size, vocab_size=V)
        model.new_cache = lambda n, new=model.new_cache: caches.append(new(n)) or (
            caches[-1])
        drafter = ModelDrafter(draft_model()) if everywhere or me.rank == 0 else None
        length = 3
        for r in rounds_on_ranks(me, model, drafter, [1, 2, 3], k=4, seed=1,
                                 max_new_tokens=30, logits=logits):
            length += len(r.tokens)
            assert caches[0].length == length - 1
            seen.append((len(me.group.calls), tuple(caches[0].tokens)))
        return seen, [call.operation for call in me.group.calls]

    results = simulate(work, 3)
    assert results == results[:1] * 3


@pytest.mark.parametrize("logits", WAYS)
def test_an_end_token_ends_all_ranks(logits):
    class Ending(SlicedTable):
        def __init__(self, rank, size, **settings):
            super().__init__(rank, size, end_token_ids=(4, 9), **settings)

    results = on_ranks(2, DRAFTERS["model"], target=Ending, logits=logits,
                       max_new_tokens=60)
    ids = results[0].tokens.tolist()
    assert ids[-1] in (4, 9) and not {4, 9} & set(ids[:-1])
    assert results[1].tokens.tolist() == ids


@pytest.mark.parametrize("wrong, message", [
    (dict(prompt=[]), "at least one token id"), (dict(prompt="text"), "token ids"),
    (dict(prompt=[99]), "outside the model's vocabulary"),
    (dict(k=-1), "k must be"), (dict(max_new_tokens=-2), "max_new_tokens must be"),
    (dict(logits="somewhere"), '"gathered" or "sliced"'), (dict(seed=-1), "seed")])
def test_a_bad_request_is_refused_on_every_rank_alike(wrong, message):
    """None is left waiting: rank 0's error travels."""
    def work(me):
        model = SlicedTable(me.rank, me.size, vocab_size=V)
        request = dict(prompt=[1], k=2, max_new_tokens=5)
        request |= {} if me.rank else wrong
        with pytest.raises(ValueError, match=message):
            speculative_on_ranks(me, model, None, **request)

    simulate(work, 2)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("everywhere, q_rows, fewer", [(False, 1, 4), (True, 0, 100)])
def test_slices_exchange_fewer_bytes(size, everywhere, q_rows, fewer):
    """At most one row of q, and only where rank 0 alone has it; SmolLM2's words."""
    words, k = 49_152, 4

    def work(me, logits):
        model = SlicedTable(me.rank, me.size, vocab_size=words)
        model.dtype = torch.float32
        drafter = None
        if everywhere or me.rank == 0:
            drafter = ModelDrafter(TableModel(random_rule(2, words), words,
                                              dtype=torch.float32))
        return [(r.kind, r.accepted, r.bytes_sent) for r in rounds_on_ranks(
            me, model, drafter, [1], k=k, max_new_tokens=12, logits=logits)
            if r.k == k]

    gathered, sliced = (list(zip(*simulate(work, size, way))) for way in WAYS)
    assert [r[0][:2] for r in gathered] == [r[0][:2] for r in sliced]
    assert "corrected" in [ranks[0][0] for ranks in sliced]
    row = 4 * words // size
    for all_send, few_send in zip(gathered, sliced):
        (_, _, lead), *others = all_send
        assert lead < row  # rank 0 gets the logits, the others send them
        assert all(sent >= (k + 1) * row for _, _, sent in others)
        for rank, (kind, _, sent) in enumerate(few_send):
            rows = q_rows * (size - 1) if kind == "corrected" and rank == 0 else 0
            assert sent < rows * row + 1000
        assert sum(r[2] for r in all_send) >= fewer * sum(r[2] for r in few_send)


def test_a_drafter_that_fails_ends_all_ranks():
    def fail(ids, k):
        raise RuntimeError("no idea")

    with pytest.raises(RuntimeError, match="rank 0 failed: RuntimeError: no idea"):
        on_ranks(2, lambda: Proposer(fail))
