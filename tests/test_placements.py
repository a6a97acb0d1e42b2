"""The places of the draft, side by side."""
import math

import pytest

from nds_helpers.distributed import Workers
from nds_helpers.lab import placements, sweep, watch
from nds_helpers.models import load_pair


def a_record(placement, seconds, idle, plain=0.02):
    """What `sweep.one` would return of two ranks, made up."""
    phases = dict(draft=0.002, compute=0.006, communication=0.001, verdict=0.001)
    return dict(placement=placement, seconds=seconds, plain=plain,
                by_position=[(3, 4), (2, 3)],
                phases=[phases | {"idle": 0.0},
                        phases | {"compute": 0.006 - idle, "idle": idle}])


def test_the_fastest_comes_first_and_every_rank_has_its_idle_share():
    frame = placements.table([a_record("rank 0", 0.01, 0.002),
                              a_record("own rank", 0.04, 0.005, plain=0.025)])
    assert list(frame.index) == ["rank 0", "none: plain decoding", "own rank"]
    assert frame["tokens/s"].tolist() == pytest.approx([100, 50, 25])
    assert frame.loc["rank 0", "acceptance"] == pytest.approx(5 / 7)
    assert frame.loc["own rank", "ms a round"] == pytest.approx(10)
    assert frame.loc["own rank", ["rank 0 idles", "rank 1 idles"]].tolist() == (
        pytest.approx([0, 0.5]))
    assert math.isnan(frame.loc["none: plain decoding", "rank 0 idles"])


def test_all_places_on_live_ranks():
    pair = load_pair("tiny")
    with Workers(2) as workers:
        workers.run(watch.load)
        records = placements.compare(workers, pair, k=2, prompts=sweep.PROMPTS[:2],
                                     tokens=8)
    assert [r["placement"] for r in records] == list(sweep.PLACEMENTS)
    frame = placements.table(records)
    assert set(frame.index) == {"none: plain decoding", *sweep.PLACEMENTS}
    shares = frame.drop(index="none: plain decoding")[["rank 0 idles", "rank 1 idles"]]
    assert ((shares >= 0) & (shares < 1)).all(axis=None)
