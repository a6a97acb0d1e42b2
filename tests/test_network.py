"""The alpha-beta model: fits what it made itself, and counts what `traffic` counts."""
import pytest

from nds_helpers.lab.network import (
    ETHERNET,
    H100,
    LLAMA_70B,
    NVLINK,
    PCIE,
    Cost,
    Device,
    Link,
    Shape,
    fit,
    forward_parts,
)
from nds_helpers.models import load_pair
from nds_helpers.parallel import traffic

SIZES = [1024, 16384, 262144, 2**20]
FREE = Link("free", 0.0, 0.0, 1.0, "")  # a byte a second: seconds are bytes
CALLS = Link("calls", 1.0, 0.0, float("inf"), "")  # a second a call, whatever is in it
STEPS = Link("steps", 0.0, 1.0, float("inf"), "")  # a second a step
AT_ONCE = Device("", float("inf"), float("inf"), 1.0, "")


def test_fit_finds_the_numbers_that_made_the_times():
    made = Cost(6e-5, 3e-10)
    found = fit(SIZES, [made.seconds(size) for size in SIZES])
    assert found == pytest.approx(made, rel=1e-9)


def test_fit_weighs_relative_errors():
    """An absolute fit would give everything to the long calls: alpha near 80 µs."""
    times = [5e-5, 5e-5, 1.3e-4, 4.5e-4]
    found = fit(SIZES, times)
    errors = [found.seconds(size) / t - 1 for size, t in zip(SIZES, times)]
    assert max(map(abs, errors)) < 0.1


@pytest.mark.parametrize("times, wanted", [
    ([1e-6, 5e-5, 2e-3, 3e-2], Cost(0.0, pytest.approx(1e-8, rel=2))),
    ([4e-4, 3e-4, 2e-4, 1e-4], Cost(pytest.approx(2e-4, rel=0.5), 0.0)),
])
def test_fit_never_goes_below_zero(times, wanted):
    assert fit(SIZES, times) == wanted


def test_a_link_pays_once_a_call_and_once_a_step():
    link = Link("", 10.0, 1.0, 4.0, "")
    assert link.all_reduce(2) == (12.0, 0.25)
    assert link.all_reduce(8) == (24.0, 0.25)
    assert link.all_gather(8) == (17.0, 0.25)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_forward_exchanges_what_traffic_counts(size):
    config = load_pair("tiny").target.config
    shape = Shape("tiny", config.layers, config.width, config.vocab_size, 1.0, 4)
    ranks = traffic(config, size, 5)
    sent = sum(b for rank in ranks for _, b in rank.values()) / size
    assert forward_parts(shape, AT_ONCE, FREE, size, 5, 5)[1] == pytest.approx(sent)
    calls = sum(calls for calls, _ in ranks[0].values())
    assert forward_parts(shape, AT_ONCE, CALLS, size)[1] == calls
    steps = (size - 1) * (2 * (calls - 1) + 1)
    assert forward_parts(shape, AT_ONCE, STEPS, size)[1] == steps


def test_one_rank_exchanges_nothing():
    assert forward_parts(LLAMA_70B, H100, ETHERNET, 1)[1] == 0


def test_computing_is_the_longer_of_reading_and_working():
    device, shape = Device("", 10.0, 100.0, 1.0, ""), Shape("", 1, 1, 1, 1000.0, 2)
    assert forward_parts(shape, device, FREE, 4)[0] == 2000 / 10 / 4
    assert forward_parts(shape, device, FREE, 4, 20)[0] == 2 * 1000 * 20 / 100 / 4


def test_the_chapter_s_story_about_the_big_model():
    """What chapter 08 says about its own figures; they depend on no machine."""
    def speed(link, size):
        one = forward_parts(LLAMA_70B, H100, link, 1)[0]
        return one / sum(forward_parts(LLAMA_70B, H100, link, size))

    assert 5 < speed(NVLINK, 8) < 6 and speed(PCIE, 8) < speed(NVLINK, 8)
    assert speed(ETHERNET, 8) < speed(ETHERNET, 4) == pytest.approx(2.5, abs=0.1)
    compute, exchange = forward_parts(LLAMA_70B, H100, ETHERNET, 8)
    assert exchange > 2 * compute and compute == pytest.approx(5e-3, rel=0.1)
    nvlink = forward_parts(LLAMA_70B, H100, NVLINK, 8)[1]
    assert nvlink == pytest.approx(compute / 2, rel=0.1)
    prompt = [forward_parts(LLAMA_70B, H100, link, 8, 2048) for link in (NVLINK, PCIE)]
    assert prompt[0][1] < prompt[0][0] and prompt[1][1] > 4 * prompt[1][0]


def test_constants_name_their_sources():
    assert all(thing.source for thing in (NVLINK, PCIE, ETHERNET, H100))
