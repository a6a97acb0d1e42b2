"""Reads a GGUF file: a header of named values, then weights, often quantised.

The layout is that of the GGUF specification, version 3 (ggml project,
docs/gguf.md): everything little-endian, a string is its length and its bytes.
"""
import struct
from pathlib import Path

import numpy as np

MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32
STRING, ARRAY = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?",
           10: "Q", 11: "q", 12: "d"}  # the specification's number -> struct's letter
BLOCK = 32  # weights that share a scale


def float32(raw):
    """Plain numbers."""
    return raw.view("<f4")


def q8_0(raw):
    """Blocks of 32: a float16 scale d, then whole numbers n; the weights are d n."""
    rows = raw.reshape(-1, 2 + BLOCK)
    d = rows[:, :2].copy().view("<f2").astype(np.float32)
    return (d * rows[:, 2:].view(np.int8)).ravel()


def q4_1(raw):
    """Blocks of 32: float16 d and m, then 4-bit numbers n; the weights are d n + m.

    Byte i of a block holds number i in its lower half and number i + 16 above it.
    """
    rows = raw.reshape(-1, 4 + BLOCK // 2)
    d, m = rows[:, :4].copy().view("<f2").astype(np.float32).T[..., None]
    pairs = rows[:, 4:]
    return (d * np.concatenate([pairs & 15, pairs >> 4], 1) + m).ravel()


# The specification's number of a kind -> (bytes, weights they hold, how to read them).
KINDS = {0: (4, 1, float32), 3: (20, BLOCK, q4_1), 8: (34, BLOCK, q8_0)}


class GGUF:
    """An open GGUF file.

    Attributes:
        values: dict, name -> number, string or list, from the header.
        shapes: dict, name of a weight -> its shape, as PyTorch writes shapes.

    Raises:
        ValueError: not such a file, cut short, or of a kind that isn't read here.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.bytes = np.memmap(self.path, np.uint8, "r")
        self.place = len(MAGIC)
        if bytes(self.bytes[:self.place]) != MAGIC or self._number("I") != VERSION:
            raise ValueError(f"{self.path} isn't a GGUF file of version {VERSION}.")
        weights, values = self._number("Q"), self._number("Q")
        self.values = {self._string(): self._value() for _ in range(values)}
        self.places, self.shapes = {}, {}
        for _ in range(weights):
            name = self._string()
            shape = [self._number("Q") for _ in range(self._number("I"))]
            self.shapes[name] = tuple(reversed(shape))  # the file: innermost first
            self.places[name] = self._number("I"), self._number("Q")
        step = self.values.get("general.alignment", ALIGNMENT)
        self.start = -(-self.place // step) * step

    def weight(self, name):
        """A weight, dequantised: float32 array of the shape `shapes[name]`."""
        kind, offset = self.places[name]
        if kind not in KINDS:
            raise ValueError(f"{self.path} stores {name!r} as kind {kind}; only the "
                             f"kinds {', '.join(map(str, KINDS))} are read.")
        size, held, read = KINDS[kind]
        count = int(np.prod(self.shapes[name])) // held * size
        first = self.start + offset
        return read(self._cut(first, count)).reshape(self.shapes[name])

    def _cut(self, first, count):
        if first + count > len(self.bytes):
            raise ValueError(f"{self.path} is cut short; fetch it again.")
        return np.array(self.bytes[first:first + count])

    def _take(self, count):
        found = self._cut(self.place, count).tobytes()
        self.place += count
        return found

    def _number(self, letter):
        return struct.unpack("<" + letter, self._take(struct.calcsize(letter)))[0]

    def _string(self):
        return self._take(self._number("Q")).decode("utf-8")

    def _value(self, kind=None):
        kind = self._number("I") if kind is None else kind
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, count = self._number("I"), self._number("Q")
            return [self._value(inner) for _ in range(count)]
        return self._number(NUMBERS[kind])
