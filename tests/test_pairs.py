"""Pairs: by name and by folder; vocabularies that must agree."""
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from nds_helpers.decoding import ModelDrafter, Sampling, speculative
from nds_helpers.models import load_pair, pairs
from nds_helpers.models.folders import folder_in

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "data" / "tiny"
SHIPPED = [line.split()[1] for line in (TINY / "SHA256SUMS").read_text().splitlines()]
WORDS = [f"w{i}" for i in range(61)]


@pytest.fixture
def folder(weights, tmp_path):
    """folder(name, words): a model folder whose tokenizer knows these words."""
    def make(name, words=None):
        made = shutil.copytree(weights, tmp_path / name)
        if words is not None:
            words = {word: i for i, word in enumerate(words)}
            tokenizer = Tokenizer(WordLevel(words, unk_token=next(iter(words))))
            tokenizer.pre_tokenizer = WhitespaceSplit()
            PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(made)
        return made

    return make


def smaller(folder, size):
    """Cuts the model in `folder` down to `size` ids."""
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"vocab_size": size}))
    tensors = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][:size].clone()
    save_file(tensors, folder / "model.safetensors")
    return folder


# The pair that ships.
@pytest.fixture(scope="module")
def tiny():
    return load_pair("tiny")


def test_the_tiny_pair_is_whole(tiny):
    assert tiny.target.config.layers > tiny.draft.config.layers
    assert tiny.target.vocab_size == tiny.draft.vocab_size == len(tiny.tokenizer)
    assert tiny.target.end_token_ids == (tiny.tokenizer.eos_token_id,)
    assert not any(p.requires_grad for p in tiny.target.parameters())


def test_text_goes_to_ids_and_back(tiny):
    for text in ("To be, or not to be", "naïve — ☃ 雪", " two  spaces\n\nlines\n"):
        ids = tiny.encode(text)
        assert ids.dtype == torch.long and ids.dim() == 1
        assert tiny.decode(ids) == text
    assert len(tiny.encode("")) == 0


def test_both_sizes_of_the_tiny_pair_take_a_type():
    pair = load_pair("tiny", dtype=torch.float64)
    assert pair.draft.norm.weight.dtype == torch.float64


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A copy of data/tiny that load_pair("tiny") reads."""
    monkeypatch.setattr(pairs, "DATA", tmp_path)
    return shutil.copytree(TINY, tmp_path / "tiny")


@pytest.mark.parametrize("name", SHIPPED)
def test_an_altered_file_is_refused_with_its_remedy(shipped, name):
    data = bytearray((shipped / name).read_bytes())
    data[len(data) // 2] ^= 1
    (shipped / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name} is damaged .*git checkout"):
        load_pair("tiny")
    (shipped / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing.*git checkout"):
        load_pair("tiny")


def test_every_shipped_file_is_listed(shipped):
    files = {path.relative_to(shipped).as_posix()
             for path in shipped.rglob("*") if path.is_file()}
    assert files == {"SHA256SUMS", *SHIPPED}
    (shipped / "SHA256SUMS").unlink()
    with pytest.raises(FileNotFoundError, match="SHA256SUMS is missing"):
        load_pair("tiny")
    shutil.rmtree(shipped)
    with pytest.raises(FileNotFoundError, match="SHA256SUMS is missing.* set NDS_DATA"):
        load_pair("tiny")


# A list that is no list: empty, one word, not text, without the weights.
NO_LISTS = [b"", b"\n", b"abc", b"\xff\xfe\x00", b"abc  config.json\n"]


@pytest.mark.parametrize("content", NO_LISTS)
def test_a_damaged_list_of_sums_is_refused(shipped, content):
    (shipped / "SHA256SUMS").write_bytes(content)
    with pytest.raises(ValueError, match="SHA256SUMS is damaged .*git checkout"):
        load_pair("tiny")


@pytest.mark.parametrize("value, expected", [
    ("~/x", Path.home() / "x"), ("x", Path.cwd() / "x"), ("/x", Path("/x").absolute()),
    ("", Path.home() / "kept"), (None, Path.home() / "kept")])
def test_a_folder_from_the_environment(monkeypatch, value, expected):
    """An empty variable counts as none, ~ is your home, and chdir changes nothing."""
    monkeypatch.delenv("NDS_FOLDER", raising=False)
    if value is not None:
        monkeypatch.setenv("NDS_FOLDER", value)
    assert folder_in("NDS_FOLDER", "~/kept") == expected


# What is asked for.
@pytest.mark.parametrize("asked", [
    ((), {}), (("huge",), {}), ((), dict(target="a/b")), ((), dict(draft="a/b")),
    (("tiny",), dict(target="a/b", draft="a/b"))], ids=str)
def test_a_name_or_two_places(asked):
    with pytest.raises(ValueError, match="load_pair"):
        load_pair(*asked[0], **asked[1])


@pytest.mark.parametrize("where", ["nowhere", "/nowhere/at/all", "a/b/c", "~/no/such"])
def test_a_folder_that_is_not_there(where):
    with pytest.raises(FileNotFoundError, match=f"no folder {where}"):
        load_pair(target=where, draft=where)


# Vocabularies.
def test_folders_that_agree(folder):
    a, b = folder("a", WORDS), folder("b", WORDS)
    pair = load_pair(target=a, draft=str(b))
    assert pair.encode("w3 w60 w0").tolist() == [3, 60, 0]
    assert pair.target.vocab_size == pair.draft.vocab_size == 61


def test_swapped_ids_are_refused_by_name(folder):
    """CASES 17: equal sizes, other meanings."""
    swapped = WORDS[:7] + ["w9", "w8", "w7"] + WORDS[10:]
    with pytest.raises(ValueError, match=r"sizes 61 and 61\): id 7 is 'w7' to the "
                                         "target and 'w9' to the draft"):
        load_pair(target=folder("a", WORDS), draft=folder("b", swapped))


def test_vocabularies_of_other_sizes_are_refused(folder):
    with pytest.raises(ValueError, match=r"sizes 61 and 50\): id 50 is 'w50' .* None"):
        load_pair(target=folder("a", WORDS), draft=folder("b", WORDS[:50]))


@pytest.mark.parametrize("who", ["both", "target", "draft"])
def test_padding_ids_are_masked(folder, who):
    """CASES 18: 61 rows, 50 words; also where only one folder has a tokenizer."""
    pair = load_pair(target=folder("a", WORDS[:50] if who != "draft" else None),
                     draft=folder("b", WORDS[:50] if who != "target" else None))
    assert (pair.tokenizer is None) == (who == "draft")
    for model in (pair.target, pair.draft):
        assert model.vocab_size == 50
        assert model.forward(torch.arange(4)).shape == (4, 50)
    result = speculative(pair.target, ModelDrafter(pair.draft), [1, 2], k=3,
                         max_new_tokens=60, sampling=Sampling(1e4))
    assert result.tokens.max() < 50
    with pytest.raises(ValueError, match="id 50 is outside"):
        speculative(pair.target, ModelDrafter(pair.draft), [50], k=1, max_new_tokens=1)


def test_models_padded_to_other_sizes_agree(folder):
    pair = load_pair(target=folder("a", WORDS[:50]),
                     draft=smaller(folder("b", WORDS[:50]), 52))
    assert pair.target.vocab_size == pair.draft.vocab_size == 50


def test_a_tokenizer_larger_than_a_model_is_refused(folder):
    a, b = folder("a", WORDS), smaller(folder("b", WORDS), 60)
    with pytest.raises(ValueError, match="tokenizer has 61 ids, .* 60 only"):
        load_pair(target=a, draft=b)


def test_folders_without_tokenizers_go_by_ids(folder):
    pair = load_pair(target=folder("a"), draft=folder("b"))
    assert pair.tokenizer is None
    for call in (lambda: pair.encode("w1"), lambda: pair.decode([1])):
        with pytest.raises(ValueError, match="this pair has no tokenizer"):
            call()
    small = smaller(folder("c"), 40)
    with pytest.raises(ValueError, match="draft has 61 ids and the target 40: id 40"):
        load_pair(target=small, draft=folder("d"))
    pair = load_pair(target=folder("e"), draft=small)  # a text may leave the draft's 40
    result = speculative(pair.target, ModelDrafter(pair.draft), [60, 59, 1], k=3,
                         max_new_tokens=40, sampling=Sampling(2.0))
    assert result.tokens.max() >= 40 and len(result.trace) < 40
