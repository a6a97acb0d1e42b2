"""The decoder, its KV cache, checkpoints, and draft/target pairs."""
from .cache import KVCache
from .checkpoint import load_model
from .config import ModelConfig
from .decoder import Decoder
from .pairs import Pair, load_pair

__all__ = ["Decoder", "KVCache", "ModelConfig", "Pair", "load_model", "load_pair"]
