"""Checks that every group must pass, each against the plain formula.

They run on the ranks themselves, so this module imports little: `failures(group)`
runs them all and tells what failed.
"""
import traceback
from itertools import product

import torch

SHAPES = [(), (0,), (5,), (3, 4), (2, 0, 3), (2, 3, 4, 5)]
SUMMED = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64,
          torch.int32]
MOVED = SUMMED + [torch.bool, torch.uint8]


def share(rank, shape, dtype=torch.float32):
    """What a rank brings; every rank knows what the others bring."""
    g = torch.Generator().manual_seed(100 + rank)
    values = 3 * torch.randn(tuple(shape), generator=g, dtype=torch.float64)
    return (values > 0) if dtype == torch.bool else values.abs().to(dtype)


def formula_sum(tensors):
    """Their sum, from the first to the last."""
    total = tensors[0].clone()
    for x in tensors[1:]:
        total += x
    return total


def ranked_sizes(size):
    """Uneven sizes, one a rank, an empty one among them: 1, 0, 3, 2."""
    return [1, 0, 3, 2][:size]


def equal(got, wanted, exact=True):
    """Compares bits, or where the order of a sum is open, values."""
    assert got.is_contiguous() and not got.requires_grad
    rough = 0.05 if wanted.element_size() == 2 else 1e-6
    tolerance = 0 if exact or not wanted.is_floating_point() else rough
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def in_rank_order(group):
    """Whether the group promises rank order: gloo doesn't, above two ranks."""
    return group.size < 3 or type(group).__name__ != "DistributedGroup"


def check_all_reduce(group):
    for shape, dtype in product(SHAPES, SUMMED):
        brought = [share(r, shape, dtype) for r in range(group.size)]
        x = brought[group.rank].clone()
        total = group.all_reduce(x)
        equal(total, formula_sum(brought), in_rank_order(group))
        equal(x, brought[group.rank])
        total.zero_()  # a new tensor: the argument doesn't notice
        equal(x, brought[group.rank])


def check_all_gather(group):
    for dtype, (shape, dim) in product(MOVED, places()):
        brought = [share(r, shape, dtype) for r in range(group.size)]
        x = brought[group.rank].clone()
        got = group.all_gather(x, dim)
        equal(got, torch.cat(brought, dim).contiguous())
        got.zero_()
        equal(x, brought[group.rank])


def check_uneven_all_gather(group):
    sizes = ranked_sizes(group.size)
    for dtype, dim in product(MOVED, (0, 1, -1)):
        brought = [uneven(r, n, dim, dtype) for r, n in enumerate(sizes)]
        got = group.all_gather(brought[group.rank], dim, sizes)
        equal(got, torch.cat(brought, dim).contiguous())


def check_reduce_scatter(group):
    sizes = ranked_sizes(group.size)
    for dtype, dim, pieces in product(SUMMED, (0, 1, -1), (None, sizes)):
        length = 3 * group.size if pieces is None else sum(pieces)
        shape = [2, 3, 4]
        shape[dim] = length
        brought = [share(r, shape, dtype) for r in range(group.size)]
        x = brought[group.rank].clone()
        got = group.reduce_scatter(x, dim, pieces)
        own = formula_sum(brought).split(pieces or [3] * group.size, dim)[group.rank]
        equal(got, own.contiguous(), in_rank_order(group))
        got.zero_()
        equal(x, brought[group.rank])


def check_broadcast(group):
    for dtype, shape, source in product(MOVED, SHAPES, range(group.size)):
        x = share(group.rank, shape, dtype)
        got = group.broadcast(x, source)
        equal(got, share(source, shape, dtype))
        got.zero_()
        equal(x, share(group.rank, shape, dtype))


def check_gather(group):
    sizes = ranked_sizes(group.size)
    for dtype, dim, to in product(MOVED, (0, 1, -1), range(group.size)):
        brought = [uneven(r, n, dim, dtype) for r, n in enumerate(sizes)]
        got = group.gather(brought[group.rank], dim, sizes, to)
        if group.rank == to:
            equal(got, torch.cat(brought, dim).contiguous())
        else:
            assert got is None
        even = group.gather(share(group.rank, (2, 3), dtype), to=to)
        assert (even is None) == (group.rank != to)
        if even is not None:
            assert even.shape == (2, 3 * group.size)


def check_scatter(group):
    sizes = ranked_sizes(group.size)
    for dtype, dim, source in product(MOVED, (0, 1, -1), range(group.size)):
        shape = [2, 3, 4]
        shape[dim] = sum(sizes)
        x = share(group.rank, shape, dtype)
        got = group.scatter(x, dim, sizes, source)
        wanted = share(source, shape, dtype).split(sizes, dim)[group.rank]
        equal(got, wanted.contiguous())
        got.zero_()
        equal(x, share(group.rank, shape, dtype))
        even = group.scatter(share(group.rank, (2, 3 * group.size), dtype), 1)
        equal(even, share(0, (2, 3 * group.size), dtype).split(3, 1)[group.rank]
              .contiguous())


def check_strided_arguments(group):
    """Transposed and cut tensors, and a weight that wants gradients."""
    wide = [share(r, (6, 8)) for r in range(group.size)]
    for cut in (lambda x: x.t(), lambda x: x[::2, 1::3], lambda x: x[1].expand(4, 8)):
        x = cut(wide[group.rank].clone().requires_grad_())
        brought = [cut(other) for other in wide]
        total = formula_sum([other.contiguous() for other in brought])
        equal(group.all_reduce(x), total, in_rank_order(group))
        equal(group.broadcast(x), brought[0].contiguous())
        for dim in (0, 1):
            equal(group.all_gather(x, dim), torch.cat(brought, dim).contiguous())
            sizes = [x.shape[dim]] + [0] * (group.size - 1)
            own = total if group.rank == 0 else total.narrow(dim, 0, 0)
            equal(group.reduce_scatter(x, dim, sizes), own.contiguous(),
                  in_rank_order(group))


def check_barrier_and_calls(group):
    with group.recording() as calls:
        group.barrier()
        group.broadcast(torch.ones(3))
    assert [call.operation for call in calls] == ["barrier", "broadcast"]
    assert calls == group.calls[-2:] and calls[0].bytes == 0
    assert calls[0].started + calls[0].seconds <= calls[1].started


def check_inference_mode(group):
    """What a collective made or used in inference mode works outside, and back."""
    x = share(group.rank, (3,), torch.complex128)  # a type that nobody used before
    with torch.inference_mode():
        inside = group.all_reduce(x)
    for _ in range(2):  # a group may take two buffers in turns
        outside = group.all_reduce(x)
        outside += 1
    with torch.inference_mode():
        equal(group.all_reduce(inside), group.size * inside, exact=False)


def check_same_bits(group):
    """On all ranks, and (where sums are in rank order) beside other rows."""
    x = share(group.rank, (7, 1000))
    total = group.all_reduce(x)
    everyone = group.all_gather(total[None], dim=0)
    assert all(torch.equal(other, total) for other in everyone)
    if in_rank_order(group):
        rows = [group.all_reduce(row) for row in x]
        assert torch.equal(torch.stack(rows), total)
        piece = group.reduce_scatter(x, 0, [7] + [0] * (group.size - 1))
        assert group.rank or torch.equal(piece, total)


def check_refusals(group):
    """Wrong arguments are refused before anything is sent."""
    size, x = group.size, torch.ones(2, 3)
    before = len(group.calls)
    refuses(TypeError, "all_reduce needs a tensor; got list", group.all_reduce, [1])
    refuses(TypeError, "with x.int()", group.all_reduce, x > 0)
    refuses(TypeError, "with x.int()", group.reduce_scatter, x > 0)
    refuses(ValueError, "along dim 2 needs", group.all_gather, x, 2)
    refuses(ValueError, "got shape []", group.gather, torch.tensor(1.0))
    refuses(ValueError, f"needs {size} sizes", group.all_gather, x, 0, [2] * (size + 1))
    refuses(ValueError, "none below 0", group.all_gather, x, 0, [-1] * size)
    refuses(ValueError, "but its tensor has shape [2, 3]", group.all_gather, x, 0,
            [9] * size)
    refuses(ValueError, f"ask for {size} along dim 0", group.reduce_scatter,
            torch.ones(size + 1), 0, [1] * size)
    refuses(ValueError, f"one of the ranks 0 to {size - 1}; got {size}",
            group.broadcast, x, size)
    refuses(ValueError, "got -1", group.gather, x, to=-1)
    if size > 1:
        refuses(ValueError, f"can't cut {size + 1} into {size}", group.reduce_scatter,
                torch.ones(size + 1))
    assert len(group.calls) == before


def check_subgroup(group):
    """Every second rank, the last alone: what they exchange stays among them."""
    for members in (range(0, group.size, 2), [group.size - 1], range(group.size)):
        some, members = group.subgroup(members), list(members)
        if group.rank not in members:
            assert some is None
            continue
        assert (some.rank, some.size) == (members.index(group.rank), len(members))
        brought = [share(r, (3, 4)) for r in members]
        x = brought[some.rank]
        equal(some.all_reduce(x), formula_sum(brought), in_rank_order(some))
        equal(some.broadcast(x, some.size - 1), brought[-1])
        equal(some.all_gather(x), torch.cat(brought, -1))
    refuses(ValueError, "at least one rank", group.subgroup, [])
    refuses(ValueError, f"got {group.size}", group.subgroup, [0, group.size])


def refuses(kind, words, operation, *args, **kwargs):
    try:
        operation(*args, **kwargs)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def places():
    """(shape, dim) for every dimension of every shape that has one."""
    return [(shape, dim) for shape in SHAPES for dim in range(-len(shape), len(shape))]


def uneven(rank, length, dim, dtype):
    """A rank's piece [2, 3, 4], but with `length` along dim."""
    shape = [2, 3, 4]
    shape[dim] = length
    return share(rank, shape, dtype)


CHECKS = [check for name, check in globals().items() if name.startswith("check_")]


def failures(group):
    """Runs every check: dict, its name -> what went wrong."""
    found = {}
    for check in CHECKS:
        try:
            check(group)
        except Exception:
            found[check.__name__] = traceback.format_exc()
    return found
