"""The fixtures that several files of tests share."""
import pytest
from helpers import random_transformer

from nds_helpers.lab import plots


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """A folder with config and weights only; 61 ids."""
    folder = tmp_path_factory.mktemp("weights")
    random_transformer("llama").save_pretrained(folder)
    return folder


@pytest.fixture
def ax():
    """The axes of a new figure, which is closed afterwards."""
    figure, ax = plots.new_figure()
    yield ax
    plots.plt.close(figure)
