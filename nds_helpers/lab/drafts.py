"""Where a draft stands: how often it is right against what it costs, on one chart."""
import json
import statistics
from dataclasses import dataclass
from itertools import accumulate, product

import numpy as np
import torch
from matplotlib.transforms import Bbox

from ..decoding import Sampling, probabilities
from ..decoding.speculative import propose
from ..models.pairs import DATA
from . import plots
from .measure import forward_seconds, seeded, timed
from .theory import expected_tokens

RECORDED = DATA / "recorded" / "smollm2.json"  # measured by `make llmbench`
LARGEST = 8  # the largest K on the chart
LEVELS = (1.0, 1.25, 1.5, 2.0, 3.0)  # speedups that have a curve
CHEAPEST, DEAREST = 0.003, 1.3  # the chart's values of c
NAMED = 0.005  # the c at which the curves are named
# A colour and a mark for each family of drafts; the exits are one family.
LOOKS = {"draft": ("#0072B2", "o"), "student": ("#009E73", "P"),
         "either": ("#D55E00", "s"), "exit": ("#000000", "^"),
         "n-gram": ("#CC79A7", "v"), "bigram": ("#CC79A7", "D")}
OTHER = ("#666666", "*")
# Where a name may stand: (right, up) of its mark, the best first.
SPOTS = ((1, 0), (-1, 1), (1, -1), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1))
EVERY = 4  # one guess in so many is timed, with a step of the target before it


@dataclass(frozen=True)
class Place:
    """Where a draft stands.

    Attributes:
        alpha: probability that a guess is accepted; nan where there was none.
        c: seconds of a guess over seconds of a target step.
        silent: share of the places where it had no guess.
    """

    alpha: float
    c: float
    silent: float


class Chart:
    """Alpha against c: curves of equal speedup, and the drafts of one target.

    Args:
        target: language model.
        texts: LongTensor[B, T], the target's own samples, for alpha.
        given: tokens of each that the target was given.
        sampling: Sampling of both models.

    Attributes:
        places: dict of name -> Place, in the order of their measurement.
        wide: wide[k], a target forward of width k + 1 over one of width 1.
    """

    def __init__(self, target, texts, given, sampling=None):
        self.target, self.texts, self.given = target, texts, given
        self.sampling = sampling or Sampling()
        with torch.inference_mode():
            self.p = probabilities(target.forward(texts), self.sampling)  # [B, T, V]
        self.wide = wide_costs(target, texts.shape[1])
        self.places = {}

    @torch.inference_mode()
    def measure(self, name, drafter):
        """Asks a drafter for one guess at every place of the texts.

        Alpha is the mean of sum_x min(p(x), q(x)), which is p(x) for a guess
        without probabilities. c compares medians of steps that take turns, as in
        a real round, because each pushes the other's weights out of the cache.

        Args:
            name: what it is called on the chart; a second one of that name
                replaces the first.
            drafter: has propose and reset.

        Returns:
            Place.
        """
        count, length = self.texts.shape
        cache, g = self.target.new_cache(length), seeded(0)
        self.target.forward(self.texts[0, 1:], cache)
        shared, guessing, stepping, silent = [], [], [], 0
        drafter.reset()
        for i, (row, n) in enumerate(product(range(count), range(self.given, length))):
            if i % EVERY == 0:
                stepping.append(timed(self.target.forward, self.texts[0, :1], cache)[0])
                cache.truncate(length - 1)
            taken, draft = timed(propose, drafter, self.texts[row, :n], 1,
                                 self.sampling, g, self.target)
            if i % EVERY == 0:
                guessing.append(taken)
            if len(draft.tokens):
                shared.append(overlap(self.p[row, n - 1], draft))
            else:
                silent += 1
        alpha = statistics.mean(shared) if shared else float("nan")
        c = statistics.median(guessing) / statistics.median(stepping)
        self.places[name] = Place(alpha, c, silent / (silent + len(shared)))
        return self.places[name]

    def best(self, name):
        """(K, expected speedup) of a draft at its best K, at least 1."""
        place = self.places[name]
        k = max(range(1, LARGEST + 1), key=lambda k: gain(place, k, self.wide))
        return k, gain(place, k, self.wide)

    def draw(self, ax):
        """The curves and every draft measured so far."""
        draw_speedups(ax, self.wide)
        draw_places(ax, self.places)


def overlap(p, draft):
    """Probability that the first guess of a draft is accepted; p: FloatTensor[V]."""
    if draft.probs is None:
        return p[draft.tokens[0]].item()
    return torch.minimum(p, draft.probs[0]).sum().item()


def wide_costs(target, context):
    """t(k+1) / t(1) for k from 0 to LARGEST; straight lines between five widths.

    The widths take turns, so that a busy moment of the machine hits all of them.
    A wider pass does more, so one that seems to take less is set right.
    """
    widths, turns = [1, 2, 3, 5, LARGEST + 1], 5
    taken = [[forward_seconds(target, width, context, 2).median for width in widths]
             for _ in range(turns)]
    middle = list(accumulate(map(statistics.median, zip(*taken)), max))
    wide = np.interp(range(1, LARGEST + 2), widths, [t / middle[0] for t in middle])
    return wide.tolist()


def gain(place, k, wide):
    """Expected speedup of a draft that is silent now and then.

    A round with guesses is chapter 04's; a silent one costs a look and gives a token.

    Args:
        place: Place.
        k: guesses a round, 1 or more.
        wide: wide[k], a target forward of width k + 1 over one of width 1.

    Returns:
        float; below 1 the draft loses.
    """
    talks, alpha = 1 - place.silent, place.alpha if place.silent < 1 else 0.0
    tokens = place.silent + talks * expected_tokens(alpha, k)
    cost = place.silent * (1 + place.c) + talks * (k * place.c + wide[k])
    return tokens / cost


@plots.styled
def draw_speedups(ax, wide):
    """Curves of equal speedup at the best K, over c (log) and alpha.

    Args:
        ax: Axes.
        wide: wide[k], a target forward of width k + 1 over one of width 1.
    """
    cs = np.geomspace(CHEAPEST, DEAREST, 80)
    alphas = np.linspace(0, 1, 101)
    speed = [[max(gain(Place(a, c, 0.0), k, wide) for k in range(1, len(wide)))
              for c in cs] for a in alphas]
    ax.set(xscale="log", xlim=(CHEAPEST, DEAREST), ylim=(0, 1.03),
           xlabel="c, one guess / one target step", ylabel="alpha")
    ticks = (0.01, 0.03, 0.1, 0.3, 1)
    ax.set_xticks(ticks, ticks)
    ax.minorticks_off()
    lines = ax.contour(cs, alphas, speed, LEVELS, colors="#666666",
                       linewidths=[2.4] + [1.2] * (len(LEVELS) - 1))
    # Names stand at the left, where few drafts are, and turn along their curves (so
    # the scale had to be set before). A level that isn't reached there has no name.
    column = np.abs(cs - NAMED).argmin()
    rising = [row[column] for row in speed]
    spots = [(cs[column], np.interp(level, rising, alphas)) for level in LEVELS[1:]
             if rising[0] < level < rising[-1]]
    ax.clabel(lines, LEVELS[1:], fmt="%gx", fontsize=11, manual=spots)
    ax.clabel(lines, LEVELS[:1], fmt="break-even", fontsize=11, manual=[(0.06, 0.1)])


@plots.styled
def draw_places(ax, places):
    """A mark for each draft, its name beside it, clear of curves and other marks.

    Args:
        ax: Axes that `draw_speedups` has prepared.
        places: dict of name -> Place. What a draft looks like depends on the first
            word of its name alone, so that it looks the same on every chart.
    """
    ax.figure.draw_without_rendering()  # the layout is settled: pixels are known
    taken = [ax.transData.transform(path.interpolated(4).vertices)
             for lines in ax.collections for path in lines.get_paths()]
    taken += [grid_of(text.get_window_extent()) for text in ax.texts]
    labels = []
    for name, place in places.items():
        colour, marker = LOOKS.get(name.split()[0], OTHER)
        ax.plot(place.c, place.alpha, color=colour, marker=marker)
        x, y = ax.transData.transform((place.c, place.alpha))
        taken.append(grid_of(Bbox.from_extents(x - 7, y - 7, x + 7, y + 7)))
        silent = f"\n(silent {place.silent:.0%})" if place.silent >= 0.005 else ""
        labels.append(ax.annotate(name + silent, (place.c, place.alpha), fontsize=12,
                                  xytext=(0, 0), textcoords="offset points",
                                  color=colour))
    for label in labels:
        move(label, min(SPOTS, key=lambda spot: covered(move(label, spot), taken, ax)))
        taken.append(grid_of(label.get_window_extent()))


def move(label, spot):
    """Puts a name at one of SPOTS beside its mark; returns it."""
    right, up = spot
    label.xyann = right * (10 if up == 0 else 7), up * 8
    label.set(ha={-1: "right", 0: "center", 1: "left"}[right],
              va={-1: "top", 0: "center", 1: "bottom"}[up])
    return label


def covered(label, taken, ax):
    """How many taken pixels a name would cover; outside of the axes it has no place."""
    box = label.get_window_extent()
    if box.x1 > ax.bbox.x1 or box.x0 < ax.bbox.x0 or box.y0 < ax.bbox.y0:
        return np.inf
    return sum(box.padded(2).count_contains(points) for points in taken)


def grid_of(box):
    """Points all over a box, FloatArray[64, 2]."""
    xs, ys = np.linspace(box.x0, box.x1, 8), np.linspace(box.y0, box.y1, 8)
    return np.stack(np.meshgrid(xs, ys), -1).reshape(-1, 2)


def recorded(dtype, temperature):
    """Recorded speeds of SmolLM2 over its plain decoding.

    Args:
        dtype: "float32" or "int8".
        temperature: 0 or 0.8.

    Returns:
        dict of a drafter and its K -> dict of kind of prompt -> speedup.
    """
    records = json.loads(RECORDED.read_text(encoding="utf-8"))
    return {r["name"]: r["speedup"] for r in records
            if (r["dtype"], r["temperature"]) == (dtype, temperature)}
