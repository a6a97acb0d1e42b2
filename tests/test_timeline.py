"""Timelines: every moment of a rank is one of three things, and is drawn as such."""
import pytest

from nds_helpers.lab.timeline import (
    KINDS,
    Span,
    draw_split,
    draw_timeline,
    spans,
    split,
)
from nds_helpers.parallel import Call

# Rank 1 is late at the first collective, rank 0 at the second; the clock begins at 100.
RECORDS = [
    (100.0, [Call("all_reduce", 8, 4.0, 101.0), Call("all_gather", 8, 1.0, 109.0)],
     111.0),
    (100.5, [Call("all_reduce", 8, 1.0, 103.5), Call("all_gather", 8, 4.0, 106.0)],
     110.5),
]


def seconds(rank):
    """(kind, seconds) of every span that isn't empty."""
    return [(s.kind, s.seconds) for s in rank if s.seconds]


def test_the_early_rank_waits():
    first, second = spans(RECORDS)
    assert seconds(first) == [("compute", 1), ("wait", 2.5), ("exchange", 1.5),
                              ("compute", 4), ("exchange", 1), ("compute", 1)]
    assert seconds(second) == [("compute", 3), ("exchange", 1), ("compute", 1.5),
                               ("wait", 3), ("exchange", 1), ("compute", 0.5)]


def test_spans_have_no_gaps_and_know_their_call():
    for rank, (began, _, ended) in zip(spans(RECORDS), RECORDS):
        assert rank[0].begin == began - 100 and rank[-1].end == ended - 100
        assert all(a.end == b.begin for a, b in zip(rank, rank[1:]))
        assert [span.call for span in rank] == [0, 0, 0, 1, 1, 1, 2]


def test_exchange_begins_at_one_moment_on_all_ranks():
    for pair in zip(*([s.begin for s in rank if s.kind == "exchange"]
                      for rank in spans(RECORDS))):
        assert len(set(pair)) == 1


def test_nobody_waits_beyond_the_end_of_a_call():
    """A broadcast's source may be through before the others have come."""
    source = 0.0, [Call("broadcast", 8, 1.0, 0.0)], 1.0
    other = 0.0, [Call("broadcast", 0, 1.0, 5.0)], 6.0
    first, second = spans([source, other])
    assert seconds(first) == [("wait", 1)]
    assert seconds(second) == [("compute", 5), ("exchange", 1)]


def test_records_of_other_collectives_are_refused():
    other = (100.0, RECORDS[0][1][:1], 106.0)
    with pytest.raises(ValueError, match="same collectives"):
        spans([RECORDS[0], other])


def test_split_adds_up_to_the_whole():
    for rank in spans(RECORDS):
        assert sum(split(rank).values()) == rank[-1].end - rank[0].begin
    assert split(spans(RECORDS)[0]) == {"compute": 6, "wait": 2.5, "exchange": 2.5}


def test_timeline_has_a_lane_a_rank_and_a_look_a_kind(ax):
    draw_timeline(ax, spans(RECORDS))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rank 0", "rank 1"]
    assert ax.get_xlim() == (0, 11000)
    assert len(ax.collections) == 2 * len(KINDS)
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == [label for label, _ in KINDS.values()]


def test_timeline_ends_where_it_is_told(ax):
    draw_timeline(ax, spans(RECORDS), until=2.0)
    assert ax.get_xlim() == (0, 2000)
    assert len(ax.collections[0].get_paths()) == 1  # rank 0's first computing alone


def test_split_bars_are_stacked(ax):
    draw_split(ax, [dict(compute=0.001, exchange=0.002), dict(compute=0.003)], "ab")
    bars = [(bar.get_y(), bar.get_height()) for bar in ax.patches]
    assert bars == [(0, 1), (0, 3), (1, 2), (3, 0)]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["computing", "exchanging"]


def test_span_knows_its_length():
    assert Span("wait", 1.0, 3.5, 0).seconds == 2.5
