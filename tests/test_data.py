"""What data/ ships: sums, sizes, origin, and how good the tiny pair is."""
import hashlib
import json
import sys

import numpy as np
import pytest
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from nds_helpers.decoding import Sampling
from nds_helpers.lab.quality import agreement, held_out_loss, held_out_texts
from nds_helpers.models import load_pair
from nds_helpers.models.pairs import DATA, verify_files

TINY = DATA / "tiny"


@pytest.fixture(scope="module")
def pair():
    return load_pair("tiny")


@pytest.fixture
def recorded():
    return json.loads((TINY / "metrics.json").read_text())


@pytest.fixture
def make_tiny(monkeypatch):
    monkeypatch.syspath_prepend(str(DATA / "make_tiny"))
    yield
    for name in ("corpus", "ngram", "train", "export", "distill", "evaluate"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_the_sums_hold_and_cover_every_file(name):
    verify_files(DATA / name)
    listed = {line.split(maxsplit=1)[1] for line in
              (DATA / name / "SHA256SUMS").read_text().splitlines()}
    found = {str(p.relative_to(DATA / name))
             for p in (DATA / name).rglob("*") if p.is_file()}
    assert listed == found - {"SHA256SUMS"}


def test_the_draft_for_smollm2_is_small_and_its_curve_is_shown():
    folder = DATA / "smollm2"
    assert sum(p.stat().st_size for p in folder.iterdir()) < 25e6
    seen, alpha = json.loads((folder / "curve.json").read_text())[-1]
    said = (DATA / "README.md").read_text(encoding="utf-8")
    assert f"{seen:,} tokens" in said and f"alpha is {alpha:.2f}" in said


def test_the_draft_for_smollm2_has_its_shapes():
    with safe_open(DATA / "smollm2" / "model.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
        ids = file.get_tensor("ids")
    assert shapes.pop("ids") == (12_288,) and shapes["norm.weight"] == (576,)
    assert ids.diff().min() > 0 and 0 <= ids[0] and ids[-1] < 49_152
    assert {name.split(".")[1] for name in shapes if name.startswith("layers.")} == {
        "0", "1", "2"}


def test_the_pair_is_small():
    assert sum(p.stat().st_size for p in TINY.rglob("*") if p.is_file()) < 30e6


def test_the_readme_gives_the_sum_of_the_held_out_part():
    digest = hashlib.sha256((DATA / "heldout.txt").read_bytes()).hexdigest()
    assert digest in (DATA / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["target", "draft"])
def test_transformers_opens_the_folders_as_they_are(name, pair):
    model = AutoModelForCausalLM.from_pretrained(TINY / name, local_files_only=True)
    ours = getattr(pair, name)
    assert sum(w.numel() for w in model.parameters()) == sum(
        w.numel() for w in ours.parameters())
    tokenizer = AutoTokenizer.from_pretrained(TINY / name, local_files_only=True)
    assert len(tokenizer) == 4096
    assert tokenizer.eos_token_id in ours.end_token_ids


def test_any_text_survives_the_tokenizer(pair):
    foreign = "naïve Ωmega 漢字 🎭\n\ttab"
    for text in ("To be, or not to be", foreign, held_out_texts()[0]):
        assert pair.decode(pair.encode(text)) == text


def test_the_target_beats_the_trigram(pair, recorded):
    losses = recorded["held_out_loss"]
    assert losses["trigram"] < losses["bigram"] < losses["unigram"]
    measured = held_out_loss(pair.target, pair.tokenizer)
    assert measured < losses["trigram"]
    assert measured == pytest.approx(losses["target"], abs=0.01)


def test_the_draft_agrees_with_the_target(pair, recorded):
    alpha, on_samples = agreement(pair)
    assert alpha >= 0.60
    assert alpha == pytest.approx(recorded["alpha"], abs=0.02)
    assert on_samples == pytest.approx(recorded["greedy_agreement_on_samples"],
                                       abs=0.02)


def test_the_draft_agrees_on_greedy_text(pair, recorded):
    _, greedy = agreement(pair, Sampling(temperature=0))
    assert greedy >= 0.60
    assert greedy == pytest.approx(recorded["greedy_agreement"], abs=0.03)


def test_another_sample_agrees_too(pair):
    alpha, _ = agreement(pair, seed=7)
    assert alpha >= 0.60


def test_metrics_are_shown_in_the_readme(recorded):
    page = (DATA / "README.md").read_text(encoding="utf-8")
    losses = recorded.pop("held_out_loss")
    for value in (*losses.values(), *recorded.values()):
        assert f"{value:.3f}" in page
    assert (TINY / "training.png").exists()


def test_cleaning_keeps_the_words_and_drops_the_furniture(make_tiny):
    from corpus import clean, scenes

    raw = "\ufeffOne line        10\r\n............dots\r\n\r\n\r\n\r\nEnd  \r\n"
    assert clean(raw) == "One line\n    dots\n\nEnd"
    play = "x" * 300 + "\nSCENE 1. A heath.\n" + "y" * 300
    assert [part[:5] for part in scenes(play)] == ["xxxxx", "SCENE"]


def test_the_trigram_learns_a_text_that_repeats(make_tiny):
    from ngram import interpolation_weights, losses

    train = np.tile([1, 2, 3, 4], 50)
    found = losses(train, train)
    assert found["trigram"] < 0.1 < found["unigram"]
    weights = interpolation_weights(np.array([[0.1, 0.1], [0.4, 0.4]]))
    assert weights.sum() == pytest.approx(1) and weights[1] > 0.99


def test_a_training_step_depends_on_its_number_alone(make_tiny):
    from train import PEAK_RATE, batch, rate

    ids = np.arange(5000) % 4096
    assert batch(ids, 3).equal(batch(ids, 3))
    assert not batch(ids, 3).equal(batch(ids, 4))
    assert rate(0, 1000) < rate(500, 1000) == PEAK_RATE > rate(999, 1000) > 0
