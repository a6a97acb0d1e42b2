"""One Llama-family decoder, written to be read: Llama, Qwen2 and Qwen3.

Shapes: B batch, T tokens, D width, H heads, G kv heads, d head width,
S tokens in the cache after this forward, V vocabulary.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from .cache import KVCache
from .linear import Linear, Stacked
from .rope import Rotary, rotate


class RMSNorm(nn.Module):
    """Scales x to unit root mean square, then by a learnt weight.

    Zhang and Sennrich 2019, section 4. The root mean square of D numbers is their
    Euclidean norm over sqrt(D), which takes PyTorch five short operations on a
    CPU, where its own RMS norm takes nine.
    """

    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps
        exact = dict(dtype=torch.float64, device="cpu")  # scalars, on no device
        self.root = torch.tensor(width, **exact).sqrt()
        self.least = torch.tensor(width * eps, **exact).sqrt()

    def forward(self, x):
        if not x.is_cpu or x.itemsize < 4:  # half precision needs wider sums
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        size = torch.hypot(size, self.least)  # sqrt(|x|^2 + D eps)
        return x * self.weight * (self.root / size)


class Embedding(nn.Embedding):
    """The vectors of words."""

    def reset_parameters(self):
        """Draws random vectors, where there is memory for them.

        Asked to draw without memory, PyTorch first imports its compiler: 1.5 s.
        """
        if not self.weight.is_meta:
            super().reset_parameters()


class Attention(nn.Module):
    """Causal self-attention in which H query heads share G kv heads.

    Ainslie et al. 2023, section 2.2 (grouped-query attention).
    """

    def __init__(self, config):
        super().__init__()
        width, d = config.width, config.head_width
        self.heads, self.kv_heads, self.head_width = config.heads, config.kv_heads, d
        self.qkv = Stacked(width, dict(q_proj=config.heads * d,
                                       k_proj=config.kv_heads * d,
                                       v_proj=config.kv_heads * d), config.qkv_bias)
        self.o_proj = Linear(config.heads * d, width, bias=config.output_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(d, config.norm_eps)
            self.k_norm = RMSNorm(d, config.norm_eps)
        self.qk_norm = config.qk_norm

    def forward(self, x, cos, sin, mask, cache, layer):
        T, G, d = cos.shape[0], self.kv_heads, self.head_width
        heads = self.qkv(x).view(-1, T, self.heads + 2 * G, d).transpose(1, 2)
        qk, v = heads.split((self.heads + G, G), 1)  # [B, H + G, T, d], [B, G, T, d]
        if self.qk_norm:
            q, k = qk.split((self.heads, G), 1)
            qk = torch.cat([self.q_norm(q), self.k_norm(k)], 1)
        q, k = rotate(qk, cos, sin).split((self.heads, G), 1)
        if cache is not None:
            k, v = cache.append(layer, k, v)  # [B, G, S, d]
        return self.o_proj(grouped_attention(q, k, v, mask))


def grouped_attention(q, k, v, mask):
    """Attention of H query heads over G kv heads, without repeating k and v.

    Args:
        q: FloatTensor[B, H, T, d].
        k, v: FloatTensor[B, G, S, d]; H is a multiple of G.
        mask: FloatTensor[H/G * T, S] from `causal_mask`, or None for all.

    Returns:
        FloatTensor[B * T, H * d]. The H/G queries that share a kv head are laid
        one below the other, as if they were more tokens of that head.
    """
    B, H, T, d = q.shape
    G = k.shape[1]
    q = q.reshape(B, G, H // G * T, d)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if T == 1:
        return out.view(B, H * d)  # already in order
    return out.reshape(B, H, T, d).transpose(1, 2).reshape(B * T, H * d)


class MLP(nn.Module):
    """Gated feed-forward layer: down(silu(gate(x)) * up(x)). Shazeer 2020."""

    def __init__(self, config):
        super().__init__()
        self.gate_up = Stacked(config.width, dict(gate_proj=config.mlp_width,
                                                  up_proj=config.mlp_width))
        self.down_proj = Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)  # [B * T, mlp width] each
        return self.down_proj(F.silu(gate) * up)


class Layer(nn.Module):
    """One decoder layer: attention, then MLP, each added to the stream."""

    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, *where):
        x = x + self.self_attn(self.input_layernorm(x), *where)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """A decoder-only language model over V words.

    Attributes:
        config: ModelConfig.
        vocab_size: V, the number of ids that can be sampled; rows of the
            embedding beyond it are padding and have no logits.
        end_token_ids: tuple of ids that end a text.
        max_length: positions that the model was trained for.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.end_token_ids = config.end_token_ids
        self.max_length = config.max_length
        self.embed_tokens = Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.lm_head = Linear(config.width, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.embed_tokens.weight
        self.rotary = Rotary(config)

    def new_cache(self, max_length, batch=1):
        """An empty cache for `max_length` tokens of `batch` texts."""
        c, like = self.config, self.norm.weight
        return KVCache(c.layers, batch, c.kv_heads, max_length, c.head_width,
                       like.dtype, like.device)

    def forward(self, tokens, cache=None):
        """Logits of the next token after each of `tokens`.

        Args:
            tokens: LongTensor[T] or [B, T], the tokens behind those in the cache.
            cache: from `new_cache`, grows by T; None to start from nothing and
                keep nothing.

        Returns:
            FloatTensor[T, V] or [B, T, V].
        """
        if tokens.dim() == 1:
            return self.forward(tokens[None], cache)[0]
        return self.logits(self.hidden(tokens, cache))

    def prefill(self, tokens, cache, chunk=512):
        """Feeds a prompt to the cache and computes no logits, `chunk` at a time."""
        for part in tokens.split(chunk):
            self.hidden(part[None], cache)

    def hidden(self, tokens, cache=None):
        """The stream after the last layer, normalised: [B, T] -> [B, T, D]."""
        count = tokens.shape[1]
        start = 0
        if cache is not None:
            cache.open(count)
            start = cache.length
        x = self.embed_tokens(tokens.flatten())  # [B * T, D]
        cos, sin = self.rotary.rows(start, start + count, x)
        mask = causal_mask(start, count, self.config.heads // self.config.kv_heads, x)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, mask, cache, i)
        if cache is not None:
            cache.advance(count)
        return self.norm(x).view(*tokens.shape, -1)

    def logits(self, x):
        """[B, T, D] -> [B, T, V], padding ids cut off."""
        rows = self.lm_head(x.flatten(0, 1))[:, :self.vocab_size]
        return rows.view(*x.shape[:2], -1)


def causal_mask(start, count, sharing, like):
    """What is added to the scores of each new token over start + count positions.

    Args:
        start, count: tokens in the cache, and new ones.
        sharing: H/G, query heads that share a kv head: their rows lie below
            one another in `grouped_attention`.
        like: FloatTensor that gives dtype and device.

    Returns:
        FloatTensor[sharing * count, start + count], 0 where a token may look and
        -inf elsewhere; None for one token, which may look at everything.
    """
    if count == 1:
        return None
    hidden = torch.ones(count, start + count, dtype=torch.bool, device=like.device)
    hidden = hidden.triu(start + 1).repeat(sharing, 1)
    return like.new_zeros(hidden.shape).masked_fill(hidden, -math.inf)
