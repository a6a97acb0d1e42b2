"""A rank reads its own slices of the files: the same shard, and no more memory."""
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from helpers import CONFIGS, random_transformer
from safetensors.torch import load_file, save_file
from shards import ODD, random_decoder

from nds_helpers.models import load_model
from nds_helpers.models.checkpoint import places
from nds_helpers.parallel import (
    RankError,
    SoloGroup,
    load_shard,
    partition,
    shard_model,
    simulate,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """name -> folder; every second one in several files."""
    made = {}
    for i, name in enumerate(CONFIGS):
        made[name] = tmp_path_factory.mktemp("model")
        random_transformer(name, i).save_pretrained(
            made[name], max_shard_size="20KB" if i % 2 else "1GB")
    return made


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_loaded_shard_is_the_one_cut_from_the_whole(folders, name, size):
    whole = load_model(folders[name], torch.float64)

    def on_ranks(me):
        cut = dict(shard_model(whole, me.group).named_parameters())
        loaded = load_shard(folders[name], me.group, torch.float64, scheme="sequence")
        assert loaded.scheme.name == "sequence" and not loaded.training
        found = dict(loaded.named_parameters())
        assert found.keys() == cut.keys()
        for key, weight in found.items():
            assert torch.equal(weight, cut[key]) and not weight.requires_grad
            assert weight.untyped_storage().nbytes() == weight.nbytes
        assert loaded.end_token_ids == whole.end_token_ids == (3,)
        return loaded.vocab_size

    assert simulate(on_ranks, size) == [61] * size


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_type_in_memory_is_the_one_asked_for(folders, dtype):
    shard = load_shard(folders["qwen3"], SoloGroup(), dtype)
    assert {weight.dtype for weight in shard.parameters()} == {dtype}
    with pytest.raises(ValueError, match=r"dtype must be one of torch\.float32"):
        load_shard(folders["qwen3"], SoloGroup(), torch.int8)


# What is wrong with a file is said on the rank, as it is for a whole model.
def refused(folder, match):
    with pytest.raises(RankError, match=match):
        simulate(lambda me: load_shard(folder, me.group), 2)


@pytest.fixture
def altered(folders, tmp_path):
    """alter(name, change): a copy whose dictionary of tensors `change` has edited."""
    def alter(name, change):
        folder = shutil.copytree(folders[name], tmp_path / "model")
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")
        return folder

    return alter


@pytest.mark.parametrize("extra", ["model.layers.1.self_attn.q_norm.weight",
                                   "score.weight", "model.layers.2.mlp.up_proj.weight"])
def test_a_weight_that_nothing_reads_is_an_error(altered, extra):
    refused(altered("llama", lambda weights: weights.update({extra: torch.ones(8)})),
            f"nothing .* reads the weight '{extra}'")


def test_a_weight_that_no_file_fills_is_an_error(altered):
    name = "model.layers.1.self_attn.q_proj.bias"
    refused(altered("qwen2", lambda weights: weights.pop(name)),
            r"no file fills the weight 'layers\.1\.self_attn\.q_proj\.bias'")


@pytest.mark.parametrize("name, shape", [
    ("model.layers.1.self_attn.q_proj.weight", (40, 32)),  # longer: slices would fit
    ("model.layers.1.self_attn.q_proj.weight", (31, 32)),
    ("model.layers.0.mlp.down_proj.weight", (32, 64)),
    ("model.embed_tokens.weight", (64, 32)),
    ("model.norm.weight", (33,)), ("lm_head.weight", (61,))])
def test_a_wrong_shape_is_named(altered, name, shape):
    refused(altered("llama", lambda weights: weights.update({name: torch.ones(shape)})),
            f"'{name}' has shape .{shape[0]},")


def test_a_tied_model_may_ship_its_head_too_but_no_other(altered):
    embedding = "model.embed_tokens.weight"
    folder = altered("llama, bias, tied",
                     lambda w: w.update({"lm_head.weight": w[embedding].clone()}))
    shards = simulate(lambda me: load_shard(folder, me.group), 2)
    assert all(s.lm_head.weight is s.embed_tokens.weight for s in shards)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][60] += 1  # a row of rank 1's
    save_file(weights, folder / "model.safetensors")
    refused(folder, "rank 1 failed: .*tie_word_embeddings is true")


def test_a_damaged_or_missing_file_and_too_many_ranks_are_named(folders, tmp_path):
    folder = shutil.copytree(folders["llama"], tmp_path / "model")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:4000])
    refused(folder, r"model\.safetensors is damaged")
    (folder / "model.safetensors").unlink()
    refused(folder, r"has no model\.safetensors")
    with pytest.raises(RankError, match="cut for 1 to 4 ranks, not for 5"):
        simulate(lambda me: load_shard(folders["llama"], me.group), 5)


# Memory.
MEASURE = """
import sys, threading, torch
from nds_helpers.parallel import load_shard
from nds_helpers.parallel.collectives import Group

def held():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(l for l in lines if l.startswith("VmHWM")).split()[1]) * 1024

small, big, rank, size, dtype = sys.argv[1:]
group = Group(int(rank), int(size))
load_shard(small, group)  # what the first call imports is no model's memory
before = held()
shard = load_shard(big, group, getattr(torch, dtype))
print(held() - before)
"""


def save_like_hugging_face(model, folder, dtype):
    """Writes a Decoder as a folder that `load_model` opens."""
    c = model.config
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="llama", vocab_size=c.vocab_size, hidden_size=c.width,
        intermediate_size=c.mlp_width, num_hidden_layers=c.layers,
        num_attention_heads=c.heads, num_key_value_heads=c.kv_heads,
        head_dim=c.head_width,
        max_position_embeddings=c.max_length)))
    weights = {}
    for name, (module, parameter, rows) in places(model):
        whole = getattr(module, parameter)
        weights[f"model.{name}".replace("model.lm_head", "lm_head")] = (
            whole if rows is None else whole[rows]).to(dtype).contiguous()
    save_file(weights, folder / "model.safetensors")


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    """(a small folder, one of 185 MB, the config of the latter)."""
    made = [tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("big")]
    config = replace(ODD, vocab_size=8003, width=1024, heads=16, kv_heads=4,
                     head_width=64, mlp_width=3000)
    for folder, shape in zip(made, (ODD, config)):
        save_like_hugging_face(random_decoder(shape), folder, torch.float32)
    yield *made, config
    for folder in made:
        shutil.rmtree(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("rank, size, dtype", [(0, 1, "float32"), (1, 2, "float32"),
                                               (0, 4, "float32"), (0, 2, "bfloat16")])
def test_a_rank_takes_no_more_memory_than_its_shard_and_one_tensor(
        sizes, rank, size, dtype):
    """Whole pages of the file count too, as long as they are mapped."""
    *folders, config = sizes
    arguments = [*map(str, folders), str(rank), str(size), dtype]
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments],
        capture_output=True, text=True, check=True, env={"OMP_NUM_THREADS": "1"})
    shard = partition(config, size).parameters(rank) * getattr(torch, dtype).itemsize
    largest = config.vocab_size * config.width * 4
    grown = int(run.stdout)
    assert 0.8 * shard < grown < shard + largest + 8e6
