"""Pairs: by name, by folder and from the hub; vocabularies that must agree."""
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import random_transformer
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from nds_helpers.decoding import ModelDrafter, Sampling, speculative
from nds_helpers.models import hub, load_pair, pairs

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "data" / "tiny"
SHIPPED = [line.split()[1] for line in (TINY / "SHA256SUMS").read_text().splitlines()]
WORDS = [f"w{i}" for i in range(61)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A folder with config and weights only; 61 ids."""
    folder = tmp_path_factory.mktemp("weights")
    random_transformer("llama").save_pretrained(folder)
    return folder


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


# The hub, by fakes; what reaches the network is tested in a process of its own.
class FakeHub:
    """A hub of one model: folder `source`, downloaded to folder `cache`."""

    def __init__(self, source, cache, listed=None, fail=None):
        self.source, self.cache, self.fail = source, cache, fail
        self.sums = listed or {
            p.name: hashlib.sha256(p.read_bytes()).hexdigest()
            for p in source.iterdir()}
        self.downloads = 0

    def snapshot_download(self, name, *, allow_patterns, local_files_only=False,
                          revision=None, etag_timeout=None):
        if local_files_only:
            if not self.cache.exists():
                raise LocalEntryNotFoundError("no such snapshot")
            return str(self.cache)
        assert revision == "0123" and etag_timeout <= 10
        assert not any("bin" in p or "py" in p or p == "*" for p in allow_patterns)
        self.downloads += 1
        shutil.copytree(self.source, self.cache, dirs_exist_ok=True)
        return str(self.cache)

    def model_info(self, name, *, files_metadata, timeout):
        assert files_metadata and timeout <= 10
        if self.fail:
            raise self.fail
        return SimpleNamespace(sha="0123", siblings=[
            SimpleNamespace(rfilename=name, lfs=SimpleNamespace(sha256=total)
                            if name.endswith(".safetensors") else None)
            for name, total in self.sums.items()])

    def install(self, monkeypatch):
        monkeypatch.setattr(hub, "snapshot_download", self.snapshot_download)
        monkeypatch.setattr(hub, "HfApi", lambda: self)
        return self


def test_a_download_is_checked_once_and_then_cached(weights, tmp_path, monkeypatch):
    fake = FakeHub(weights, tmp_path / "cache").install(monkeypatch)
    for _ in range(2):
        pair = load_pair(target="org/name", draft="org/name")
    assert fake.downloads == 1 and pair.target.vocab_size == 61


def test_a_damaged_download_is_removed_and_fetched_again(weights, tmp_path,
                                                         monkeypatch):
    right = FakeHub(weights, tmp_path / "cache")
    wrong = right.sums | {"model.safetensors": "0" * 64}
    fake = FakeHub(weights, tmp_path / "cache", wrong).install(monkeypatch)
    for again in (1, 2):
        with pytest.raises(ValueError, match=r"model\.safetensors arrived damaged"):
            hub.fetch("org/name")
        assert not fake.cache.exists() and fake.downloads == again
    fake.sums = right.sums
    assert hub.fetch("org/name") == fake.cache


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
def test_a_cache_that_lacks_a_file_is_completed(weights, tmp_path, monkeypatch, lost):
    """An interrupted download leaves a folder behind; it isn't the end."""
    fake = FakeHub(weights, tmp_path / "cache").install(monkeypatch)
    shutil.copytree(weights, fake.cache)
    (fake.cache / lost).unlink()
    assert (hub.fetch("org/name") / lost).exists()


def test_a_cache_without_the_mark_is_completed_and_checked(weights, tmp_path,
                                                           monkeypatch):
    """Interrupted between download and check, or before its last files."""
    fake = FakeHub(weights, tmp_path / "cache").install(monkeypatch)
    shutil.copytree(weights, fake.cache)
    (fake.cache / "generation_config.json").unlink()
    fake.sums["model.safetensors"] = "0" * 64
    with pytest.raises(ValueError, match="arrived damaged"):
        hub.fetch("org/name")
    shutil.copytree(weights, fake.cache)
    (fake.cache / "generation_config.json").unlink()
    fake.sums = FakeHub(weights, fake.cache).sums
    assert (hub.fetch("org/name") / "generation_config.json").exists()
    fake.fail = OSError("no route")
    assert hub.fetch("org/name") == fake.cache  # marked: nobody is asked


@pytest.mark.parametrize("damaged", [False, True])
def test_offline_a_cache_is_checked_by_the_names_of_its_blobs(weights, tmp_path,
                                                              monkeypatch, damaged):
    """Another tool's download: links to files that are named by their sha256."""
    fake = FakeHub(weights, tmp_path / "cache", fail=OSError("no route"))
    fake.install(monkeypatch)
    shutil.copytree(weights, fake.cache)
    with pytest.raises(ConnectionError, match="was never checked") as caught:
        hub.fetch("org/name")
    assert caught.value.__suppress_context__
    link = fake.cache / "model.safetensors"
    blob = link.rename(tmp_path / fake.sums[link.name])
    link.symlink_to(blob)
    if damaged:
        blob.write_bytes(b"!" + blob.read_bytes()[1:])
        with pytest.raises(ValueError, match="arrived damaged"):
            hub.fetch("org/name")
        assert not blob.exists()
    else:
        assert hub.fetch("org/name") == fake.cache


@pytest.mark.parametrize("error", [OSError("no route"), TimeoutError(),
                                   hub.UNREACHABLE[0]("proxy says no")], ids=repr)
def test_an_unreachable_hub_is_one_sentence(weights, tmp_path, monkeypatch, error):
    FakeHub(weights, tmp_path / "cache", fail=error).install(monkeypatch)
    with pytest.raises(ConnectionError, match="^org/name is not in the cache .*local "
                                              "folder.$") as caught:
        load_pair(target="org/name", draft="org/name")
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("settings", [
    dict(HF_HUB_OFFLINE="1"),
    {name: "http://127.0.0.1:9" for name in (
        "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY")}],
    ids=["offline", "dead proxy"])
def test_without_network_a_download_fails_soon_and_leaves_nothing(settings, tmp_path):
    """CASES 44."""
    code = ("import faulthandler; from nds_helpers.models.hub import fetch; "
            "faulthandler.dump_traceback_later(30, exit=True); fetch('org/name')")
    surroundings = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
        timeout=120, env=surroundings | settings | {"HF_HOME": str(tmp_path / "hf")})
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ConnectionError: org/name is not in the cache")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
