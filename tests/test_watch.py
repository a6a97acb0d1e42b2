"""What a rank notes of its own time, and how that becomes five phases."""
import pytest
import torch
from helpers import generator

from nds_helpers.decoding import ModelDrafter, Sampling, Trace, speculative
from nds_helpers.lab import watch
from nds_helpers.lab.phases import (
    PHASES,
    bottleneck,
    phased,
    pieces,
    seconds_by_phase,
)
from nds_helpers.lab.sweep import PLACEMENTS
from nds_helpers.lab.timeline import Span
from nds_helpers.lab.watch import Mark, Watched
from nds_helpers.models import load_pair
from nds_helpers.parallel import Call, shard_model, simulate

PROMPT = torch.tensor([17, 300, 5, 41, 77])
DRAFTING = {"rank 0": [True, False], "every rank": [True, True],
            "sharded": [True, True], "own rank": [True, False]}


@pytest.fixture(scope="module")
def pair():
    """The tiny pair in float64: any number of ranks gives the same tokens."""
    pair = load_pair("tiny")
    pair.target.double(), pair.draft.double()
    return pair


@pytest.fixture(scope="module", params=PLACEMENTS)
def watched(request, pair):
    """(placement, what two simulated ranks noted)."""
    def work(me):
        team = me.group.subgroup([1])
        me.state.update(target=shard_model(pair.target, me.group), draft=pair.draft,
                        draft_shard=shard_model(pair.draft, me.group),
                        team_target=shard_model(pair.target, team) if team else None)
        return watch.decode(me, PROMPT, 3, 0.8, request.param, 16, 5)

    return request.param, simulate(work, 2)


def test_watching_changes_nothing(watched, pair):
    expected = speculative(pair.target, ModelDrafter(pair.draft), PROMPT, k=3,
                           max_new_tokens=16, sampling=Sampling(0.8),
                           generator=generator(5))
    for noted in watched[1]:
        assert noted.tokens == expected.tokens.tolist()
        assert [r.tokens for r in noted.trace] == [
            r.tokens for r in expected.trace[1:]]


def test_each_round_is_marked_where_it_happened(watched):
    placement, ranks = watched
    for rank, (drafts, noted) in enumerate(zip(DRAFTING[placement], ranks)):
        asked = sum(r.k > 0 for r in noted.trace)
        kinds = [mark.phase for mark in noted.marks]
        ahead = placement == "own rank" and rank == 0
        if ahead:  # drafts thrown away come on top; the target is elsewhere
            assert kinds.count("draft") >= asked and "compute" not in kinds
        else:
            assert kinds.count("draft") == (asked if drafts else 0)
            assert kinds.count("compute") == 2 * len(noted.trace)  # stream, logits
        assert all(noted.began <= m.began <= m.ended <= noted.ended
                   for m in noted.marks)
        assert list(noted.calls) == ["all"] + ["team"] * (
            placement == "own rank" and rank == 1)
        assert all(noted.began <= call.started <= noted.ended
                   for calls in noted.calls.values() for call in calls)


def test_phases_fill_the_whole_time(watched):
    placement, ranks = watched
    for drafts, noted, lane in zip(DRAFTING[placement], ranks, phased(ranks)):
        assert all(a.end == b.begin for a, b in zip(lane, lane[1:]))
        total = seconds_by_phase(lane)
        assert sum(total.values()) == pytest.approx(noted.ended - noted.began)
        assert set(total) == set(PHASES)
        assert total["verdict"] > 0 and (total["draft"] > 0) == drafts
        assert (total["compute"] > 0) == (placement != "own rank" or not drafts)


def test_a_rank_that_was_not_loaded_loads_itself():
    def work(me):
        watch.decode(me, PROMPT, 2, 0.0, "rank 0", 3, 0)
        return sorted(me.state)

    assert simulate(work, 1) == [["draft", "draft_shard", "target", "team_target"]]


def test_only_the_named_methods_are_noted():
    marks = []
    text = Watched("a b", "draft", ("split",), marks)
    assert text.upper() == "A B" and marks == []
    assert text.split() == ["a", "b"]
    assert [mark.phase for mark in marks] == ["draft"]
    assert not hasattr(text, "propose")


def test_seconds_a_token_leave_the_first_round_out():
    from test_plots import as_round

    rounds = Trace([as_round(2, 1, "corrected", [5, 6]), as_round(0, 0, "bonus", [7])])
    noted = watch.Noted([1, 5, 6, 7], rounds, 10.0, 16.0, {}, [])
    assert noted.seconds == 2.0


def test_a_rank_may_be_in_two_groups():
    """Rank 1 is late in the team, and rank 0, which is not in it, in the end."""
    def noted(everybody, marks, **team):
        return watch.Noted([], [], 0.0, 10.0, {"all": [everybody], **team}, marks)

    def reduced(seconds, started):
        return [Call("all_reduce", 8, seconds, started)]

    ranks = [
        noted(Call("broadcast", 8, 1.0, 9.0), [Mark("draft", 0.0, 8.0)]),
        noted(Call("broadcast", 8, 5.0, 5.0), [Mark("compute", 0.0, 5.0)],
              team=reduced(1.0, 3.0)),
        noted(Call("broadcast", 8, 6.0, 4.0), [Mark("compute", 0.0, 4.0)],
              team=reduced(3.0, 1.0)),
    ]
    assert [[(s.kind, s.begin, s.end) for s in lane] for lane in phased(ranks)] == [
        [("draft", 0, 8), ("verdict", 8, 9), ("communication", 9, 10)],
        [("compute", 0, 3), ("communication", 3, 4), ("compute", 4, 5),
         ("idle", 5, 9), ("communication", 9, 10)],
        [("compute", 0, 1), ("idle", 1, 3), ("communication", 3, 4),
         ("idle", 4, 9), ("communication", 9, 10)]]


def test_a_team_of_two_and_a_rank_that_drafts(pair):
    def work(me):
        team = me.group.subgroup([1, 2])
        me.state.update(target=None, draft=pair.draft,
                        team_target=shard_model(pair.target, team) if team else None)
        return watch.decode(me, PROMPT, 3, 0.8, "own rank", 12, 5)

    ranks = simulate(work, 3)
    expected = speculative(pair.target, ModelDrafter(pair.draft), PROMPT, k=3,
                           max_new_tokens=12, sampling=Sampling(0.8),
                           generator=generator(5)).tokens.tolist()
    assert [noted.tokens for noted in ranks] == [expected] * 3
    assert len(ranks[1].calls["team"]) == len(ranks[2].calls["team"]) > 30
    for noted, lane in zip(ranks, phased(ranks)):
        assert sum(seconds_by_phase(lane).values()) == pytest.approx(
            noted.ended - noted.began)


MARKS = [Mark("draft", 11.0, 12.0), Mark("compute", 13.0, 20.0)]


def cut(span):
    """(phase, begin, end) of the pieces of a span, whose clock began at 10."""
    return [piece[:3] for piece in pieces(span, MARKS, 10.0)]


def test_marks_name_the_work():
    assert cut(Span("compute", 0.0, 5.0, 0)) == [
        ("verdict", 0, 1), ("draft", 1, 2), ("verdict", 2, 3), ("compute", 3, 5)]


def test_a_span_within_a_mark_stays_whole():
    assert cut(Span("compute", 4.0, 5.0, 3)) == [("compute", 4, 5)]
    assert cut(Span("compute", 12.0, 13.0, 3)) == [("verdict", 12, 13)]


def test_waiting_and_exchanging_count_as_such_inside_a_mark():
    """A sharded draft sums over ranks while it drafts."""
    assert cut(Span("wait", 1.2, 1.5, 0)) == [("idle", 1.2, 1.5)]
    assert cut(Span("exchange", 1.5, 1.7, 0)) == [("communication", 1.5, 1.7)]


def test_empty_spans_are_dropped():
    assert cut(Span("compute", 2.0, 2.0, 0)) == cut(Span("wait", 2.0, 2.0, 0)) == []


def phases(**seconds):
    return dict.fromkeys(PHASES, 0.0) | seconds


def test_the_bottleneck_is_the_rank_that_does_not_wait():
    assert bottleneck([phases(draft=6, compute=9), phases(compute=9, idle=6)]) == (
        0, "compute")
    assert bottleneck([phases(compute=5, idle=8), phases(draft=9, compute=4)]) == (
        1, "draft")
