"""Chapter 06: checks catch the plausible mistakes, cells agree with the package."""
import pytest
import torch
from helpers import load_chapter, said, stub
from torch.nn.functional import silu

from nds_helpers.classroom.mlp_split import (
    check_all_reduce_in_two,
    check_mlp_rank,
    check_split_columns,
    check_split_rows,
)
from nds_helpers.models import load_pair
from nds_helpers.parallel import shard_model, simulate, totals
from nds_helpers.parallel.partitions import split_evenly

CHECKS = {"split_columns": check_split_columns, "split_rows": check_split_rows,
          "mlp_rank": check_mlp_rank, "all_reduce_in_two": check_all_reduce_in_two}


@pytest.fixture(scope="module")
def chapter():
    """What the chapter's cells and solutions define."""
    return load_chapter("06_split_the_mlp", silu=silu, simulate=simulate)


@pytest.fixture(scope="module")
def model():
    """The tiny target in float64."""
    return load_pair("tiny", dtype=torch.float64).target


def weights_of(mlp):
    """gate, up [D, M] and down [M, D] of an MLP."""
    gate, up = (w.T for w in mlp.gate_up.weight.chunk(2))
    return gate, up, mlp.down_proj.weight.T


def rows_of(count, width):
    """FloatTensor[count, width] of random numbers, float64."""
    g = torch.Generator().manual_seed(count)
    return torch.randn(count, width, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_mlp_on_ranks_agrees_with_the_package(chapter, model, size):
    mlp = model.layers[3].mlp
    x, weights = rows_of(5, model.config.width), weights_of(mlp)

    def both(me):
        shard = shard_model(model, me.group).layers[3].mlp
        me.group.calls.clear()
        ours = chapter.mlp_on_ranks(me, x, *weights), totals(me.group.calls)
        me.group.calls.clear()
        return ours, (shard(x), totals(me.group.calls))

    for (ours, sent), (theirs, also_sent) in simulate(both, size):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
        assert torch.allclose(ours, mlp(x), rtol=0, atol=1e-12)
        assert sent.keys() == also_sent.keys() == {"all_reduce"}
        assert sent["all_reduce"][:2] == also_sent["all_reduce"][:2]


@pytest.mark.parametrize("name", ["columns_twice", "rows_twice"])
def test_the_dearer_orders_are_right(chapter, model, name):
    mlp = model.layers[3].mlp
    x, weights = rows_of(5, model.config.width), weights_of(mlp)
    for y in simulate(getattr(chapter, name), 4, x, *weights):
        assert torch.allclose(y, mlp(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["row_first", "cut_the_stack", "bias_everywhere",
                                  "no_all_reduce"])
def test_the_wrong_ways_are_wrong(model, name):
    mlp, bias = model.layers[3].mlp, torch.ones(model.config.width).double()
    wrong = load_chapter("06_split_the_mlp", silu=silu, bias=bias)
    x, weights = rows_of(5, model.config.width), weights_of(mlp)
    expected = mlp(x) + bias * (name == "bias_everywhere")
    for y in simulate(getattr(wrong, name), 2, x, *weights):
        assert y.shape == expected.shape
        assert wrong.error(y, expected) > 0.1


@pytest.mark.parametrize("size", range(1, 9))
def test_splits_agree_with_the_package(chapter, size):
    for count in (1, 2, 7, 8, 512):
        spans = split_evenly(count, size)
        matrix = rows_of(3, count)
        columns = chapter.split_columns(matrix, size)
        assert len(columns) == size
        for span, mine, row in zip(spans, columns, chapter.split_rows(matrix.T, size)):
            assert mine.equal(matrix[:, span.start:span.stop]) and row.T.equal(mine)


@pytest.mark.parametrize("size", range(1, 9))
def test_all_reduce_in_two_sends_what_an_all_reduce_sends(chapter, size):
    """In all; who sends how much differs where the pieces are uneven."""
    def both(me, x):
        ours = chapter.all_reduce_in_two(me, x * (me.rank + 1))
        half = sum(call.bytes for call in me.group.calls)
        me.group.calls.clear()
        return ours, me.group.all_reduce(x * (me.rank + 1)), half, me.group.calls

    for x in (rows_of(3, 7), rows_of(1, 2)[0], rows_of(4, 6)):
        ranks = simulate(both, size, x)
        assert all(ours.equal(theirs) for ours, theirs, _, _ in ranks)
        assert sum(half for *_, half, _ in ranks) == sum(
            calls[0].bytes for *_, calls in ranks) == 2 * (size - 1) * x.nbytes


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_ring_finishes_one_piece_a_rank_and_then_all(chapter, size):
    tables = chapter.ring(size)
    assert len(tables) == 2 * (size - 1) + 1
    finished = [[row.count(size) for row in table] for table in tables]
    assert finished[size - 1] == [1] * size
    assert all(counts == [0] * size for counts in finished[:size - 1])
    assert finished[-1] == [size] * size
    for before, after in zip(tables, tables[1:]):
        changed = [sum(a != b for a, b in zip(*rows)) for rows in zip(before, after)]
        assert changed == [1] * size  # everybody receives one piece a step


def test_solutions_pass_and_stubs_do_not(chapter, capsys):
    for name, check in CHECKS.items():
        assert f"Passed: {name}" in said(check, getattr(chapter, name), capsys)
        assert "Not yet: stub is still to be written." in said(check, stub, capsys)


@pytest.mark.parametrize("check", CHECKS.values())
def test_what_is_no_function_gets_one_sentence(check, capsys):
    assert said(check, 3, capsys) == (
        "Not yet: the check wants your function, and got 3.\n")


def piece(me, matrix, dim):
    """This rank's piece of a matrix."""
    return matrix.tensor_split(me.size, dim)[me.rank]


def hidden(me, x, gate_up):
    """This rank's columns of silu(gate) * up."""
    gate, up = gate_up.chunk(2, 1)
    return silu(x @ piece(me, gate, 1)) * (x @ piece(me, up, 1))


def term(me, x, gate_up, down):
    """This rank's term of y, without the bias."""
    return hidden(me, x, gate_up) @ piece(me, down, 0)


def row_first(me, x, gate_up, down, bias):
    g, u = (piece(me, x, 1) @ piece(me, gate_up, 0)).chunk(2, -1)
    return me.group.all_reduce((silu(g) * u) @ down) + bias


def cut_stack(me, x, gate_up, down, bias):
    h = x @ piece(me, gate_up, 1)
    half = h.shape[1] // 2
    h = silu(h[:, :half]) * h[:, half:2 * half]
    return me.group.all_reduce(h @ piece(me, down, 0)[:half]) + bias


def gathered(me, x, gate_up, down, bias):
    h = me.group.all_gather(hidden(me, x, gate_up), -1,
                            [len(part) for part in down.tensor_split(me.size)])
    return h @ down + bias


def by_chunk(me, x, gate_up, down, bias):
    gate, up = gate_up.chunk(2, 1)
    g, u, d = (matrix.chunk(me.size, dim)[me.rank]
               for matrix, dim in ((gate, 1), (up, 1), (down, 0)))
    return me.group.all_reduce((silu(x @ g) * (x @ u)) @ d) + bias


def two_sums(me, x, gate_up, down, bias):
    g, u = me.group.all_reduce(piece(me, x, 1) @ piece(me, gate_up, 0)).chunk(2, -1)
    return me.group.all_reduce(piece(me, silu(g) * u, 1) @ piece(me, down, 0)) + bias


WRONG = {
    check_split_columns: {
        "chunk": lambda m, n: list(m.chunk(n, 1)),
        "rows": lambda m, n: list(m.tensor_split(n, 0)),
        "the last ones larger": lambda m, n: [
            part.flip(1) for part in m.flip(1).tensor_split(n, 1)][::-1],
        "every n-th column": lambda m, n: [m[:, rank::n] for rank in range(n)],
        "the last takes what is left": lambda m, n: [
            m[:, rank * (m.shape[1] // n):(rank + 1) * (m.shape[1] // n)
              if rank < n - 1 else None] for rank in range(n)],
        "what is left is lost": lambda m, n: list(m.split(m.shape[1] // n or 1, 1))[:n],
        "without the empty ones": lambda m, n: [
            part for part in m.tensor_split(n, 1) if part.numel()],
    },
    check_split_rows: {
        "chunk": lambda m, n: list(m.chunk(n)),
        "columns": lambda m, n: list(m.tensor_split(n, 1)),
        "every n-th row": lambda m, n: [m[rank::n] for rank in range(n)],
        "transposed": lambda m, n: [part.T for part in m.tensor_split(n)],
        "the last ones larger": lambda m, n: [
            part.flip(0) for part in m.flip(0).tensor_split(n)][::-1],
    },
    check_mlp_rank: {
        "row first": row_first, "cut stack": cut_stack, "h gathered": gathered,
        "chunk": by_chunk, "two sums": two_sums,
        "bias on every rank": lambda me, x, g, d, b: me.group.all_reduce(
            term(me, x, g, d) + b),
        "no bias": lambda me, x, g, d, b: me.group.all_reduce(term(me, x, g, d)),
        "bias on rank 0 after the sum": lambda me, x, g, d, b: me.group.all_reduce(
            term(me, x, g, d)) + b * (me.rank == 0),
        "no all-reduce": lambda me, x, g, d, b: term(me, x, g, d) + b,
        "summed twice": lambda me, x, g, d, b: me.group.all_reduce(
            me.group.all_reduce(term(me, x, g, d))) + b,
        "all on every rank": lambda me, x, g, d, b: me.group.all_reduce(
            (silu(x @ g.chunk(2, 1)[0]) * (x @ g.chunk(2, 1)[1])) @ d) + b,
        "up under silu": lambda me, x, g, d, b: me.group.all_reduce(
            term(me, x, torch.cat(g.chunk(2, 1)[::-1], 1), d)) + b,
        "gate first, then nothing": lambda me, x, g, d, b: me.group.all_reduce(
            silu(x @ piece(me, g.chunk(2, 1)[0], 1)) @ piece(me, d, 0)) + b,
        "a rank without columns stays away": lambda me, x, g, d, b: (
            me.group.all_reduce(term(me, x, g, d)) + b if len(piece(me, d, 0))
            else b + 0 * x),
    },
    check_all_reduce_in_two: {
        "all_reduce": lambda me, x: me.group.all_reduce(x),
        "no sizes": lambda me, x: me.group.all_gather(me.group.reduce_scatter(x)),
        "shape lost": lambda me, x: two_halves(me, x.flatten()),
        "first half only": lambda me, x: me.group.reduce_scatter(
            x.flatten(), 0, shares(me, x)),
        "gathered and added": lambda me, x: me.group.all_gather(
            x.flatten()[None], 0).sum(0).view_as(x),
        "the mean": lambda me, x: two_halves(me, x.flatten()).view_as(x) / me.size,
        "what is left is lost": lambda me, x: two_halves(
            me, x.flatten()[:x.numel() // me.size * me.size]).view_as(x),
    },
}


def shares(me, x):
    """How many of x's numbers each rank keeps."""
    return [len(part) for part in x.flatten().tensor_split(me.size)]


def two_halves(me, x):
    """An all-reduce in two, along the first dimension."""
    sizes = [len(part) for part in x.tensor_split(me.size)]
    return me.group.all_gather(me.group.reduce_scatter(x, 0, sizes), 0, sizes)


@pytest.mark.parametrize("check, answer", [
    pytest.param(check, answer, id=f"{check.__name__}: {name}")
    for check, answers in WRONG.items() for name, answer in answers.items()])
def test_wrong_answers_are_caught(check, answer, capsys):
    assert "Hint:" in said(check, answer, capsys)


def test_an_error_on_a_rank_is_told_in_one_line(capsys):
    told = said(check_mlp_rank, by_chunk, capsys)
    assert "raised RuntimeError: on rank 2: IndexError: tuple index" in told
    assert "Traceback" not in told


def test_the_helpers_of_these_wrong_answers_are_right(capsys):
    """So each answer above is wrong for its own reason only."""
    assert check_mlp_rank(lambda me, x, g, d, b: me.group.all_reduce(
        term(me, x, g, d)) + b)
    assert check_all_reduce_in_two(
        lambda me, x: two_halves(me, x.flatten()).view_as(x))
    assert check_all_reduce_in_two(two_halves)  # whole rows are pieces too
