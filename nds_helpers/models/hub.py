"""Fetches a model folder from the Hugging Face hub, checked before it is used."""
import contextlib
import hashlib
import re
import shutil
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from tqdm import tqdm

from .checkpoint import weight_files
from .config import read_json

# Weights as safetensors only: nothing that is fetched is ever unpickled.
WANTED = ["config.json", "generation_config.json", "*.safetensors",
          "model.safetensors.index.json", "tokenizer*.json", "special_tokens_map.json"]
CHECKED = ".nds_checked"  # lies in a folder that is complete and has been checked
TIMEOUT = 10  # seconds to answer
# OSError, and the base error of the HTTP library that the hub's library builds on.
UNREACHABLE = HfHubHTTPError.__bases__


def fetch(name):
    """Downloads `org/name` to the hub's own cache, or finds it there.

    Nothing is used unchecked. A folder that was downloaded and checked here is
    marked, and is used without a question. Any other folder in the cache (an
    interrupted download, or another tool's) is first completed and checked
    against the hub; offline, against the names that its weights have in the
    cache, which are their sha256.

    Args:
        name: hub id, `org/name`.

    Returns:
        Path of the folder.

    Raises:
        ConnectionError: the hub can't be reached and the cache has no copy, or
            one that can't be checked.
        ValueError: a file's sha256 isn't the one that it should have.
    """
    found = cached(name)
    if found is not None and (found / CHECKED).exists():
        return found
    try:
        info = HfApi().model_info(name, files_metadata=True, timeout=TIMEOUT)
        folder = Path(snapshot_download(name, revision=info.sha,
                                        allow_patterns=WANTED, etag_timeout=TIMEOUT))
    except UNREACHABLE as error:
        if found is not None:
            check_sums(found, sums_in_cache(found))
            return found
        raise ConnectionError(
            f"{name} is not in the cache and the hub doesn't give it "
            f"({type(error).__name__}); check the name and the connection, or pass "
            "a local folder.") from None
    check_sums(folder, {f.rfilename: f.lfs.sha256 for f in info.siblings if f.lfs})
    with contextlib.suppress(OSError):  # a cache that may only be read
        (folder / CHECKED).touch()
    return folder


def cached(name):
    """The folder in the hub's cache, or None where it is missing or incomplete."""
    try:
        folder = Path(snapshot_download(name, allow_patterns=WANTED,
                                        local_files_only=True))
        read_json(folder / "config.json")
        weight_files(folder)
    except FileNotFoundError:  # the hub's own error is one too
        return None
    return folder


def sums_in_cache(folder):
    """Name -> sha256 of each weight file, as the hub's cache names what it links to."""
    sums = {path.name: path.resolve().name for path in weight_files(folder)}
    if not all(re.fullmatch("[0-9a-f]{64}", total) for total in sums.values()):
        raise ConnectionError(f"{folder} was never checked, and the hub that could "
                              "check it can't be reached; connect once, or pass it "
                              "as a local folder.") from None
    return sums


def check_sums(folder, sums):
    """Compares each file in `sums` (name -> sha256) that is there with its sum."""
    for name in tqdm([n for n in sums if (folder / n).exists()], desc="checking"):
        path = folder / name
        digest = hashlib.sha256()
        with open(path, "rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
        if digest.hexdigest() != sums[name]:
            path.resolve().unlink()
            shutil.rmtree(folder)  # links, mostly: the next call makes them again
            raise ValueError(f"{name} arrived damaged (wrong sha256) and "
                             "was removed; run the same call again.")
