"""GGUF files: header, plain weights, and the two quantised kinds."""
import numpy as np
import pytest
from gguf_files import plain, write_gguf

from nds_helpers.models.gguf import GGUF, q4_1, q8_0


def test_blocks_of_four_and_eight_bits_become_numbers():
    numbers = np.arange(32) % 16
    block = np.array([0.5, -3], "<f2").tobytes()
    block += (numbers[:16] | numbers[16:] << 4).astype(np.uint8).tobytes()
    np.testing.assert_array_equal(q4_1(np.frombuffer(block, np.uint8)),
                                  0.5 * numbers - 3)
    numbers = np.arange(-16, 16).astype(np.int8)
    block = np.array([0.25], "<f2").tobytes() + numbers.tobytes()
    np.testing.assert_array_equal(q8_0(np.frombuffer(2 * block, np.uint8)),
                                  np.tile(0.25 * numbers, 2))


def test_values_and_weights_come_back(tmp_path):
    values = {"a": "Ġé", "b": 7, "c": 0.5, "d": ["x", "yy"], "e": [1, 2, 3]}
    array = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    write_gguf(tmp_path / "f", values, {"first": plain(array[0]), "w": plain(array)})
    file = GGUF(tmp_path / "f")
    assert file.values == values
    assert file.shapes == {"first": (5,), "w": (3, 5)}
    np.testing.assert_array_equal(file.weight("w"), array)
    np.testing.assert_array_equal(file.weight("first"), array[0])


def test_what_is_no_gguf_file_is_refused(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"PK\3\4 and so on")
    with pytest.raises(ValueError, match="isn't a GGUF file"):
        GGUF(path)
    write_gguf(path, {"a": "b"}, {"w": ((32,), 2, bytes(18))})
    with pytest.raises(ValueError, match="'w' as kind 2"):
        GGUF(path).weight("w")
    write_gguf(path, {"a": "b"}, {"w": plain(np.ones(64))})
    for length in (path.stat().st_size - 1, 40):
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(ValueError, match="cut short"):
            GGUF(path).weight("w")
