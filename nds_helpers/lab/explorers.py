"""Explorers: sliders over a pure compute function and a pure draw function."""
import asyncio
import html
import io
from dataclasses import dataclass, field
from statistics import median

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from ..decoding import ModelDrafter, Sampling, Trace, autoregressive, speculative
from ..decoding.request import check_prompt
from . import measure, plots, theory, tokens


class Debounced:
    """Calls an action once, `delay` seconds after the last of many requests.

    Dragging a slider fires dozens of events; only the last value matters.
    """

    def __init__(self, action, delay=0.2):
        self.action, self.delay, self._timer = action, delay, None

    def __call__(self, *_):
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no event loop: a plain script or a test
            return self.action()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(self.delay, self.action)


class Explorer(widgets.VBox):
    """Sliders, and one picture beneath them that follows.

    Args:
        compute: (one keyword a slider) -> record; pure.
        draw: (record) -> matplotlib Figure; pure.
        describe: (record) -> str, the picture in a sentence or two.
        sliders: one ipywidgets control a keyword of `compute`.

    The first picture is computed here, so that an error stops the cell.

    Attributes:
        picture, caption: the Image that is updated in place, and the HTML under it.
        records: values of the sliders -> record, each computed once.
        error: what the latest update raised, or None.
    """

    def __init__(self, compute, draw, describe=lambda record: "", **sliders):
        super().__init__()
        self.compute, self.draw, self.describe = compute, draw, describe
        self.sliders, self.records, self.error = sliders, {}, None
        self.picture = widgets.Image(format="png", layout={"max_width": "100%"})
        self.caption = widgets.HTML(layout={"margin": "8px 0 0 8px"})
        self.update()
        follow = Debounced(self.update)
        for slider in sliders.values():
            slider.continuous_update = False
            slider.style.description_width = "initial"
            slider.observe(follow, names="value")
        self.children = [widgets.HBox(list(sliders.values())), self.picture,
                         self.caption]

    def record(self, **values):
        """The record for these values of all sliders; computed at most once."""
        key = tuple(values[name] for name in self.sliders)
        if key not in self.records:
            self.records[key] = self.compute(**values)
        return self.records[key]

    def update(self):
        """Shows the record for the sliders' present values.

        Raises:
            Exception: what `compute`, `draw` or `describe` raised. It is kept in
                `error`, and the caption shows it.
            KeyboardInterrupt: the caption says so.
        """
        self.caption.value = "computing ..."
        said = "interrupted (the picture is the one before)"
        try:
            values = {name: slider.value for name, slider in self.sliders.items()}
            record = self.record(**values)
            figure = self.draw(record)
            self.picture.layout.width = f"{figure.bbox.width:.0f}px"
            self.picture.value = png(figure)
            said = html.escape(self.describe(record))
            self.error = None
        except Exception as error:
            self.error = error
            text = html.escape(f"{type(error).__name__}: {error}")
            said = f"<b>{text}</b> (the picture is the one before)"
            raise
        finally:
            self.caption.value = said


def png(figure):
    """A figure as the bytes of a PNG file, twice as fine; the figure is closed.

    Shown at half its size it is sharp on every screen.
    """
    page = io.BytesIO()
    figure.savefig(page, format="png", dpi=2 * figure.dpi)
    plt.close(figure)  # if pyplot made it, the cell would show it a second time
    return page.getvalue()


def speculation_explorer(pair, prompt, *, k=4, temperature=0.8, max_k=12,
                         new_tokens=40, seed=0):
    """Sliders for K and temperature over one text, generated live.

    Args:
        pair: Pair with a tokenizer.
        prompt: LongTensor[T] or list of ids.
        k, temperature: where the sliders stand at first.
        max_k: the largest K, 1 or more.
        new_tokens: tokens that each setting generates, twice.
        seed: of every generation.

    Returns:
        Explorer, its records Decoded.

    Raises:
        ValueError: a max_k below 1, or a prompt that isn't one.
    """
    lab = Speculation(pair, prompt, max_k, new_tokens, seed)
    return Explorer(
        lab.compute, lambda record: speculation_figure(pair.tokenizer, record),
        describe_speculation,
        k=widgets.IntSlider(k, 0, max_k, description="K"),
        temperature=widgets.FloatSlider(
            value=temperature, min=0.0, max=2.0, step=0.1, readout_format=".1f",
            description="temperature"))


@dataclass(frozen=True)
class Decoded:
    """One text generated both ways, and what the formula says about it.

    Attributes:
        k, temperature: the setting.
        trace: Trace of the speculative run.
        fates: list of (token id, fate), the prompt first.
        alpha: mean of sum_x min(p(x), q(x)) along plain decoding's text.
        predicted: the formula's speedup at every K, from 0 on.
        measured: tokens a second over plain decoding's.
    """

    k: int
    temperature: float
    trace: Trace = field(repr=False)
    fates: list = field(repr=False)
    alpha: float
    predicted: tuple
    measured: float


class Speculation:
    """Generates one text at any K and temperature.

    The times of single steps are measured once, here; plain decoding once a
    temperature.
    """

    def __init__(self, pair, prompt, max_k=12, new_tokens=40, seed=0):
        measure.at_least_one("max_k", max_k)
        self.pair = pair
        self.prompt = prompt = check_prompt(prompt, pair.target.vocab_size)
        self.drafter = ModelDrafter(pair.draft)
        self.new_tokens, self.seed, self.plain = new_tokens, seed, {}
        ks = sorted({1, min(4, max_k), max_k})
        costs = [measure.step_costs(pair, k, len(prompt) + new_tokens // 2, repeats=1)
                 for k in ks]
        self.c = median(one["t_draft"] / one["t_one"] for one in costs)
        wide = [one["t_wide"] / one["t_one"] for one in costs]
        self.wide = np.interp(range(max_k + 1), [0, *ks], [1.0, *wide])

    def compute(self, k, temperature):
        """Decoded at this K and temperature; same seed, same text."""
        speed, alpha = self.baseline(temperature)
        trace = speculative(self.pair.target, self.drafter, self.prompt, k=k,
                            **self.settings(temperature)).trace
        fates = [(token, "prompt") for token in self.prompt.tolist()]
        predicted = tuple(float(theory.speedup(alpha, n, self.c, wide))
                          for n, wide in enumerate(self.wide))
        return Decoded(k, temperature, trace, fates + tokens.token_fates(trace), alpha,
                       predicted, trace.summary()["tokens_per_second"] / speed)

    def baseline(self, temperature):
        """(tokens a second, alpha) of plain decoding, once a temperature."""
        if temperature not in self.plain:
            settings = self.settings(temperature)
            result = autoregressive(self.pair.target, self.prompt, **settings)
            # The last new token was drawn, and nothing was drawn behind it.
            text = torch.cat([self.prompt, result.tokens[:-1]])
            shared = measure.overlap(self.pair.target, self.pair.draft, text,
                                     settings["sampling"])
            alpha = shared[len(self.prompt) - 1:].mean().item()
            speed = result.trace.summary()["tokens_per_second"]
            self.plain[temperature] = speed, alpha
        return self.plain[temperature]

    def settings(self, temperature):
        """What both ways of decoding have in common."""
        return dict(max_new_tokens=self.new_tokens, sampling=Sampling(temperature),
                    generator=measure.seeded(self.seed))


COLUMNS = 100  # characters a line of the explorer's text
PLOTS = 2.9  # inches, the height of the two plots


def speculation_figure(tokenizer, record):
    """Acceptance by position, and speed; beneath, the text coloured by fate.

    The text is last because its length varies: the plots keep their place.

    Args:
        tokenizer: with `decode(list of ids)`.
        record: Decoded.

    Returns:
        Figure that pyplot doesn't know. Its axes are placed by hand: a layout
        engine would take longer than the drawing.
    """
    width, height = tokens.page_size(tokenizer, record.fates, COLUMNS)
    with plt.rc_context(plots.STYLE):
        figure = Figure((width / 0.99, PLOTS + height), dpi=90, layout="none")
        share = PLOTS / (PLOTS + height)
        left = figure.add_axes((0.08, 1 - 0.74 * share, 0.38, 0.63 * share))
        right = figure.add_axes((0.55, 1 - 0.74 * share, 0.33, 0.63 * share))
        plots.draw_acceptance(left, record.trace.by_position(), record.alpha)
        left.set_xlim(-0.6, len(record.predicted) - 1.4)
        draw_setting(right, record)
        page = figure.add_axes((0.01, 0, 0.99, 1 - share))
        tokens.draw_tokens(page, tokenizer, record.fates, COLUMNS)
    return figure


def draw_setting(ax, record):
    """The formula's speedup at every K, and the measured one at this K."""
    blue, red = plots.PALETTE[:2]
    ks = range(len(record.predicted))
    ax.plot(ks, record.predicted, color=blue, marker=".")
    ax.plot(record.k, record.measured, color=red, marker="D", markersize=11)
    plots.draw_break_even(ax, "outside")
    top = max(2.0, 1.2 * max(*record.predicted, record.measured))
    ax.set(xlabel="K, drafted tokens a round", ylabel="speedup", ylim=(0, top))
    # In the strip that ylim leaves free above the curve.
    ax.annotate("● formula", (0.01, 0.9), color=blue, xycoords="axes fraction")
    ax.annotate(f"◆ measured {record.measured:.2f}", (0.99, 0.9), color=red,
                xycoords="axes fraction", ha="right")


def describe_speculation(record):
    """The figure in words: the setting, the rounds, the speed."""
    summary = record.trace.summary()
    expected = theory.expected_tokens(record.alpha, record.k)
    side = "slower" if record.measured < 1 else "faster"
    return (f"K = {record.k}, temperature {record.temperature:.1f}: "
            f"{summary['committed']} tokens in {summary['rounds']} rounds, "
            f"{summary['committed_per_round']:.1f} a round; with alpha = "
            f"{record.alpha:.2f}, {expected:.1f} are expected. Measured "
            f"{record.measured:.2f} times plain decoding ({side}), the formula says "
            f"{record.predicted[record.k]:.2f}.")
