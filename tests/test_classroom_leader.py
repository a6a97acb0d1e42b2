"""Chapter 09: checks catch the plausible mistakes, cells agree with the package."""
from typing import NamedTuple

import pytest
import torch
from helpers import TableModel, generator, load_chapter, random_rule, said, stub
from ranked import SlicedTable

from nds_helpers.classroom.leader import (
    check_draw_slice,
    check_one_round,
    check_softmax_slice,
)
from nds_helpers.decoding import (
    Draft,
    ModelDrafter,
    Sampling,
    Verdict,
    draw,
    probabilities,
    speculative,
    verify_tokens,
)
from nds_helpers.decoding.speculative import commit
from nds_helpers.distributed.slices import sliced_probabilities
from nds_helpers.distributed.verdict import Slices
from nds_helpers.parallel import simulate

V, K, LENGTH = 12, 3, 24
WARM = Sampling(0.8)
PROMPT = torch.tensor([1, 2, 3])


@pytest.fixture(scope="module")
def chapter():
    """What the chapter's cells and solutions define."""
    return load_chapter(
        "09_verify_across_ranks", NamedTuple=NamedTuple, Sampling=Sampling, Draft=Draft,
        Verdict=Verdict, commit=commit, probabilities=probabilities, K=K,
        verify_tokens=verify_tokens, LENGTH=LENGTH, sampling=WARM, Slices=Slices,
        sliced_probabilities=sliced_probabilities)


def draft_model():
    return TableModel(random_rule(7, V), V)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ends", [(), (5,)])
def test_the_loop_equals_one_device(chapter, size, seed, ends):
    def work(me):
        shard = SlicedTable(me.rank, size, vocab_size=V, end_token_ids=ends)
        leader = None
        if me.rank == 0:
            leader = chapter.Leader(ModelDrafter(draft_model()), WARM, generator(seed))
        return chapter.follow_the_leader(me, shard, PROMPT, leader)

    alone = speculative(SlicedTable(0, 1, vocab_size=V, end_token_ids=ends),
                        ModelDrafter(draft_model()), PROMPT, k=K, max_new_tokens=LENGTH,
                        sampling=WARM, generator=generator(seed))
    for ids, counts in simulate(work, size):
        assert torch.equal(ids, alone.tokens)
        assert counts == [r.accepted for r in alone.trace]


@pytest.fixture(scope="module")
def a_block():
    """Logits [K+1, V] and a Draft of K tokens with its probabilities."""
    g = generator(3)
    logits = torch.randn(K + 1, V, generator=g, dtype=torch.float64)
    noise = torch.randn(K, V, generator=g, dtype=torch.float64)
    return logits, Draft(torch.tensor([0, 7, 11]), (logits[:K] + noise).softmax(-1))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_what_the_slices_give(chapter, a_block, size):
    logits, draft = a_block
    whole = probabilities(logits, Sampling())

    def work(me):
        local = logits.chunk(size, 1)[me.rank]
        start = me.rank * local.shape[1]
        p = chapter.softmax_slice(me.group, local)
        theirs = sliced_probabilities(local, Sampling(), me.group, start)
        assert torch.allclose(p, theirs, atol=1e-15)
        drawn = [chapter.draw_slice(me.group, p[0], start, u / 50) for u in range(50)]
        assert drawn == [draw(whole[0], u / 50) for u in range(50)]
        return chapter.at_guesses(me.group, p, draft.tokens, start)

    for at_p in simulate(work, size):
        assert torch.allclose(at_p, whole[range(K), draft.tokens], atol=1e-15)


@pytest.mark.parametrize("size", [2, 3])
def test_both_ways_reach_one_verdict_and_send_what_the_formula_says(
        chapter, a_block, size):
    logits, draft = a_block

    def work(me, way, seed):
        leader = None
        if me.rank == 0:
            leader = chapter.Leader(None, WARM, generator(seed))
        local = logits.float().chunk(size, 1)[me.rank]
        mine = Draft(draft.tokens, draft.probs.float())
        if way == "gathered":
            verdict = chapter.judge(me.group, local, mine, leader)
        else:
            verdict = chapter.judge_in_slices(me.group, local, mine, way, leader)
        return verdict, sum(call.bytes for call in me.group.calls)

    kinds = set()
    for seed in range(40):
        verdicts = set()
        for way in ("gathered", "rank 0", "here"):
            found, sent = zip(*simulate(work, size, way, seed))
            verdicts |= set(found)
            row = way == "rank 0" and found[0].kind == "corrected"
            assert sum(sent) == (
                chapter.gathered_bytes(V, K, size) if way == "gathered"
                else chapter.sliced_bytes(V, K, size, row))
        assert len(verdicts) == 1
        kinds |= {verdict.kind for verdict in verdicts}
    assert kinds == {"corrected", "bonus"}


def test_slices_save_what_the_chapter_says(chapter):
    gathered = chapter.gathered_bytes(49152, 4, 2)
    assert gathered > 100 * chapter.sliced_bytes(49152, 4, 2, False)
    assert gathered > 4 * chapter.sliced_bytes(49152, 4, 2, True)


@pytest.fixture
def check_round(chapter):
    """The check of a round, with the chapter's Leader."""
    return lambda one_round: check_one_round(one_round, chapter.Leader)


def test_solutions_pass(chapter, check_round, capsys):
    for check, name in ((check_round, "one_round"),
                        (check_softmax_slice, "softmax_slice"),
                        (check_draw_slice, "draw_slice")):
        assert said(check, getattr(chapter, name), capsys).startswith("Passed")


def test_stubs_are_not_yet(check_round, capsys):
    for check in (check_round, check_softmax_slice, check_draw_slice):
        assert said(check, stub, capsys).startswith("Not yet: stub is still")


def wrong_rounds(chapter):
    """Plausible rounds, name -> function."""
    def a_round(back=None, drop=0, judge=chapter.judge, text=torch.cat):
        def one_round(me, shard, cache, ids, k, leader):
            draft = chapter.send_draft(me.group, ids, k, leader)
            local = chapter.read(shard, cache, ids, draft.tokens)
            verdict = judge(me.group, local, draft, leader)
            tokens, _, _ = commit(draft, verdict, shard.end_token_ids)
            after = text([ids, torch.tensor(tokens)])
            if back is None or back(me):
                cache.truncate(len(after) - 1 - drop)
            return after

        return one_round

    def each_for_itself(group, local, draft, leader):
        p = probabilities(group.all_gather(local), Sampling())
        return verify_tokens(p, draft, leader.generator if leader else generator(99))

    def accepts_all(group, local, draft, leader):
        verdict = chapter.judge(group, local, draft, leader)
        return Verdict(len(draft.tokens), verdict.next_token, "bonus")

    def rank_0_only(me, shard, cache, ids, k, leader):
        return chapter.one_round(me, shard, cache, ids, k, leader) if leader else ids

    return {
        "no roll-back": a_round(back=lambda me: False),
        "only the leader rolls back": a_round(back=lambda me: me.rank == 0),
        "one token too few": a_round(drop=1),
        "one token too many": a_round(drop=-1),
        "everybody decides": a_round(judge=each_for_itself),
        "everything accepted": a_round(judge=accepts_all),
        "only the new tokens": a_round(text=lambda parts: parts[1]),
        "rank 0 alone": rank_0_only,
    }


def test_wrong_rounds(chapter, check_round, capsys):
    assert said(check_round, chapter.one_round, capsys).startswith("Passed")
    for name, wrong in wrong_rounds(chapter).items():
        assert said(check_round, wrong, capsys).startswith("Not yet"), name


def softmax(group, logits, top, total):
    powers = (logits - top(group, logits)).exp()
    return powers / total(group, powers.sum(-1, keepdim=True))


def row_top(group, logits):
    return group.all_gather(logits.amax(-1, keepdim=True)).amax(-1, keepdim=True)


def whole_rows(group, logits):
    sizes = group.all_gather(torch.tensor([logits.shape[1]])).tolist()
    whole = group.all_gather(logits, sizes=sizes).softmax(-1)
    return whole.split(sizes, 1)[group.rank]


SOFTMAX = {
    "own slice only": lambda g, x: x.softmax(-1),
    "no largest": lambda g, x: softmax(
        g, x, lambda g, x: 0.0, lambda g, s: g.all_reduce(s)),
    "own largest": lambda g, x: softmax(
        g, x, lambda g, x: x.amax(-1, keepdim=True), lambda g, s: g.all_reduce(s)),
    "own sum": lambda g, x: softmax(g, x, row_top, lambda g, s: s),
    "sum of the largest": lambda g, x: softmax(
        g, x, lambda g, x: g.all_reduce(x.amax(-1, keepdim=True)),
        lambda g, s: g.all_reduce(s)),
    "one largest for all rows": lambda g, x: softmax(
        g, x, lambda g, x: g.all_gather(x.amax().view(1)).max(),
        lambda g, s: g.all_reduce(s.sum().view(1))),
    "whole rows gathered": whole_rows,
}


@pytest.mark.parametrize("wrong", SOFTMAX.values(), ids=SOFTMAX)
def test_wrong_softmax(wrong, capsys):
    assert said(check_softmax_slice, wrong, capsys).startswith("Not yet")


def drawn(group, weights, start, u, *, scale=True, offset=True, tell=True, right=True,
          shift=True):
    """The solution, with parts that can be left out."""
    running = weights.cumsum(-1)
    lengths = group.all_gather(running[-1:])
    point = u * (lengths.sum() if scale else 1.0)
    point = point - lengths[:group.rank].sum() if offset else point
    token = torch.zeros(1, dtype=torch.long)
    if 0 <= point < running[-1] if right else 0 < point <= running[-1]:
        below = running <= point if right else running < point
        token += (start if shift else 0) + int(below.sum())
    return group.all_reduce(token).item() if tell else token.item()


def whole_weights(group, weights, start, u):
    sizes = group.all_gather(torch.tensor([len(weights)])).tolist()
    return draw(group.all_gather(weights, sizes=sizes), u)


DRAWS = {
    "own slice only": lambda g, w, start, u: start + draw(w, u) if w.sum() else start,
    "total taken as 1": lambda *a: drawn(*a, scale=False),
    "not measured from the slice": lambda *a: drawn(*a, offset=False),
    "nobody is told": lambda *a: drawn(*a, tell=False),
    "border to the left": lambda *a: drawn(*a, right=False),
    "local id": lambda *a: drawn(*a, shift=False),
    "all weights gathered": whole_weights,
}


@pytest.mark.parametrize("wrong", DRAWS.values(), ids=DRAWS)
def test_wrong_draws(wrong, capsys):
    assert said(check_draw_slice, wrong, capsys).startswith("Not yet")
