"""Fetches a model folder from the Hugging Face hub, checked before it is used."""
import hashlib
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
TIMEOUT = 10  # seconds to answer
# OSError, and the base error of the HTTP library that the hub's library builds on.
UNREACHABLE = HfHubHTTPError.__bases__


def fetch(name):
    """Downloads `org/name` to the hub's own cache, or finds it there.

    Args:
        name: hub id, `org/name`.

    Returns:
        Path of the folder.

    Raises:
        ConnectionError: the hub can't be reached and the cache has no copy.
        ValueError: a file's sha256 isn't the one that the hub lists.
    """
    folder = cached(name)
    if folder is not None:
        return folder
    try:
        info = HfApi().model_info(name, files_metadata=True, timeout=TIMEOUT)
        folder = Path(snapshot_download(name, revision=info.sha,
                                        allow_patterns=WANTED, etag_timeout=TIMEOUT))
    except UNREACHABLE as error:
        raise ConnectionError(
            f"{name} is not in the cache and the hub doesn't give it "
            f"({type(error).__name__}); check the name and the connection, or pass "
            "a local folder.") from None
    check_sums(folder, info.siblings)
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


def check_sums(folder, files):
    """Compares each large file with the sha256 that the hub lists for it."""
    for file in tqdm([f for f in files if f.lfs and (folder / f.rfilename).exists()],
                     desc="checking"):
        path = folder / file.rfilename
        digest = hashlib.sha256()
        with open(path, "rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
        if digest.hexdigest() != file.lfs.sha256:
            path.resolve().unlink()
            shutil.rmtree(folder)  # links, mostly: the next call makes them again
            raise ValueError(f"{file.rfilename} arrived damaged (wrong sha256) and "
                             "was removed; run the same call again.")
