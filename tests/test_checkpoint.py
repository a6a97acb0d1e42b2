"""Checkpoints: undamaged, nothing unread, nothing unfilled, nothing unpickled."""
import json
import pickle
import shutil

import pytest
import torch
from helpers import CONFIGS, random_transformer
from safetensors.torch import load_file, save_file

from nds_helpers.models import load_model
from nds_helpers.models.checkpoint import places


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """name -> folder in one piece."""
    made = {}
    for name in CONFIGS:
        made[name] = tmp_path_factory.mktemp("model")
        random_transformer(name).float().save_pretrained(made[name])
    return made


@pytest.fixture
def altered(folders, tmp_path):
    """alter(name, change): a copy whose dictionary of tensors `change` has edited."""
    def alter(name, change):
        folder = tmp_path / "model"
        shutil.copytree(folders[name], folder)
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return folder

    return alter


@pytest.mark.parametrize("name", CONFIGS)
def test_every_weight_is_where_the_file_says(folders, name):
    weights = load_file(folders[name] / "model.safetensors")
    ours = dict(places(load_model(folders[name])))
    assert {f"model.{key}".replace("model.lm_head", "lm_head") for key in ours} == set(
        weights)
    for key, (module, parameter, rows) in ours.items():
        whole = getattr(module, parameter)
        tensor = whole if rows is None else whole[rows]
        assert torch.equal(tensor, weights.get(f"model.{key}", weights.get(key)))
        assert not whole.requires_grad


def every_weight(folder):
    return sorted(load_file(folder / "model.safetensors"))


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama, bias, tied"])
def test_any_weight_that_no_file_fills_is_an_error(folders, altered, name):
    """CASES 27: among them biases and the norms of q and k."""
    names = [n for n in every_weight(folders[name]) if "layers.0" not in n]
    for kind in ("q_proj.bias", "q_norm", "k_norm", "o_proj.bias"):
        assert any(kind in n for n in names) == (kind in {
            "qwen2": ["q_proj.bias"], "qwen3": ["q_norm", "k_norm"],
            "llama, bias, tied": ["q_proj.bias", "o_proj.bias"]}[name])
    folder = altered(name, lambda weights: None)
    whole = load_file(folder / "model.safetensors")
    for missing in names:
        rest = {key: tensor for key, tensor in whole.items() if key != missing}
        save_file(rest, folder / "model.safetensors")
        with pytest.raises(ValueError, match=missing.removeprefix("model.")):
            load_model(folder)


@pytest.mark.parametrize("extra", ["model.layers.1.self_attn.q_norm.weight",
                                   "model.layers.0.self_attn.q_proj.bias",
                                   "model.layers.2.mlp.up_proj.weight", "score.weight",
                                   "model.layers.0.self_attn.q_proj.weight_scale"])
def test_a_weight_that_nothing_reads_is_an_error(altered, extra):
    folder = altered("llama", lambda weights: weights.update({extra: torch.ones(8)}))
    with pytest.raises(ValueError, match=f"nothing .* reads the weight '{extra}'"):
        load_model(folder)


def test_a_table_of_frequencies_in_older_files_is_skipped(altered):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    load_model(altered("llama", lambda weights: weights.update({name: torch.ones(4)})))


@pytest.mark.parametrize("shape", [(8,), (32, 31), (31, 32), (1, 32)])
def test_a_wrong_shape_is_named(altered, shape):
    name = "model.layers.1.self_attn.q_proj.weight"
    folder = altered("llama", lambda weights: weights.update({name: torch.ones(shape)}))
    with pytest.raises(ValueError, match=r"layers\.1\.self_attn\.q_proj\.weight' has "
                                         r"shape .* asks for \(32, 32\)"):
        load_model(folder)


@pytest.mark.parametrize("name", ["qwen2, tied", "llama, bias, tied"])
def test_a_tied_model_may_ship_its_head_too(altered, name):
    """Wherever it stands in the file: most put it before the embedding."""
    embedding = "model.embed_tokens.weight"
    folder = altered(name, lambda w: w.update({"lm_head.weight": w[embedding].clone()}))
    model = load_model(folder)
    assert model.lm_head.weight is model.embed_tokens.weight


def test_a_tied_model_with_another_head_is_refused(altered):
    folder = altered("qwen2, tied", lambda w: w.update(
        {"lm_head.weight": w["model.embed_tokens.weight"] + 1}))
    with pytest.raises(ValueError, match="tie_word_embeddings is true"):
        load_model(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_type_in_memory_is_the_one_asked_for(folders, dtype):
    model = load_model(folders["qwen3"], dtype)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model.forward(torch.arange(3)).dtype == dtype
    assert not model.training


@pytest.mark.parametrize("keep", [0, 7, 100, 4000])
def test_a_truncated_file_is_named(folders, tmp_path, keep):
    folder = shutil.copytree(folders["llama"], tmp_path / "model")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:keep])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load_model(folder)


def test_a_missing_file_is_named(folders, tmp_path):
    folder = shutil.copytree(folders["llama"], tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no model\.safetensors"):
        load_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        load_model(folder)
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        load_model(tmp_path / "nowhere")


def test_a_missing_shard_is_named(tmp_path):
    random_transformer("qwen2").save_pretrained(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {shard.name}"):
        load_model(tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": null}'])
def test_an_index_without_a_map_is_named(folders, tmp_path, content):
    folder = shutil.copytree(folders["llama"], tmp_path / "model")
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=r"index\.json has no weight_map"):
        load_model(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, "float32", None])
def test_weights_in_memory_are_real_numbers(folders, dtype):
    with pytest.raises(ValueError, match="dtype must be one of torch.float32"):
        load_model(folders["llama"], dtype)


def test_a_config_of_another_family_or_size_is_refused(folders, tmp_path):
    folder = shutil.copytree(folders["qwen3"], tmp_path / "model")
    raw = json.loads((folder / "config.json").read_text())
    for change, named in [(dict(model_type="llama"), "_norm.weight"),
                          (dict(model_type="mamba"), "'mamba' is not supported"),
                          (dict(num_hidden_layers=1), "layers.1"),
                          (dict(num_hidden_layers=3), "layers.2"),
                          (dict(head_dim=8), "asks for"),
                          (dict(clip_qkv=3), "clip_qkv")]:
        (folder / "config.json").write_text(json.dumps(raw | change))
        with pytest.raises(ValueError, match=named):
            load_model(folder)


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


def test_nothing_is_ever_unpickled(folders, tmp_path):
    folder = shutil.copytree(folders["llama"], tmp_path / "model")
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin"):
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    load_model(folder)
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="is damaged"):
        load_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="safetensors files only"):
        load_model(folder)
