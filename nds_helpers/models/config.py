"""What a checkpoint's config.json says, reduced to what the decoder needs.

Every field is read, known to be harmless, or refused by name: a field that is
silently ignored gives a model that talks, but talks wrong.
"""
import json
from dataclasses import dataclass, field
from pathlib import Path

FAMILIES = ("llama", "qwen2", "qwen3")

# Fields that don't change what the decoder computes from its weights.
HARMLESS = {
    "_name_or_path", "architectures", "attention_dropout", "auto_map",
    "bos_token_id", "dtype", "id2label", "initializer_range", "is_llama_config",
    "label2id", "max_length", "max_window_layers", "pad_token_id",
    "sliding_window", "torch_dtype", "transformers.js_config",
    "transformers_version", "unsloth_fixed", "unsloth_version", "use_cache",
}

# Fields that are fine with these values and refused with any other.
ONLY = {
    "hidden_act": ("silu",),
    "mlp_bias": (False, None),
    "pretraining_tp": (1, None),
    "quantization_config": (None,),
    "rope_interleaved": (False, None),
    "use_sliding_window": (False, None),
}

REQUIRED = {
    "hidden_size", "intermediate_size", "max_position_embeddings", "model_type",
    "num_attention_heads", "num_hidden_layers", "vocab_size",
}

READ = REQUIRED | {
    "attention_bias", "eos_token_id", "head_dim", "layer_types",
    "num_key_value_heads", "rms_norm_eps", "rope_parameters", "rope_scaling",
    "rope_theta", "tie_word_embeddings",
}

ROPE_FIELDS = {
    "default": set(),
    "llama3": {"factor", "low_freq_factor", "high_freq_factor",
               "original_max_position_embeddings"},
}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Llama-family decoder.

    Sizes are counts of elements; `rope` holds `rope_type` and, for the Llama 3
    kind, its four scaling numbers.
    """

    vocab_size: int  # V, rows of the embedding, padding rows included
    width: int  # D
    layers: int
    heads: int  # H
    kv_heads: int  # G
    head_width: int
    mlp_width: int
    max_length: int  # positions the model was trained for
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope: dict = field(default_factory=lambda: {"rope_type": "default"})
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    end_token_ids: tuple = ()

    def __post_init__(self):
        if self.heads % self.kv_heads:
            raise ValueError(
                f"num_attention_heads ({self.heads}) is not a multiple of "
                f"num_key_value_heads ({self.kv_heads}): heads share kv heads "
                "in groups of equal size.")


def read_config(folder):
    """Reads config.json (and generation_config.json) of a Hugging Face folder.

    Args:
        folder: path of the folder.

    Returns:
        ModelConfig.

    Raises:
        FileNotFoundError: there is no config.json.
        ValueError: a field, or a value of one, is not supported; it is named.
    """
    folder = Path(folder)
    return config_from_dict(read_json(folder / "config.json"), end_tokens(folder))


def read_json(path):
    """The content of a JSON file, or one sentence about what is wrong with it."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path.parent} has no {path.name}: it is not a whole Hugging Face "
            "model folder (config.json, *.safetensors, tokenizer.json).")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); "
                         "fetch it again.") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object {{...}}, not a "
                         f"{type(found).__name__}; fetch it again.")
    return found


def end_tokens(folder):
    """All end tokens of the generation config, or of config.json without one."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            found = read_json(folder / name).get("eos_token_id")
            if found is not None:
                return tuple(found) if isinstance(found, list) else (found,)
    return ()


def config_from_dict(raw, end_token_ids=()):
    """Turns the dictionary in a config.json into a ModelConfig.

    Args:
        raw: the dictionary.
        end_token_ids: ids that end a text.

    Returns:
        ModelConfig.

    Raises:
        ValueError: a field, or a value of one, is not supported; it is named.
    """
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type {family!r} is not supported; the decoder "
                         f"knows {', '.join(FAMILIES)}.")
    refuse_unsupported(raw)
    theta, rope = rope_settings(raw)
    heads = raw["num_attention_heads"]
    bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        vocab_size=raw["vocab_size"],
        width=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_width=raw.get("head_dim") or raw["hidden_size"] // heads,
        mlp_width=raw["intermediate_size"],
        max_length=raw["max_position_embeddings"],
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope=rope,
        qkv_bias=bias or family == "qwen2",  # Qwen2 has it without saying so
        output_bias=bias,
        qk_norm=family == "qwen3",
        tied=bool(raw.get("tie_word_embeddings", False)),
        end_token_ids=tuple(end_token_ids))


def refuse_unsupported(raw):
    """Raises ValueError for the first field that is missing or can't be honoured."""
    missing = sorted(name for name in REQUIRED if raw.get(name) is None)
    if missing:
        raise ValueError(f"config field {missing[0]!r} is missing or null; the "
                         "decoder needs it and doesn't guess.")
    for name, allowed in ONLY.items():
        if name in raw and raw[name] not in allowed:
            raise ValueError(f"config field {name} = {raw[name]!r} is not "
                             f"supported; the decoder needs {allowed[0]!r}.")
    for kind in raw.get("layer_types") or ():
        if kind != "full_attention":
            raise ValueError(f"config field layer_types has {kind!r}: only "
                             "'full_attention' layers are supported.")
    unknown = sorted(set(raw) - READ - HARMLESS - set(ONLY))
    if unknown:
        raise ValueError(f"config field {unknown[0]!r} = {raw[unknown[0]]!r} is "
                         "not known to this decoder, and ignoring it could "
                         "change what the model says.")


def rope_settings(raw):
    """(theta, scaling) from either spelling, or from both where they agree."""
    given = [raw[name] for name in ("rope_parameters", "rope_scaling")
             if raw.get(name)] or [{}]
    found = [read_rope(rope, raw.get("rope_theta")) for rope in given]
    if found[0] != found[-1]:
        raise ValueError("config fields rope_parameters and rope_scaling disagree "
                         f"({given[0]} and {given[-1]}); remove the wrong one.")
    return found[0]


def read_rope(rope, outer_theta):
    """(theta, scaling) of one dictionary; its own theta goes before the outer one."""
    rope = dict(rope)
    theta = rope.pop("rope_theta", None) or outer_theta or 10_000.0
    older = rope.pop("type", "default")
    kind = rope.setdefault("rope_type", older)
    if kind not in ROPE_FIELDS:
        raise ValueError(f"rope_type {kind!r} is not supported; the decoder "
                         f"knows {', '.join(ROPE_FIELDS)}.")
    wrong = ROPE_FIELDS[kind].symmetric_difference(set(rope) - {"rope_type"})
    if wrong:
        raise ValueError(f"rope field {sorted(wrong)[0]!r} is missing or not "
                         f"supported for rope_type {kind!r}.")
    return float(theta), rope
