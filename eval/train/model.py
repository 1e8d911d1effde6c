"""A Llama in plain PyTorch: the same mathematics as transformers' LlamaForCausalLM.

Training needs three things that the library model lacks on a CPU: logits only where a token carries
loss, one fused attention call, and a body that `torch.compile` can compile. Parameter names follow
Hugging Face, so that export is a copy.
"""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 128  # the size that KV pages are laid out for
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    def as_dict(self) -> dict:
        return asdict(self)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        x = x.float()  # the residual stream may be bf16; its mean square must be f32
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rope_table(shape: Shape, length: int):
    """Returns cos and sin, [length, head_dim], half-split (pair i with i + head_dim/2)."""
    inverse = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.outer(torch.arange(length).float(), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


ROWS = 256  # query rows per attention tile


def attend(q, k, v):
    """Causal attention over q [batch, kv_heads, group, length, dim].

    k and v are [batch, kv_heads, length, dim].
    Computes tiles of query rows against the keys up to their end. On a CPU, two batched bf16
    products and a fused softmax take two thirds of the time of the library's flash kernel. The
    causal half is still skipped.
    """
    batch, kv_heads, group, length, dim = q.shape
    tiles = []
    for start in range(0, length, ROWS):
        end = min(start + ROWS, length)
        rows = q[:, :, :, start:end].reshape(batch * kv_heads, -1, dim)
        keys, values = (t[:, :, :end].reshape(batch * kv_heads, end, dim) for t in (k, v))
        scores = torch.bmm(rows, keys.transpose(1, 2)).view(-1, group, end - start, end)
        future = torch.ones(end - start, end, dtype=torch.bool).triu(start + 1)
        weights = scores.float().masked_fill(future, -1e9).softmax(-1).to(v.dtype)
        tile = torch.bmm(weights.view(batch * kv_heads, -1, end), values)
        tiles.append(tile.view(batch, kv_heads, group, end - start, dim))
    return torch.cat(tiles, dim=3)


class Attention(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = s.num_attention_heads, s.num_key_value_heads, s.head_dim
        self.q_proj = nn.Linear(s.hidden_size, self.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden_size, self.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden_size, self.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * s.head_dim, s.hidden_size, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q = (rotate(q, cos, sin) * self.head_dim**-0.5).to(v.dtype)
        k = rotate(k, cos, sin).to(v.dtype)
        y = attend(q.unflatten(1, (self.kv_heads, -1)), k, v)
        return self.o_proj(y.flatten(1, 2).transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.up_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.down_proj = nn.Linear(s.intermediate_size, s.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.input_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.mlp = MLP(s)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        initialise(self)

    def forward(self, tokens):
        """Returns final hidden states, [batch, length, hidden]."""
        x = self.embed_tokens(tokens)
        cos, sin = rope_table(self.shape, tokens.shape[1])
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)

    def logits(self, hidden):
        return F.linear(hidden, self.embed_tokens.weight)  # tied


@torch.no_grad()
def initialise(model: Llama):
    """Initialises randomly, except for a structure with which recall forms within minutes on a CPU.

    The head is tied. A small final norm allows an embedding large enough to dominate the outputs of
    the layers, while logits start small. All embeddings share one direction. Softmax ignores it,
    but without biases it is the only input for attention by position alone. The heads of the first
    layer use it from the start to attend one to four tokens back, the first half of an induction
    circuit. Output projections of branches start at zero.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
    shared = torch.randn(model.shape.hidden_size).sign()
    nn.init.normal_(model.embed_tokens.weight, std=0.5)
    model.embed_tokens.weight += 0.5 * shared
    nn.init.constant_(model.norm.weight, 0.06)
    look_back(model.layers[0].self_attn, shared)
    for layer in model.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)


def look_back(attention: Attention, shared, pairs: int = 12, strength: float = 5.0):
    """Query head i attends i + 1 tokens back, by the fastest rotary pairs."""
    size, half = attention.head_dim, attention.head_dim // 2
    rate = 10000.0 ** -(torch.arange(pairs) / half)
    # gives `strength` for every normalised embedding
    reader = strength * shared / (len(shared) * 0.5**0.5)
    keys = attention.k_proj.weight.zero_().view(attention.kv_heads, size, -1)
    keys[:, :pairs] = reader
    queries = attention.q_proj.weight.zero_().view(attention.heads, size, -1)
    for head, query in enumerate(queries):
        query[:pairs] = torch.outer(torch.cos(rate * (head + 1)), reader)
        query[half : half + pairs] = torch.outer(-torch.sin(rate * (head + 1)), reader)


def token_losses(hidden, embedding, targets):
    """Cross entropy of every position under the tied head."""
    return F.cross_entropy(F.linear(hidden, embedding).float(), targets, reduction="none")
