"""Text that comes in pieces adds up to the text that comes at once."""
from types import SimpleNamespace

import pytest
from helpers import TableModel, random_rule
from tokenizers import Tokenizer
from tokenizers.decoders import Metaspace
from tokenizers.models import WordLevel

from nds_helpers.decoding import (
    ModelDrafter,
    autoregressive_rounds,
    speculative_rounds,
    stream_text,
)


class Bytes:
    """A tokenizer whose ids are bytes."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", errors="replace")


def rounds(text, size):
    data = list(text if isinstance(text, bytes) else text.encode())
    return [SimpleNamespace(tokens=data[i:i + size]) for i in range(0, len(data), size)]


@pytest.mark.parametrize("text", ["", "plain", "naïve ☃", "雪雪雪", "🎈 a 🎈"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_pieces_add_up_and_no_character_is_torn(text, size):
    pieces = list(stream_text(Bytes(), rounds(text, size)))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece or piece == "" for piece in pieces)


def test_bytes_that_never_become_a_character_come_at_the_end():
    data = "ok".encode() + "雪".encode()[:2]
    assert "".join(stream_text(Bytes(), rounds(data, 1))) == Bytes().decode(data)


def test_a_broken_character_inside_the_text_does_not_stop_it():
    data = b"a\xff\xffb" + "é".encode()
    assert "".join(stream_text(Bytes(), rounds(data, 1))) == "a\ufffd\ufffdbé"


@pytest.mark.parametrize("words", [["▁a", "▁b", "c"], ["c", "▁a"], ["▁", "▁a"]])
def test_the_first_space_stays(words):
    """Decoders of the SentencePiece kind drop it at the start of a text."""
    known = {word: i for i, word in enumerate(["▁a", "▁b", "c", "▁"])}
    tokenizer = Tokenizer(WordLevel(known, unk_token="c"))
    tokenizer.decoder = Metaspace()
    made = [SimpleNamespace(tokens=[known[word]]) for word in words]
    assert "".join(stream_text(tokenizer, made)) == "".join(words).replace("▁", " ")


def test_pieces_come_while_the_text_is_made():
    model = TableModel(random_rule(0))
    made = speculative_rounds(model, ModelDrafter(model), [1], k=2, max_new_tokens=10)
    pieces = stream_text(Bytes(), made)
    next(pieces)
    assert next(made).tokens  # most of it is still to come


def test_both_loops_stream():
    model = TableModel(random_rule(0))
    plain = "".join(stream_text(Bytes(), autoregressive_rounds(
        model, [1], max_new_tokens=9)))
    fast = "".join(stream_text(Bytes(), speculative_rounds(
        model, ModelDrafter(model), [1], k=0, max_new_tokens=9)))
    assert plain == fast and len(plain) == 9
