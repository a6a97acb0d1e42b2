"""Ranks and their errors."""
import pickle

import pytest
import torch

from nds_helpers.parallel import Rank, RankError, SoloGroup, simulate


def test_an_error_says_who_why_and_where_the_others_stood():
    error = RankError(1, "ValueError: no", "Traceback ...\nValueError: no\n",
                      {2: "had returned", 0: "was waiting in barrier at x line 3"})
    assert str(error).splitlines() == [
        "rank 1 failed: ValueError: no", "Traceback ...", "ValueError: no",
        "rank 0 was waiting in barrier at x line 3", "rank 2 had returned"]
    assert str(RankError(0, "killed")) == "rank 0 failed: killed"


def test_an_error_survives_pickling():
    error = RankError(1, "ValueError: no", "Traceback", {0: "had returned"},
                      {0: [1, 2]})
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is RankError and str(again) == str(error)
    assert vars(again) == vars(error)


def test_every_rank_has_a_state_of_its_own():
    first, second = (Rank(r, 2, torch.device("cpu"), SoloGroup()) for r in (0, 1))
    first.state["model"] = 1
    assert second.state == {}


def test_a_failed_call_brings_what_had_been_reported():
    def work(me):
        me.report(10 + me.rank)
        me.group.barrier()
        if me.rank == 1:
            raise ValueError("no")
        me.report("and more")
        me.group.barrier()

    with pytest.raises(RankError) as caught:
        simulate(work, 2)
    assert caught.value.reports == {0: [10, "and more"], 1: [11]}
