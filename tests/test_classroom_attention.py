"""Chapter 07: checks catch the plausible mistakes, cells agree with the package."""
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers import load_chapter, said, stub

from nds_helpers.classroom.attention_split import (
    check_assign_heads,
    check_attention_rank,
    check_cache_bytes,
)
from nds_helpers.models import load_pair
from nds_helpers.models.decoder import causal_mask, grouped_attention
from nds_helpers.models.rope import rotate
from nds_helpers.parallel import partition, shard_model, simulate, totals, traffic
from nds_helpers.parallel.partitions import split_evenly, split_heads

CHECKS = {"assign_heads": check_assign_heads, "attention_rank": check_attention_rank,
          "cache_bytes": check_cache_bytes}
T = 6


@pytest.fixture(scope="module")
def model():
    """The tiny target in float64."""
    return load_pair("tiny", dtype=torch.float64).target


@pytest.fixture(scope="module")
def real(model):
    """One attention of the target, an input, and what its layer needs besides."""
    attention, c = model.layers[3].self_attn, model.config
    rows = [c.heads * c.head_width] + 2 * [c.kv_heads * c.head_width]
    x = random(T, c.width)
    cos, sin = model.rotary.rows(0, T, x)
    mask = causal_mask(0, T, c.heads // c.kv_heads, x)
    Wq, Wk, Wv = (w.T for w in attention.qkv.weight.split(rows))
    y = attention(x, cos, sin, mask, None, 3)
    return SimpleNamespace(Wq=Wq, Wk=Wk, Wv=Wv, Wo=attention.o_proj.weight.T, x=x,
                           cos=cos, sin=sin, mask=mask, y=y)


@pytest.fixture(scope="module")
def chapter(model, real):
    """What the chapter's cells and solutions define."""
    c = model.config
    return load_chapter(
        "07_split_the_attention", F=F, rotate=rotate, partition=partition,
        split_evenly=split_evenly, split_heads=split_heads, shard_model=shard_model,
        totals=totals, target=model, d=c.head_width, H=c.heads, G=c.kv_heads, T=T,
        Wq=real.Wq, Wk=real.Wk, Wv=real.Wv, Wo=real.Wo, cos=real.cos, sin=real.sin)


def random(*shape):
    """FloatTensor of random numbers, float64."""
    g = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=g, dtype=torch.float64)


def close(a, b):
    """Equal to 1e-10."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_attention_on_ranks_agrees_with_the_package(chapter, model, real, size):
    def both(me):
        shard = shard_model(model, me.group).layers[3].self_attn
        mask = causal_mask(0, T, shard.heads // shard.kv_heads, real.x)
        me.group.calls.clear()
        ours = chapter.attention_on_ranks(me, real.x), totals(me.group.calls)
        me.group.calls.clear()
        theirs = shard(real.x, real.cos, real.sin, mask, None, 3)
        return ours, (theirs, totals(me.group.calls))

    for (ours, sent), (theirs, also_sent) in simulate(both, size):
        assert close(ours, theirs) and close(ours, real.y)
        assert sent.keys() == also_sent.keys() == {"all_reduce"}
        assert sent["all_reduce"][:2] == also_sent["all_reduce"][:2]


def test_the_wrong_ways_are_wrong(chapter, model, real):
    wrong = simulate(chapter.with_wrong_kv_heads, 2, real.x)[0]
    assert wrong.shape == real.y.shape and chapter.error(wrong, real.y) > 0.1
    c = model.config
    q, k, v = (random(n, T, c.head_width) for n in (c.heads, c.kv_heads, c.kv_heads))
    whole = chapter.attend(q, k, v)
    halved = simulate(chapter.half_heads, 2, q, k, v)[0]
    assert halved.shape == whole.shape and chapter.error(halved, whole) > 0.1


@pytest.mark.parametrize("size", [1, 2, 4])
def test_layer_on_ranks_is_the_layer(chapter, model, real, size):
    whole = model.layers[3](real.x, real.cos, real.sin, real.mask, None, 3)
    for came, calls in simulate(chapter.layer_on_ranks, size, real.x):
        assert close(came, whole)
        assert calls == ["all_reduce"] * 2


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_vocabulary_on_ranks(chapter, model, size):
    table, ids = model.embed_tokens.weight[:101], torch.tensor([0, 3, 100, 50, 34, 67])
    x = random(T, model.config.width)
    for came in simulate(chapter.embed_on_ranks, size, ids, table):
        assert came.equal(table[ids])
    for came in simulate(chapter.logits_on_ranks, size, x, table):
        assert close(came, x @ table.T)


@pytest.mark.parametrize("heads, kv_heads", [
    (1, 1), (4, 4), (8, 4), (9, 3), (8, 2), (14, 2), (32, 8), (6, 1)])
def test_assign_heads_agrees_with_the_package(chapter, heads, kv_heads):
    for size in range(1, heads + 1):
        theirs = split_heads(heads, kv_heads, size)
        assert chapter.assign_heads(heads, kv_heads, size) == theirs


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (9, 3), (8, 2)])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_attention_rank_is_attention_for_every_plan(chapter, heads, kv_heads, size):
    d, x = 6, random(T, 10)
    wq, wk, wv = (random(10, n * d) for n in (heads, kv_heads, kv_heads))
    wo = random(heads * d, 10)
    q, k, v = ((x @ w).view(1, T, -1, d).transpose(1, 2) for w in (wq, wk, wv))
    mask = causal_mask(0, T, heads // kv_heads, x)
    whole = grouped_attention(q, k, v, mask) @ wo
    shares = chapter.assign_heads(heads, kv_heads, size)  # one feeds the other
    for came in simulate(chapter.attention_rank, size, x, wq, wk, wv, wo, d, shares):
        assert close(came, whole)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_cache_bytes_and_weights_are_those_of_the_shards(chapter, model, size):
    def held(me):
        shard = shard_model(model, me.group)
        return (shard.new_cache(100).store.nbytes,
                sum(weight.numel() for weight in shard.parameters()))

    caches, weights = zip(*simulate(held, size))
    c, plan = model.config, partition(model.config, size)
    assert chapter.cache_bytes(c, size, 100, 8) == list(caches)
    norms = (1 + 2 * c.layers) * c.width
    assert [sum(chapter.weights_of(c, share).values()) + norms
            for share in plan.shares] == list(weights)
    whole = partition(c, 1).parameters(0) - norms
    assert chapter.limit(c, size) == pytest.approx(whole / (max(weights) - norms))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("tokens", [1, 5])
def test_bytes_of_a_forward_agree_with_the_package(chapter, model, size, tokens):
    ranks = traffic(model.config, size, tokens, itemsize=8)
    mean = sum(sent for rank in ranks for _, sent in rank.values()) / size
    ours = chapter.bytes_of_a_forward(model.config, size, tokens, itemsize=8)
    assert ours == pytest.approx(mean, rel=1e-12)


def test_solutions_pass_and_stubs_do_not(chapter, capsys):
    for name, check in CHECKS.items():
        assert f"Passed: {name}" in said(check, getattr(chapter, name), capsys)
        assert "Not yet: stub is still to be written." in said(check, stub, capsys)


@pytest.mark.parametrize("check", CHECKS.values())
def test_what_is_no_function_gets_one_sentence(check, capsys):
    assert said(check, 3, capsys) == (
        "Not yet: the check wants your function, and got 3.\n")


def plan(heads, kv_heads, size):
    """The right answer of the first exercise."""
    return [(list(q), list(kv)) for q, kv in split_heads(heads, kv_heads, size)]


def by_query_heads(heads, kv_heads, size):
    """Query heads are cut evenly; the kv heads follow."""
    shared = heads // kv_heads
    return [(list(q), sorted({head // shared for head in q}))
            for q in split_evenly(heads, size)]


def attend(q, k, v):
    """Causal attention, [heads, T, d] -> [T, heads * d]."""
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(0, 1).flatten(1)


def term(x, weights, d, heads, kv_heads, rows=None):
    """What the given heads add to attention's result."""
    wq, wk, wv, wo = weights
    own, kv = (slice(part.start * d, part.stop * d) for part in (heads, kv_heads))
    q, k, v = ((x @ w).view(len(x), -1, d).transpose(0, 1)
               for w in (wq[:, own], wk[:, kv], wv[:, kv]))
    return attend(q, k, v) @ wo[own if rows is None else rows]


def right(me, x, wq, wk, wv, wo, d, shares):
    return me.group.all_reduce(term(x, (wq, wk, wv, wo), d, *shares[me.rank]))


def by_chunk(me, x, wq, wk, wv, wo, d, shares):
    q, k, v = ((x @ w.chunk(me.size, 1)[me.rank]).view(len(x), -1, d).transpose(0, 1)
               for w in (wq, wk, wv))
    return me.group.all_reduce(attend(q, k, v) @ wo.chunk(me.size)[me.rank])


def same_kv(me, x, wq, wk, wv, wo, d, shares):
    heads, kv = shares[me.rank]
    return me.group.all_reduce(term(x, (wq, wk, wv, wo), d, heads, range(len(kv))))


def first_rows(me, x, wq, wk, wv, wo, d, shares):
    heads, kv = shares[me.rank]
    return me.group.all_reduce(
        term(x, (wq, wk, wv, wo), d, heads, kv, slice(0, len(heads) * d)))


def heads_as_columns(me, x, wq, wk, wv, wo, d, shares):
    heads, kv = shares[me.rank]
    q, k, v = ((x @ w[:, part.start:part.stop]).T[..., None]
               for w, part in ((wq, heads), (wk, kv), (wv, kv)))
    return me.group.all_reduce(attend(q, k, v) @ wo[heads.start:heads.stop])


def gathered(me, x, wq, wk, wv, wo, d, shares):
    heads, kv = shares[me.rank]
    eye = torch.eye(len(heads) * d, dtype=wo.dtype)
    one = slice(0, len(heads) * d)
    mine = term(x, (wq, wk, wv, eye), d, heads, kv, one)
    sizes = [len(q) * d for q, _ in shares]
    return me.group.all_gather(mine, -1, sizes) @ wo


def not_causal(me, x, wq, wk, wv, wo, d, shares):
    heads, kv = shares[me.rank]
    own, part = (slice(r.start * d, r.stop * d) for r in (heads, kv))
    q, k, v = ((x @ w).view(len(x), -1, d).transpose(0, 1)
               for w in (wq[:, own], wk[:, part], wv[:, part]))
    out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return me.group.all_reduce(out.transpose(0, 1).flatten(1) @ wo[own])


def one_rank(c, length, size):
    """Bytes of all kv heads."""
    return c.layers * 2 * c.kv_heads * c.head_width * length * size


def per_head(c, length, itemsize):
    """Bytes of one kv head."""
    return one_rank(c, length, itemsize) // c.kv_heads


def kv_counts(c, size):
    return [len(kv) for _, kv in split_heads(c.heads, c.kv_heads, size)]


WRONG = {
    check_assign_heads: {
        "by query heads": by_query_heads,
        "the last ones larger": lambda h, g, n: [
            ([h - 1 - i for i in q[::-1]], [g - 1 - i for i in kv[::-1]])
            for q, kv in plan(h, g, n)[::-1]],
        "every n-th group": lambda h, g, n: [
            ([kv * h // g + i for kv in range(rank, g, n) for i in range(h // g)],
             list(range(rank, g, n))) for rank in range(n)],
        "all kv heads everywhere": lambda h, g, n: [
            (q, list(range(g))) for q, _ in plan(h, g, n)],
        "no copies": lambda h, g, n: [
            (list(range(kv.start * h // g, kv.stop * h // g)), list(kv))
            for kv in split_evenly(g, n)],
        "kv heads numbered anew on each rank": lambda h, g, n: [
            (q, list(range(len(kv)))) for q, kv in plan(h, g, n)],
        "all query heads of a copied group": lambda h, g, n: [
            ([kv[0] * h // g + i for i in range(h // g * len(kv))], kv)
            for _, kv in plan(h, g, n)],
        "copies dealt in turn": lambda h, g, n: (
            plan(h, g, n) if n <= g else
            [([q], [q * g // h]) for q in range(n)]),
    },
    check_attention_rank: {
        "chunk": by_chunk, "first kv heads": same_kv, "first rows": first_rows,
        "heads as columns": heads_as_columns, "gathered": gathered,
        "not causal": not_causal,
        "no all-reduce": lambda me, x, wq, wk, wv, wo, d, shares: term(
            x, (wq, wk, wv, wo), d, *shares[me.rank]),
        "all heads on every rank": lambda me, x, wq, wk, wv, wo, d, shares: (
            me.group.all_reduce(term(x, (wq, wk, wv, wo), d,
                                     range(wq.shape[1] // d),
                                     range(wk.shape[1] // d)))),
        "rank 0's share": lambda me, x, wq, wk, wv, wo, d, shares: (
            me.group.all_reduce(term(x, (wq, wk, wv, wo), d, *shares[0]))),
        "kv heads as query heads": lambda me, x, wq, wk, wv, wo, d, shares: (
            me.group.all_reduce(term(x, (wq, wk, wv, wo), d, shares[me.rank][0],
                                     shares[me.rank][0]))),
        "keys for values": lambda me, x, wq, wk, wv, wo, d, shares: (
            me.group.all_reduce(term(x, (wq, wk, wk, wo), d, *shares[me.rank]))),
    },
    check_cache_bytes: {
        "divided": lambda c, n, t, b: [one_rank(c, t, b) // n] * n,
        "query heads": lambda c, n, t, b: [
            len(q) * per_head(c, t, b) for q, _ in
            split_heads(c.heads, c.kv_heads, n)],
        "whole on every rank": lambda c, n, t, b: [one_rank(c, t, b)] * n,
        "keys only": lambda c, n, t, b: [
            count * per_head(c, t, b) // 2 for count in kv_counts(c, n)],
        "one layer": lambda c, n, t, b: [
            count * per_head(c, t, b) // c.layers for count in kv_counts(c, n)],
        "no bytes": lambda c, n, t, b: [
            count * per_head(c, t, 2) for count in kv_counts(c, n)],
        "width over heads": lambda c, n, t, b: [
            count * per_head(c, t, b) * c.width // c.heads // c.head_width
            for count in kv_counts(c, n)],
        "no copies": lambda c, n, t, b: [
            len(kv) * per_head(c, t, b) for kv in split_evenly(c.kv_heads, n)],
        "the largest only": lambda c, n, t, b: max(kv_counts(c, n)) * per_head(c, t, b),
        "even, rounded up": lambda c, n, t, b: [
            -(-c.kv_heads // n) * per_head(c, t, b)] * n,
    },
}


@pytest.mark.parametrize("check, answer", [
    pytest.param(check, answer, id=f"{check.__name__}: {name}")
    for check, answers in WRONG.items() for name, answer in answers.items()])
def test_wrong_answers_are_caught(check, answer, capsys):
    assert "Hint:" in said(check, answer, capsys)


def test_the_helpers_of_these_wrong_answers_are_right():
    """So each answer above is wrong for its own reason only."""
    assert check_assign_heads(plan)
    assert check_assign_heads(split_heads)  # ranges are lists too
    assert check_attention_rank(right)
    assert check_cache_bytes(lambda c, n, t, b: [
        count * per_head(c, t, b) for count in kv_counts(c, n)])
