"""Pictures of recorded runs: predicted against measured, and the live explorer."""
import ipywidgets as widgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from . import plots, sweep, timeline
from .explorers import Explorer
from .phases import PHASES

LIVE_TOKENS = 32  # that the explorer writes, plainly and by speculation


@plots.styled
def draw_agreement(ax, series, band=0.15):
    """Measured over predicted speedup: on the diagonal where the prediction is right.

    Args:
        ax: Axes.
        series: dict of label -> (predicted, measured), two lists.
        band: the share by which a prediction may be off and still lie in the band.
    """
    every = [value for pair in series.values() for values in pair for value in values]
    ends = [min(0.9, 0.9 * min(every)), 1.1 * max(every)]
    low, high = ([(1 + side) * end for end in ends] for side in (-band, band))
    ax.fill_between(ends, low, high, color="#BBBBBB", alpha=0.4, linewidth=0,
                    label=f"within {band:.0%}")
    ax.plot(ends, ends, color="#666666", linewidth=1.2)
    for i, (label, (xs, ys)) in enumerate(series.items()):
        ax.plot(xs, ys, linestyle="", marker=plots.MARKERS[i], label=label,
                color=plots.PALETTE[i])
    plots.draw_break_even(ax)
    ax.set(xlabel="predicted speedup", ylabel="measured speedup", xlim=ends, ylim=ends)
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


@plots.styled
def draw_phases(ax, phases):
    """A bar a rank: the milliseconds of a round, by phase.

    Args:
        ax: Axes.
        phases: list with a dict a rank, phase -> seconds a round.
    """
    names = [f"rank {rank}" for rank in range(len(phases))]
    timeline.draw_split(ax, phases, names, PHASES)
    ax.set(ylabel="milliseconds a round")


def ranks_explorer(workers, pair, recorded, k=4, temperature=0.7,
                   placement="rank 0", max_k=8):
    """Controls over ranks that are running: each move writes a text on them.

    Nothing is started here, and no slider starts anything.

    Args:
        workers: Workers.
        pair: the Pair that `watch.load` loads on them.
        recorded: list of records of a sweep, for the line behind the live speed.
        k, temperature, placement: where the controls stand at first.
        max_k: the largest K.

    Returns:
        Explorer, its records those of `sweep.one`.
    """
    def compute(k, temperature, placement):
        setting = sweep.Setting(k, temperature, workers.size, placement)
        return sweep.one(setting, workers, pair, sweep.PROMPTS[:1], LIVE_TOKENS)

    return Explorer(
        compute, lambda record: live_figure(record, alike(record, recorded)),
        describe_live,
        k=widgets.IntSlider(k, 1, max_k, description="K"),
        temperature=widgets.FloatSlider(
            value=temperature, min=0.0, max=2.0, step=0.1, readout_format=".1f",
            description="temperature"),
        placement=widgets.Dropdown(value=placement, options=sweep.PLACEMENTS,
                                   description="draft"))


def alike(record, recorded):
    """The recorded runs on as many ranks, with the draft in the same place.

    Returns:
        list of records, K ascending, of the recorded temperature that is nearest.
    """
    same = [r for r in recorded if (r["ranks"], r["placement"])
            == (record["ranks"], record["placement"])]
    distance = [abs(r["temperature"] - record["temperature"]) for r in same]
    near = [r for r, far in zip(same, distance) if far == min(distance)]
    return sorted(near, key=lambda r: r["k"])


def live_figure(record, recorded):
    """Acceptance by position, speed, and the time of a round on every rank.

    Args:
        record: of the run just made.
        recorded: list of records for the line behind the speed, K ascending.

    Returns:
        Figure that pyplot doesn't know.
    """
    with plt.rc_context(plots.STYLE):
        figure = Figure((12, 4), dpi=90, layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        plots.draw_acceptance(left, record["by_position"], record["alpha"])
        draw_live_speed(middle, record, recorded)
        draw_phases(right, record["phases"])
        right.get_legend().remove()
        figure.legend(*right.get_legend_handles_labels(), frameon=False, ncols=5,
                      loc="outside upper right", fontsize=12)
    return figure


def draw_live_speed(ax, record, recorded):
    """The recorded speedups over K, and this run's."""
    blue, red = plots.PALETTE[:2]
    if recorded:
        ax.plot([r["k"] for r in recorded], [r["speedup"] for r in recorded],
                color=blue, marker="o")
        ax.annotate(f"recorded, temperature {recorded[0]['temperature']}", (0.99, 0.03),
                    xycoords="axes fraction", color=blue, fontsize=11, ha="right")
        ax.set_xticks([r["k"] for r in recorded])
    ax.plot(record["k"], record["speedup"], color=red, marker="D", markersize=11)
    ax.annotate(f"◆ now {record['speedup']:.2f}", (0.99, 0.93), color=red, ha="right",
                xycoords="axes fraction")
    plots.draw_break_even(ax, "left")
    top = max([record["speedup"], 1.5, *(r["speedup"] for r in recorded)])
    ax.set(xlabel="K, drafted tokens a round", ylabel="speed over plain decoding",
           ylim=(0, 1.2 * top))


def describe_live(record):
    """The figure in words: the setting, tokens a round, speed, idling."""
    idle = ", ".join(
        f"rank {rank} idles {phases['idle'] / sum(phases.values()):.0%}"
        for rank, phases in enumerate(record["phases"]))
    side = "slower" if record["speedup"] < 1 else "faster"
    return (f"K = {record['k']}, temperature {record['temperature']:.1f}, draft: "
            f"{record['placement']}. {record['committed'] / record['rounds']:.1f} "
            f"tokens a round; {record['speedup']:.2f} times plain decoding on the same "
            f"ranks ({side}); {idle}.")
