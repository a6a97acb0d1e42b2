"""The comparison of greedy texts: what counts as a difference, and how it is shown."""
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture
def texts(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    for name in ("smollm2", "texts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import texts
    return texts


@pytest.fixture
def pair():
    """A target that holds word 2 likelier than word 1 by 0.7; words are "w1", "w2"."""
    target = SimpleNamespace(
        forward=lambda ids: torch.tensor([0.0, 1.0, 1.7]).expand(len(ids), 3))
    return SimpleNamespace(target=target, decode=lambda ids: f"w{ids[0]}")


def test_a_difference_tells_place_words_and_gap(texts, pair):
    prompt = torch.tensor([0])
    assert texts.difference(pair, "x", "chat-01", prompt, [1, 2], [1, 2]) is None
    one = texts.difference(pair, "x", "chat-01", prompt, [1, 2, 0], [1, 1, 2])
    assert (one.place, one.words) == (1, ("w2", "w1"))
    assert one.gap == pytest.approx(0.7)


def test_a_text_that_only_stops_early_is_no_near_tie(texts, pair):
    with pytest.raises(IndexError):
        texts.difference(pair, "x", "chat-01", torch.tensor([0]), [1, 2], [1])


def test_the_peer_is_asked_behind_every_prefix(texts):
    class Peer:
        def __call__(self, ids):
            logits = torch.zeros(*ids.shape, 9)
            return type("Out", (), {"logits": logits.scatter(-1, ids[..., None], 1.0)})

    chosen = texts.peers_choices(Peer(), torch.tensor([5, 6]), torch.tensor([7, 8, 1]))
    assert chosen == [6, 7, 8]  # this peer repeats: each choice is the token before


def test_the_page_counts_the_same_texts_and_lists_the_others(texts):
    found = [texts.Difference(texts.TRANSFORMERS, "edit-03", 7, (" a", " the"), 1e-5)]
    page = texts.page(found, 12, 96)
    assert "| 12 of 12 |" in page and "| transformers | 11 of 12 |" in page
    assert "| edit-03 | 7 | ' a' | ' the' | 0.00001 |" in page
    assert "No text differs" in texts.page([], 12, 96)
