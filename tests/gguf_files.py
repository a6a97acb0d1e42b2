"""A writer of GGUF files, as far as the tests need one."""
import struct


def packed(value):
    """A value of the header: the number of its kind, then its bytes."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        inner = [packed(v) for v in value]
        return struct.pack("<I", 9) + inner[0][:4] + struct.pack("<Q", len(value)) + \
            b"".join(v[4:] for v in inner)
    kind, letter = (6, "f") if isinstance(value, float) else (4, "I")
    return struct.pack("<I" + letter, kind, value)


def text(string):
    raw = string.encode()
    return struct.pack("<Q", len(raw)) + raw


def write_gguf(path, values, weights):
    """weights: name -> (shape, kind, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(values))
    for name, value in values.items():
        head += text(name) + packed(value)
    body = b""
    for name, (shape, kind, raw) in weights.items():
        head += text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", kind, len(body))
        body += raw + bytes(-len(raw) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + body)


def plain(array):
    """An array as float32."""
    return array.shape, 0, array.astype("<f4").tobytes()
