"""The trace counts what was committed, and nothing else."""
import math

import pytest
import torch

from nds_helpers.decoding import Result, Round, Trace
from nds_helpers.decoding.trace import collect


def a_round(k, guesses, accepted, kind, tokens, **more):
    return Round(k=k, guesses=guesses, accepted=accepted, kind=kind, tokens=tokens,
                 p=[.5] * len(guesses), q=[.5] * len(guesses), **more)


TRACE = Trace([
    a_round(4, [1, 2, 3, 4], 4, "bonus", [1, 2, 3, 4, 5], drafting=1, verifying=2),
    a_round(4, [1, 2, 3, 4], 2, "corrected", [1, 2, 9], drafting=1, verifying=2),
    a_round(0, [], 0, "bonus", [7], verifying=1),
    a_round(4, [1, 2], 0, "corrected", [8], synchronising=1),
    a_round(5, [1, 2, 0, 4, 4], 3, "ended", [1, 2, 0])])  # 0 ends the text


def test_summary():
    found = TRACE.summary()
    assert found == dict(
        rounds=5, committed=13, drafted=13, accepted=9, acceptance_rate=9 / 11,
        accepted_per_drafted=9 / 13, committed_per_round=13 / 5, seconds=8,
        tokens_per_second=13 / 8)


def test_nothing_after_an_end_token_counts():
    """CASES 16: five verified, the end is third: 3."""
    last = TRACE[-1]
    assert (last.drafted, last.counted, len(last.tokens)) == (5, 3, 3)
    found = Trace([last]).summary()
    assert (found["drafted"], found["committed"], found["accepted"]) == (3, 3, 3)
    assert found["acceptance_rate"] == found["accepted_per_drafted"] == 1


def test_a_part_of_a_trace_is_a_trace():
    assert TRACE[:1].summary()["committed"] == 5
    assert (TRACE[:2] + TRACE[2:]).summary() == TRACE.summary()
    assert TRACE[0] is list(TRACE)[0]


def test_by_position():
    assert TRACE.by_position() == [(3, 4), (3, 3), (2, 3), (1, 1)]
    assert Trace().by_position() == []


def test_a_rate_of_nothing_is_nan():
    for trace in (Trace(), Trace([a_round(0, [], 0, "bonus", [3])])):
        found = trace.summary()
        assert math.isnan(found["acceptance_rate"])
        assert math.isnan(found["accepted_per_drafted"])
    assert math.isnan(Trace().summary()["committed_per_round"])


def test_to_frame():
    frame = TRACE.to_frame()
    assert frame["accepted"].tolist() == [4, 2, 0, 0, 3]
    assert frame["drafted"].tolist() == [4, 4, 0, 2, 5]
    assert frame["committed"].tolist() == [5, 3, 1, 1, 3]
    for name in ("k", "kind", "p", "q", "drafting", "verifying", "synchronising",
                 "bytes_sent"):
        assert name in frame
    assert len(Trace().to_frame()) == 0


@pytest.mark.parametrize("rounds", [[], list(TRACE)])
def test_collect(rounds):
    result = collect(iter(rounds))
    assert isinstance(result, Result) and isinstance(result.trace, Trace)
    assert result.tokens.dtype == torch.long
    assert result.tokens.tolist() == [t for r in rounds for t in r.tokens]
