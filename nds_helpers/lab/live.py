"""A picture that changes while a cell works."""
import matplotlib.pyplot as plt
from IPython.display import display

from .plots import new_figure, styled


class LivePicture:
    """One picture beneath a cell, drawn anew whenever there is something to show.

    Args:
        draw: draw(ax, *values) draws it on empty Axes.
        size: as `plots.new_figure` takes it.
    """

    def __init__(self, draw, **size):
        self.draw, self.handle = draw, None
        self.figure, self.ax = new_figure(**size)
        plt.close(self.figure)  # else it would appear once more at the cell's end

    @styled
    def show(self, *values):
        """Draws these values in place of the last ones."""
        self.ax.clear()
        self.draw(self.ax, *values)
        if self.handle is None:
            self.handle = display(self.figure, display_id=True)
        else:
            self.handle.update(self.figure)
