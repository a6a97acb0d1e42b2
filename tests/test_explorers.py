"""Sliders: debounced, one picture in place, errors seen."""
import asyncio

import ipywidgets as widgets
import pytest
from helpers import PNG

from nds_helpers.lab import plots
from nds_helpers.lab.explorers import Explorer


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next event: no test waits or is late."""

    def __init__(self):
        super().__init__()
        self.now, look = 0.0, self._selector.select

        def select(timeout):
            self.now += timeout or 0.0
            return look(0)

        self._selector.select = select

    def time(self):
        return self.now


def in_loop(coroutine):
    """Runs a coroutine in a VirtualLoop; returns what the loop was told of errors."""
    told = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(context))
        await coroutine

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    return told


async def drag(slider, values, seconds):
    """Moves a slider through values, evenly over so many seconds; then waits."""
    for value in values:
        slider.value = value
        await asyncio.sleep(seconds / len(values))
    await asyncio.sleep(1)


class Counted:
    """A compute function that keeps its arguments, and refuses the value 13."""

    def __init__(self):
        self.calls = []

    def __call__(self, x):
        self.calls.append(x)
        if x == 13:
            raise ValueError("no <13> here")
        return x


def draw(record):
    """A figure that pyplot knows, as a chapter would make it."""
    figure, ax = plots.new_figure(figsize=(2, 1))
    ax.set_title(str(record))
    return figure


def shown(explorer):
    """The picture as bytes; ipywidgets keeps a memoryview."""
    return bytes(explorer.picture.value)


@pytest.fixture
def explorer():
    return Explorer(Counted(), draw, lambda record: f"x < {record}",
                    x=widgets.IntSlider(0, 0, 40))


def test_first_picture_is_there_at_once(explorer):
    assert explorer.compute.calls == [0]
    assert shown(explorer).startswith(PNG)
    assert explorer.caption.value == "x &lt; 0"


def test_construction_raises():
    with pytest.raises(ValueError, match="no <13> here"):
        Explorer(Counted(), draw, x=widgets.IntSlider(13, 0, 40))


def test_twenty_updates_are_few_computations_and_the_last_wins(explorer):
    assert in_loop(drag(explorer.sliders["x"], range(1, 21), 0.6)) == []
    assert len(explorer.compute.calls) - 1 <= 2
    assert explorer.compute.calls[-1] == 20 and explorer.caption.value == "x &lt; 20"


def test_slow_moves_are_all_followed(explorer):
    in_loop(drag(explorer.sliders["x"], [1, 2, 3], 3.0))
    assert explorer.compute.calls == [0, 1, 2, 3]


def test_without_a_loop_a_move_acts_at_once(explorer):
    explorer.sliders["x"].value = 7
    assert explorer.compute.calls == [0, 7] and explorer.caption.value == "x &lt; 7"


def test_a_setting_is_computed_once(explorer):
    for value in (1, 0, 1, 0):
        explorer.sliders["x"].value = value
    assert explorer.compute.calls == [0, 1]
    assert explorer.record(x=1) == 1 and explorer.compute.calls == [0, 1]


def test_an_error_is_seen_and_fatal(explorer):
    before = shown(explorer)
    with pytest.raises(ValueError, match="no <13> here"):
        explorer.sliders["x"].value = 13
    assert isinstance(explorer.error, ValueError)
    assert "ValueError: no &lt;13&gt; here" in explorer.caption.value
    assert shown(explorer) == before
    with pytest.raises(ValueError, match="no <13> here"):
        explorer.update()


def test_an_error_in_the_loop_is_seen_and_told(explorer):
    told = in_loop(drag(explorer.sliders["x"], [13], 0.1))
    assert [type(context["exception"]) for context in told] == [ValueError]
    assert isinstance(explorer.error, ValueError)
    assert "no &lt;13&gt; here" in explorer.caption.value


def test_the_next_good_value_clears_the_error(explorer):
    with pytest.raises(ValueError):
        explorer.sliders["x"].value = 13
    explorer.sliders["x"].value = 14
    assert explorer.error is None and explorer.caption.value == "x &lt; 14"


def test_an_interrupt_is_seen(explorer):
    def interrupt(x):
        raise KeyboardInterrupt

    explorer.compute, before = interrupt, shown(explorer)
    with pytest.raises(KeyboardInterrupt):
        explorer.sliders["x"].value = 1
    assert explorer.caption.value.startswith("interrupted")
    assert shown(explorer) == before


def test_an_error_of_draw_counts_too():
    def refuse(record):
        return draw(record) if record == 0 else 1 / 0

    explorer = Explorer(Counted(), refuse, x=widgets.IntSlider(0, 0, 9))
    with pytest.raises(ZeroDivisionError):
        explorer.sliders["x"].value = 1
    assert "ZeroDivisionError" in explorer.caption.value


def family(widget):
    """A widget and all that it holds."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from family(child)


def test_five_moves_leave_one_picture(explorer):
    children, picture, figures = explorer.children, explorer.picture, set()
    open_before = plots.plt.get_fignums()
    for value in range(1, 6):
        explorer.sliders["x"].value = value
        figures.add(shown(explorer))
    assert len(figures) == 5
    assert explorer.children == children and explorer.picture is picture
    images = [w for w in family(explorer) if isinstance(w, widgets.Image)]
    assert images == [picture]
    assert plots.plt.get_fignums() == open_before


def test_core_widgets_only(explorer):
    for widget in family(explorer):
        assert not isinstance(widget, widgets.Output)
        assert widget._model_module in ("@jupyter-widgets/controls",
                                        "@jupyter-widgets/base")
    assert not explorer.sliders["x"].continuous_update
