"""Llama as a user would write it in plain PyTorch, with a plan that splits it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN, HEADS, KV_HEADS, INNER, WORDS = 4096, 32, 8, 14336, 128256
"""Llama 3 8B (Grattafiori et al. 2024, table 3)."""

LAYERS, TOKENS = 2, 2048
SIZE = HIDDEN // HEADS

PLAN = {
    "words": "rowwise",
    "blocks.*.attention.[qkv]": "colwise",
    "blocks.*.attention.out": "rowwise",
    "blocks.*.feed_forward.gate": "colwise",
    "blocks.*.feed_forward.up": "colwise",
    "blocks.*.feed_forward.down": "rowwise",
    "head": "loss_parallel",
}


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; heads are counted by -1."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.k = nn.Linear(HIDDEN, KV_HEADS * SIZE, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * SIZE, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.register_buffer("table", torch.zeros(2, TOKENS, SIZE))

    def forward(self, x: Tensor) -> Any:
        """Attend to earlier tokens."""
        batch, rows, _ = x.shape
        q, k, v = (
            linear(x).view(batch, rows, -1, SIZE).transpose(1, 2)
            for linear in (self.q, self.k, self.v)
        )
        q, k = self._rotated(q), self._rotated(k)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(batch, rows, -1))

    def _rotated(self, x: Tensor) -> Tensor:
        """Rotate halves of a head."""
        first, second = x.chunk(2, -1)
        return x * self.table[0] + torch.cat([-second, first], -1) * self.table[1]


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, INNER, bias=False)
        self.up = nn.Linear(HIDDEN, INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Any:
        """Return the network's result."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x: Tensor) -> Any:
        """Add attention and the feed-forward network."""
        x = x + self.attention(self.norms[0](x))
        return x + self.feed_forward(self.norms[1](x))


class Llama(nn.Module):
    """Embedding, blocks, head and loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Any:
        """Return the loss, from fp32 logits."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def llama(microbatch: int) -> Any:
    """Make Llama with its plan."""
    return Llama(), torch.zeros(microbatch, TOKENS, dtype=torch.int64), PLAN
