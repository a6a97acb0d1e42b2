"""The hub, by fakes; what reaches the network is tested in a process of its own."""
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from nds_helpers.models import hub, load_pair

ROOT = Path(__file__).resolve().parents[1]


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
