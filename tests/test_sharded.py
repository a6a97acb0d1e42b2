"""What chapter 08 shows of a sharded decoder, on records that were made up."""
import pytest

from nds_helpers.lab import network, sharded
from nds_helpers.parallel import Call


def record(began, computing, exchange=1.0, calls=4):
    """A rank that computes, exchanges, computes ... and computes once more."""
    found, now = [], began
    for _ in range(calls):
        found.append(Call("all_reduce", 8, exchange, now + computing))
        now += computing + exchange
    return began, found, now + computing


def test_the_quickest_forward_comes_first():
    slow, quick = record(0.0, 5.0), record(50.0, 2.0)
    forwards = sharded.forwards_of([[slow, quick], [slow, quick]])
    assert [ranks[0][-1].end for ranks in forwards] == [14.0, 29.0]
    assert sharded.beginning(forwards[0], calls=2) == 6.0


def test_layers_hold_two_calls_each_and_the_ends_one():
    """Embedding, one layer, logits: calls 0, then 1 and 2, then 3 and what follows."""
    forwards = sharded.forwards_of([[record(0.0, 2.0)] * 3] * 2)
    rows = sharded.by_layer(forwards, layers=1)
    assert [row["compute"] for row in rows] == [2.0, 4.0, 4.0]
    assert [row["exchange"] for row in rows] == [1.0, 2.0, 1.0]
    assert [row["wait"] for row in rows] == [0.0, 0.0, 0.0]


def test_the_table_shows_who_waits():
    late = [Call("all_reduce", 8, 1.0, 3.0)]
    early = [Call("all_reduce", 8, 3.0, 1.0)]
    forwards = sharded.forwards_of([[(0.0, early, 5.0)], [(0.0, late, 5.0)]])
    table = sharded.blame_table(forwards)
    assert list(table["of it waiting"]) == ["2000.0", "0.0"]
    assert list(table["ms in collectives"]) == ["3000.0", "1000.0"]
    assert list(table["ms computing"]) == ["2000.0", "4000.0"]


def test_pictures_of_the_exchange(ax):
    sizes, measured = [1024, 4096], {"one": [1e-5, 2e-5], "other": [1e-4, 2e-4]}
    sharded.draw_exchange(ax, sizes, measured)
    assert [list(line.get_ydata()) for line in ax.lines] == [[10, 20], [100, 200]]
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_points_are_measured_and_dashes_predicted(ax):
    sizes, measured = [1024, 4096], {"one": [1e-5, 2e-5]}
    sharded.draw_fit(ax, sizes, measured, {"one": network.Cost(3e-6, 1e-9)})
    points, dashes = ax.lines
    assert list(points.get_ydata()) == pytest.approx([10, 20])
    assert list(dashes.get_ydata()) == pytest.approx([4.024, 7.096])
    assert dashes.get_linestyle() == "--"


@pytest.mark.parametrize("doubling, scale", [(True, "log"), (False, "linear")])
def test_scaling_shows_break_even(ax, doubling, scale):
    sharded.draw_scaling(ax, {"a": ([1, 2, 4], [1.0, 1.5, 0.9])}, "GPUs", "speed",
                         doubling=doubling)
    assert ax.get_xscale() == scale and list(ax.get_xticks()) == [1, 2, 4]
    assert any(list(line.get_ydata()) == [1, 1] for line in ax.lines)


def test_table_of_links():
    table = sharded.links_table([network.NVLINK, network.ETHERNET], 4)
    assert list(table["alpha, 4 GPUs"]) == [10.2, 36.6]
