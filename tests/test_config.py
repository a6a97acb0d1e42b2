"""config.json: every field is read, known to be harmless, or refused by name."""
import json

import pytest
from helpers import CONFIGS, LLAMA3, SMALL
from transformers import AutoConfig

from nds_helpers.models.config import ModelConfig, config_from_dict, read_config

RAW = dict(model_type="llama", vocab_size=61, hidden_size=32, intermediate_size=48,
           num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_transformers_writes_is_read(name, tmp_path):
    settings = SMALL | CONFIGS[name]
    theirs = AutoConfig.for_model(settings.pop("model_type"), **settings)
    theirs.save_pretrained(tmp_path)
    ours = read_config(tmp_path)
    for mine, name in dict(
            vocab_size="vocab_size", width="hidden_size", layers="num_hidden_layers",
            heads="num_attention_heads", kv_heads="num_key_value_heads",
            mlp_width="intermediate_size", max_length="max_position_embeddings",
            norm_eps="rms_norm_eps", tied="tie_word_embeddings").items():
        assert getattr(ours, mine) == getattr(theirs, name)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.end_token_ids == (3,)


def test_families_differ_in_bias_and_norms():
    made = {f: config_from_dict(RAW | {"model_type": f}) for f in
            ("llama", "qwen2", "qwen3")}
    assert [made[f].qkv_bias for f in made] == [False, True, False]
    assert [made[f].output_bias for f in made] == [False, False, False]
    assert [made[f].qk_norm for f in made] == [False, False, True]
    biased = config_from_dict(RAW | {"attention_bias": True})
    assert (biased.qkv_bias, biased.output_bias) == (True, True)


def test_fields_that_are_left_out_have_the_defaults_of_the_format():
    config = config_from_dict(RAW)
    assert (config.kv_heads, config.head_width, config.rope_theta) == (4, 8, 10_000)
    assert (config.tied, config.norm_eps, config.rope) == (
        False, 1e-6, {"rope_type": "default"})


def test_both_spellings_of_rope():
    scaling = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
    old = {"type" if name == "rope_type" else name: v for name, v in scaling.items()}
    new = config_from_dict(RAW | {"rope_parameters": LLAMA3})
    assert new.rope_theta == 5e5 and new.rope == scaling
    for spelled in (scaling, old):
        raw = RAW | {"rope_scaling": spelled, "rope_theta": 5e5}
        assert new == config_from_dict(raw)


@pytest.mark.parametrize("field,value", [
    ("model_type", "mistral"), ("model_type", None), ("hidden_act", "gelu"),
    ("mlp_bias", True), ("pretraining_tp", 2), ("rope_interleaved", True),
    ("quantization_config", {"bits": 4}), ("use_sliding_window", True),
    ("layer_types", ["full_attention", "sliding_attention"]),
    ("logit_scale", 0.5), ("partial_rotary_factor", 0.5), ("head_dims", 8)])
def test_an_unsupported_field_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=field):
        config_from_dict(RAW | {field: value})


@pytest.mark.parametrize("rope,named", [
    ({"rope_type": "yarn", "factor": 4.0}, "yarn"),
    ({"type": "linear", "factor": 2.0}, "linear"),
    ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({k: v for k, v in LLAMA3.items() if k != "low_freq_factor"}, "low_freq_factor"),
    (LLAMA3 | {"attention_factor": 2.0}, "attention_factor")])
def test_an_unsupported_rope_is_refused_by_name(rope, named):
    for spelling in ("rope_parameters", "rope_scaling"):
        with pytest.raises(ValueError, match=named):
            config_from_dict(RAW | {spelling: rope})


@pytest.mark.parametrize("field", sorted(set(RAW) - {"model_type"}))
def test_a_missing_field_is_named(field):
    raw = {name: value for name, value in RAW.items() if name != field}
    with pytest.raises(ValueError, match=f"'{field}' is missing"):
        config_from_dict(raw)


def test_a_field_that_is_null_is_named():
    with pytest.raises(ValueError, match="'hidden_size' is missing or null"):
        config_from_dict(RAW | {"hidden_size": None})


def test_both_spellings_at_once_must_agree():
    old = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
    both = RAW | {"rope_parameters": LLAMA3, "rope_theta": 5e5}
    assert config_from_dict(both | {"rope_scaling": old}) == config_from_dict(both)
    for other in (old | {"factor": 4.0}, {"rope_type": "default"}):
        with pytest.raises(ValueError, match="rope_parameters and rope_scaling dis"):
            config_from_dict(both | {"rope_scaling": other})


def test_heads_that_cannot_share_kv_heads_are_refused():
    with pytest.raises(ValueError, match=r"heads \(4\) .*heads \(3\)"):
        config_from_dict(RAW | {"num_key_value_heads": 3})


@pytest.mark.parametrize("own,generation,expected", [
    (7, None, (7,)), (7, 8, (8,)), (7, [8, 9], (8, 9)), ([1, 2], None, (1, 2)),
    (None, None, ()), (None, 0, (0,)), (0, None, (0,))])
def test_all_end_tokens_of_the_generation_config_count(tmp_path, own, generation,
                                                       expected):
    (tmp_path / "config.json").write_text(json.dumps(RAW | {"eos_token_id": own}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(
            json.dumps({"eos_token_id": generation}))
    assert read_config(tmp_path).end_token_ids == expected


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama", ')
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"must hold a JSON object .* not a list"):
        read_config(tmp_path)


def test_a_config_does_not_change():
    config = config_from_dict(RAW)
    assert isinstance(config, ModelConfig)
    with pytest.raises(AttributeError):
        config.width = 3
