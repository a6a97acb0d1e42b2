"""Chapter 08: checks catch the plausible mistakes, cells agree with the package."""
import pytest
import torch
from helpers import load_chapter, said, stub

from nds_helpers.classroom.real_ranks import (
    check_exchange_seconds,
    check_late_rank,
    check_sum_of_list,
)
from nds_helpers.lab import network, sharded
from nds_helpers.lab.timeline import spans, split
from nds_helpers.models import load_pair
from nds_helpers.parallel import Call, simulate, traffic

CHECKS = {"sum_of_list": check_sum_of_list, "late_rank": check_late_rank,
          "exchange_seconds": check_exchange_seconds}
CONFIG = load_pair("tiny").target.config


@pytest.fixture(scope="module")
def chapter():
    """What the chapter's cells and solutions define."""
    return load_chapter("08_launch_real_ranks", network=network, split=split,
                        big=network.LLAMA_70B, gpu=network.H100, config=CONFIG)


@pytest.mark.parametrize("link", [network.NVLINK, network.PCIE, network.ETHERNET])
@pytest.mark.parametrize("given", [(1, 1), (5, 5), (2048, 1)])
def test_prediction_agrees_with_the_package(chapter, link, given):
    for size in (1, 2, 4, 8):
        theirs = network.forward_parts(network.LLAMA_70B, network.H100, link, size,
                                       *given)
        assert chapter.predict(link, size, *given) == pytest.approx(theirs)


def test_fit_agrees_with_the_package(chapter):
    sizes, seconds = [1024, 16384, 2**20], [5e-5, 7e-5, 6e-4]
    theirs = network.fit(sizes, seconds)
    assert chapter.fit_line(sizes, seconds) == pytest.approx(theirs, rel=1e-9)


def test_cutting_agrees_with_the_package(chapter):
    records = [(0.0, [Call("all_reduce", 8, 4.0, 1.0), Call("barrier", 0, 1.0, 9.0)],
                11.0),
               (0.0, [Call("all_reduce", 8, 1.5, 3.5), Call("barrier", 0, 4.0, 6.0)],
                10.5)]
    for record, rank in zip(records, spans(records)):
        assert chapter.cut(*record, [3.5, 9.0]) == [span[:3] for span in rank]


def test_layers_agree_with_the_package(chapter):
    """On calls that differ, so that a span in a wrong layer would show."""
    calls = [Call("all_reduce", 8, 1 + 0.1 * n, 10.0 * n)
             for n in range(2 * CONFIG.layers + 2)]
    forward = spans([(-5.0, calls, 400.0)] * 2)
    theirs = sharded.by_layer([forward], CONFIG.layers)
    assert chapter.by_layer(forward[0]) == theirs


@pytest.mark.parametrize("size", [2, 4])
def test_the_exercise_counts_what_the_group_counts(chapter, size):
    """With a second a byte, the solution's seconds are the bytes of `traffic`."""
    sent = traffic(CONFIG, size, 1)[0]["all_reduce"][1]
    assert chapter.exchange_seconds(0, 1, CONFIG.layers, CONFIG.width, 4, size) == sent


def test_a_mismatch_is_one(chapter):
    with pytest.raises(RuntimeError, match="every rank must make the same call"):
        simulate(chapter.misfit, 2, torch.ones(3))


@pytest.mark.parametrize("name", CHECKS)
def test_solution_passes_and_stub_does_not(chapter, name, capsys):
    assert said(CHECKS[name], getattr(chapter, name), capsys).startswith("Passed")
    assert said(CHECKS[name], stub, capsys) == "Not yet: stub is still to be written.\n"


def part(me, numbers, dtype=torch.float64):
    """A rank's share as a tensor."""
    return torch.tensor([sum(numbers[me.rank::me.size])], dtype=dtype)


def even_share(me, numbers):
    length = len(numbers) // me.size
    return numbers[me.rank * length:(me.rank + 1) * length]


def own_list(me, numbers):
    return [numbers[me.rank]] if me.rank < len(numbers) else []


WRONG_SUMS = {
    "everybody adds up everything": lambda me, numbers: me.group.all_reduce(
        torch.tensor([sum(numbers)], dtype=torch.float64)).item(),
    "some are left over": lambda me, numbers: me.group.all_reduce(
        torch.tensor([sum(even_share(me, numbers))], dtype=torch.float64)).item(),
    "one number a rank": lambda me, numbers: me.group.all_reduce(
        torch.tensor([sum(own_list(me, numbers))], dtype=torch.float64)).item(),
    "no exchange": lambda me, numbers: part(me, numbers).item(),
    "no exchange, everything": lambda me, numbers: sum(numbers),
    "another type where there is nothing": lambda me, numbers: me.group.all_reduce(
        torch.tensor([sum(numbers[me.rank::me.size])])).item(),
    "float32": lambda me, numbers: me.group.all_reduce(
        part(me, numbers, torch.float32)).item(),
    "gathered": lambda me, numbers: me.group.all_gather(part(me, numbers)).sum().item(),
    "a tensor": lambda me, numbers: me.group.all_reduce(part(me, numbers)),
    "nobody else comes": lambda me, numbers: (
        me.group.all_reduce(part(me, numbers)).item() if me.rank == 0 else 0.0),
}


def waits(started):
    """What each rank waits in all."""
    return [sum(max(times) - times[rank] for times in zip(*started))
            for rank in range(len(started))]


def times_last(started):
    """How often each rank comes last."""
    return [sum(times[rank] == max(times) for times in zip(*started))
            for rank in range(len(started))]


def rank_of(score):
    """The rank with the highest score, as an answer to the exercise."""
    return lambda started: (lambda found: found.index(max(found)))(score(started))


WRONG_RANKS = {
    "who waits most": rank_of(waits),
    "who is last most often": rank_of(times_last),
    "the first call only": rank_of(lambda started: [s[0] for s in started]),
    "the last call only": rank_of(lambda started: [s[-1] for s in started]),
    "the latest of all times": rank_of(lambda started: [max(s) for s in started]),
    "the longest stretch": rank_of(lambda started: [s[-1] - s[0] for s in started]),
    "always rank 0": lambda started: 0,
}


def exchange(sums=lambda layers: 1 + 2 * layers, share=lambda n: 2 * (n - 1) / n,
             calls=lambda n: 1, alone=True, size=lambda itemsize: itemsize):
    """A version of exchange_seconds with one idea replaced."""
    def exchange_seconds(alpha, beta, layers, width, itemsize, n):
        if alone and n == 1:
            return 0.0
        sent = share(n) * width * size(itemsize)
        return sums(layers) * (alpha * calls(n) + beta * sent)

    return exchange_seconds


WRONG_SECONDS = {
    "no embedding": exchange(sums=lambda layers: 2 * layers),
    "one sum a layer": exchange(sums=lambda layers: 1 + layers),
    "two for the embedding": exchange(sums=lambda layers: 2 + 2 * layers),
    "the embedding in every layer": exchange(sums=lambda layers: 3 * layers),
    "half of the ring": exchange(share=lambda n: (n - 1) / n),
    "whole tensors": exchange(share=lambda n: 1),
    "twice the tensor": exchange(share=lambda n: 2),
    "to every rank": exchange(share=lambda n: n - 1),
    "alpha for every step": exchange(calls=lambda n: 2 * (n - 1)),
    "alpha for every rank": exchange(calls=lambda n: n - 1),
    "numbers, not bytes": exchange(size=lambda itemsize: 1),
    "always float16": exchange(size=lambda itemsize: 2),
    "one rank pays alpha": exchange(alone=False),
}


@pytest.mark.parametrize("check, wrong", [
    pytest.param(CHECKS[name], wrong, id=f"{name}: {idea}")
    for name, ideas in [("sum_of_list", WRONG_SUMS), ("late_rank", WRONG_RANKS),
                        ("exchange_seconds", WRONG_SECONDS)]
    for idea, wrong in ideas.items()])
def test_wrong_answers_are_told_apart(check, wrong, capsys):
    text = said(check, wrong, capsys)
    assert text.startswith("Not yet") and "Hint: " in text


def test_the_mistakes_are_made_from_a_right_answer(chapter):
    given = 1.0, 0.5, 3, 8, 2, 4
    assert exchange()(*given) == chapter.exchange_seconds(*given)
    started = [[1.0, 6.0], [3.0, 5.5]]
    assert rank_of(lambda s: [-w for w in waits(s)])(started) == 1
