"""Checks of chapter 10: the bottleneck, the predicted speedup, the fastest setting."""
from .report import check


def check_bottleneck(bottleneck):
    """Checks `bottleneck(phases) -> (rank, phase)`; True where it passes."""
    return check(bottleneck, [
        (([phases(6, 9, 1, 1, 1), phases(0, 9, 1, 0, 8)],), (0, "compute"),
         "rank 1 waits for rank 0, so rank 0 is what a round waits for. What does it "
         "do most?"),
        (([phases(0, 5, 1, 1, 9), phases(8, 6, 1, 1, 0)],), (1, "draft"),
         "any rank can be the busiest: look for the one that idles least."),
        (([phases(1, 2, 3, 1, 7), phases(1, 2, 2, 1, 8)],), (0, "communication"),
         "idling is no work: leave it out when you look for the longest phase, even "
         "where the busiest rank idles a lot too."),
        (([phases(2, 3, 0, 4, 0)],), (0, "verdict"),
         "one rank never waits, and has a bottleneck all the same."),
        (([phases(0, 4, 1, 0, 5), phases(0, 4, 1, 0, 5), phases(5, 4, 1, 0, 0)],),
         (2, "draft"), "there may be more than two ranks."),
    ])


def check_predict_speedup(predict_speedup):
    """Checks `predict_speedup(rates, phases, plain) -> float`; True if it passes."""
    return check(predict_speedup, [
        (([1.0], phases(1, 3, 0, 0, 0), 3.0), 1.5,
         "two tokens a round, and a round takes 4: 2 seconds a token, against 3 for a "
         "plain one."),
        (([0.5], phases(1, 3, 0, 0, 0), 2.0), 0.75,
         "one token and a half a round: speculation may lose."),
        (([0.9, 0.5], phases(2, 3, 0, 0, 0), 2.0), 0.94,
         "the second guess counts only if the first one stood too."),
        (([0.8], phases(1, 2, 0.5, 0.5, 0), 2.0), 0.9,
         "exchanging and judging take time as well."),
        (([0.8], phases(0, 2, 0.5, 0.5, 1), 2.0), 0.9,
         "a rank that idles spends that time too: its phases together are the round, "
         "on every rank."),
        (([], phases(0, 2, 0, 0, 0), 2.0), 1.0,
         "K = 0 commits the target's own token, and nothing else."),
    ])


def check_fastest(fastest):
    """Checks `fastest(runs) -> (ranks, placement, k)`; True where it passes."""
    slow = a_run(2, "rank 0", 4, 5, 12)
    quick = a_run(1, "rank 0", 3, 4, 7)
    return check(fastest, [
        (([quick, a_run(1, "rank 0", 6, 5, 7)],), (1, "rank 0", 3),
         "the fewest seconds a token win."),
        (([slow, quick],), (1, "rank 0", 3),
         "a speedup is relative: 12 / 5 is more than 7 / 4, and yet 4 seconds are "
         "fewer than 5."),
        (([a_run(1, "rank 0", 8, 9, 7), a_run(2, "sharded", 2, 8, 6)],), (2, "none", 0),
         "plain decoding is the fastest here, and it isn't as fast on every number of "
         "ranks."),
        (([a_run(1, "rank 0", 2, 5, 9), a_run(2, "sharded", 2, 6, 4)],),
         (2, "none", 0),
         "compare with the best of all plain runs: it may be on other ranks."),
        (([a_run(2, "every rank", 2, 4, 4)],), (2, "none", 0),
         "where plain decoding is as fast, take it: it is simpler."),
    ])


def phases(draft, compute, communication, verdict, idle):
    """A rank's seconds a round, by phase."""
    return dict(draft=draft, compute=compute, communication=communication,
                verdict=verdict, idle=idle)


def a_run(ranks, placement, k, seconds, plain):
    """What a record says of one setting, seconds a token."""
    return dict(ranks=ranks, placement=placement, k=k, seconds=seconds, plain=plain)
