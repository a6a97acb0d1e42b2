"""Partitions: everything is held, query heads sit with their kv head, tables add up."""
from dataclasses import replace

import pytest
import torch
from shards import ODD, SHAPES

from nds_helpers.models.checkpoint import whole_shapes
from nds_helpers.parallel.partitions import partition, split_evenly, split_heads

SMOL = SHAPES["9 heads, 3 kv heads"]


@pytest.mark.parametrize("count, size, lengths", [
    (6, 2, [3, 3]), (7, 2, [4, 3]), (97, 4, [25, 24, 24, 24]), (5, 3, [2, 2, 1]),
    (2, 4, [1, 1, 0, 0]), (0, 2, [0, 0]), (5, 1, [5])])
def test_even_splits_differ_by_one_at_most_and_cover_everything(count, size, lengths):
    parts = split_evenly(count, size)
    assert [len(part) for part in parts] == lengths
    assert [i for part in parts for i in part] == list(range(count))


@pytest.mark.parametrize("heads, kv_heads, size, expected", [
    (8, 4, 2, [("0-3", "0-1"), ("4-7", "2-3")]),
    (9, 3, 2, [("0-5", "0-1"), ("6-8", "2")]),  # CASES 24, and the one below
    (8, 2, 4, [("0-1", "0"), ("2-3", "0"), ("4-5", "1"), ("6-7", "1")]),
    (8, 2, 3, [("0-1", "0"), ("2-3", "0"), ("4-7", "1")]),
    (9, 3, 4, [("0-1", "0"), ("2", "0"), ("3-5", "1"), ("6-8", "2")]),
    (4, 1, 3, [("0-1", "0"), ("2", "0"), ("3", "0")]),
    (3, 3, 3, [("0", "0"), ("1", "1"), ("2", "2")]),
])
def test_heads_are_cut_as_a_reader_would(heads, kv_heads, size, expected):
    config = replace(ODD, heads=heads, kv_heads=kv_heads)
    table = partition(config, size).to_frame()
    assert list(zip(table["query heads"], table["kv heads"])) == expected


@pytest.mark.parametrize("kv_heads", range(1, 7))
@pytest.mark.parametrize("sharing", range(1, 6))
def test_every_query_head_is_held_once_beside_its_kv_head(kv_heads, sharing):
    heads = kv_heads * sharing
    for size in range(1, heads + 1):
        pairs = split_heads(heads, kv_heads, size)
        assert len(pairs) == size
        assert [h for queries, _ in pairs for h in queries] == list(range(heads))
        for queries, kvs in pairs:
            each = len(queries) // len(kvs)  # alike for every kv head of the rank
            expected = [kvs.start + i // each for i in range(len(queries))]
            assert [h // sharing for h in queries] == expected and each > 0


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_pieces_make_up_the_whole_weights(name, size):
    part = partition(SHAPES[name], size)
    for weight, shape in whole_shapes(part.config).items():
        held = torch.zeros(shape, dtype=torch.long)
        for rank in range(size):
            held[part.index(rank, weight)] += 1
        if "norm" in weight or weight.endswith("o_proj.bias"):
            assert (held == size).all()
        elif "k_proj" in weight or "v_proj" in weight:  # of as many as have its queries
            per_head = held.unflatten(0, (part.config.kv_heads, -1)).flatten(1)
            holders = [sum(kv in share.kv_heads for share in part.shares)
                       for kv in range(part.config.kv_heads)]
            assert (per_head == torch.tensor(holders)[:, None]).all()
        else:
            assert (held == 1).all()


def test_a_share_is_a_narrower_decoder():
    narrow = partition(SMOL, 2).narrow(1)
    assert (narrow.heads, narrow.kv_heads, narrow.mlp_width) == (3, 1, 768)
    assert (narrow.vocab_size, narrow.width, narrow.layers) == (48, 576, 2)
    assert narrow.tied and narrow.head_width == 64


def test_the_table_and_the_imbalance():
    part = partition(SMOL, 2)
    table = part.to_frame()
    assert list(table.columns) == ["query heads", "kv heads", "MLP columns",
                                   "vocabulary rows", "megabytes"]
    assert list(table["vocabulary rows"]) == ["0-48", "49-96"]
    assert list(table["MLP columns"]) == ["0-767", "768-1535"]
    # Attention 576 * 64 * (6 + 2 + 2 + 6), MLP 3 * 576 * 768, two norms; twice.
    largest = 2 * (576 * 64 * 16 + 3 * 576 * 768 + 2 * 576) + 49 * 576 + 576
    smallest = 2 * (576 * 64 * 8 + 3 * 576 * 768 + 2 * 576) + 48 * 576 + 576
    assert [part.parameters(rank) for rank in range(2)] == [largest, smallest]
    assert table["megabytes"].tolist() == [largest * 4 / 1e6, smallest * 4 / 1e6]
    assert part.to_frame(2)["megabytes"][0] == largest * 2 / 1e6
    assert part.imbalance == 2 * largest / (largest + smallest) > 1.05
    assert partition(SHAPES["llama"], 1).imbalance == 1


@pytest.mark.parametrize("config, size, most", [
    (SMOL, 10, 9), (ODD, 9, 8), (ODD, 0, 8), (ODD, -1, 8),
    (replace(ODD, vocab_size=3), 4, 3), (replace(ODD, mlp_width=2), 3, 2)])
def test_more_ranks_than_there_are_pieces_are_refused(config, size, most):
    with pytest.raises(ValueError, match=f"for 1 to {most} ranks, not for {size}: it "
                                         f"has {config.heads} query heads"):
        partition(config, size)
