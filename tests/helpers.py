"""What the tests share: small models, recorders, random weights, loaded chapters."""
import ast
import re
import zlib
from pathlib import Path
from types import SimpleNamespace

import nbformat
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nds_helpers.decoding import Draft, verify_block, verify_tokens

VERIFIERS = [verify_tokens, verify_block]
PNG = b"\x89PNG"  # the first bytes of a picture


def generator(seed=0):
    """A random stream of its own."""
    return torch.Generator().manual_seed(seed)


class TokenCache:
    """A cache for models that look at ids only: it holds the ids themselves."""

    def __init__(self):
        self.tokens = []

    @property
    def length(self):
        return len(self.tokens)

    def truncate(self, length):
        assert 0 <= length <= self.length
        del self.tokens[length:]


class TableModel:
    """A plain Python class with the four members that DESIGN asks of a model.

    `rule` turns a prefix (tuple of ids, its last `order` at most) into V logits.
    """

    def __init__(self, rule, vocab_size=5, end_token_ids=(), max_length=None,
                 dtype=torch.float64, order=0):
        self.rule, self.vocab_size, self.dtype = rule, vocab_size, dtype
        self.order = order
        self.end_token_ids = end_token_ids
        if max_length is not None:
            self.max_length = max_length

    def new_cache(self, max_length):
        return TokenCache()

    def forward(self, tokens, cache):
        rows = []
        for token in tokens.tolist():
            cache.tokens.append(token)
            rows.append(self.rule(tuple(cache.tokens[-self.order:])))
        return torch.tensor(rows, dtype=self.dtype)


def random_rule(seed, vocab_size=5, sharpness=1.0):
    """Logits that depend on every token of the prefix."""
    known = {}

    def rule(prefix):
        if prefix not in known:
            g = torch.Generator().manual_seed(zlib.crc32(repr((seed, prefix)).encode()))
            row = torch.randn(vocab_size, generator=g, dtype=torch.float64)
            known[prefix] = (sharpness * row).tolist()
        return known[prefix]

    return rule


def next_rule(following, vocab_size=5, lead=1.0):
    """Logits that favour `following(prefix)` by `lead`."""
    def rule(prefix):
        row = [0.0] * vocab_size
        row[following(prefix)] = lead
        return row

    return rule


def law_rule(law):
    """Logits that always give the probabilities `law`."""
    row = torch.tensor(law, dtype=torch.float64).log().tolist()
    return lambda prefix: row


class Recorder:
    """Passes everything on to a model, and writes down each forward."""

    def __init__(self, model):
        self.model, self.calls, self.caches = model, [], []

    def __getattr__(self, name):
        return getattr(self.model, name)

    @property
    def widths(self):
        return [len(call.tokens) for call in self.calls]

    def new_cache(self, max_length):
        self.caches.append(self.model.new_cache(max_length))
        return self.caches[-1]

    def forward(self, tokens, cache):
        self.calls.append(SimpleNamespace(start=cache.length, tokens=tokens.tolist()))
        return self.model.forward(tokens, cache)


class Proposer:
    """A drafter that proposes what `choose(ids, k)` says: ids, or (ids, probs)."""

    def __init__(self, choose):
        self.choose, self.asked, self.resets = choose, [], 0

    def reset(self):
        self.resets += 1

    def propose(self, sequence, k, sampling, generator):
        self.asked.append(k)
        chosen = self.choose(sequence.tolist(), k)
        tokens, probs = chosen if isinstance(chosen, tuple) else (chosen, None)
        return Draft(torch.tensor(tokens, dtype=torch.long), probs)


# Hugging Face configs, small, one for each thing that a decoder can get wrong.
SMALL = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             eos_token_id=3, bos_token_id=1)
LLAMA3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
CONFIGS = {
    "llama": dict(model_type="llama"),
    "llama, one kv head, rope theta": dict(
        model_type="llama", num_key_value_heads=1, rms_norm_eps=1e-3,
        rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    "llama, bias, tied": dict(
        model_type="llama", attention_bias=True, tie_word_embeddings=True),
    "llama 3 scaling, wide heads": dict(
        model_type="llama", head_dim=12, rope_parameters=LLAMA3),
    "qwen2": dict(model_type="qwen2"),
    "qwen2, tied": dict(model_type="qwen2", tie_word_embeddings=True),
    "qwen3": dict(model_type="qwen3", head_dim=16),
    "qwen3, bias, tied": dict(
        model_type="qwen3", head_dim=16, attention_bias=True, tie_word_embeddings=True),
}


def random_transformer(name, seed=0):
    """A `transformers` model in float64, with no weight left at its initial value."""
    settings = SMALL | CONFIGS[name]
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config).double().eval()
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=g, dtype=torch.float64)
            weight.copy_(1 + 0.3 * noise if "norm" in key else 0.2 * noise)
    return model


def exact_norm(self, x):
    """The RMS norm of `transformers`, without its detour over float32."""
    eps = self.variance_epsilon
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


# The chapters of the course.
NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
SOLUTION = re.compile(r"<summary>Solution</summary>.*?```python\n(.*?)```", re.S)


def chapter_cells(name):
    """The cells of notebooks/<name>.ipynb."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells


def load_chapter(name, **given):
    """The functions and classes that a chapter defines, as attributes.

    Nothing else in its cells runs: `given` are the names that they would import or
    compute. A solution stands below its stub, and so takes the stub's place.
    """
    space = {"torch": torch, **given}
    for cell in chapter_cells(name):
        if cell.cell_type == "code":
            tree = ast.parse(cell.source)
            tree.body = [node for node in tree.body
                         if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
            exec(compile(tree, name, "exec"), space)
        for solution in SOLUTION.findall(cell.source):
            exec(solution, space)
    return SimpleNamespace(**space)


def stub(*arguments):
    """An exercise that nobody has solved yet."""
    raise NotImplementedError


def said(check, function, capsys):
    """What an exercise's check prints."""
    check(function)
    return capsys.readouterr().out
