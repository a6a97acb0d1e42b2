"""The fixtures that several files of tests share."""
import pytest
from helpers import random_transformer


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """A folder with config and weights only; 61 ids."""
    folder = tmp_path_factory.mktemp("weights")
    random_transformer("llama").save_pretrained(folder)
    return folder
