"""Modules as a user might write them, each with the factory that capture calls."""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, WORDS, ROWS = 16, 4, 50, 8


class Attention(nn.Module):
    """Self-attention by PyTorch's fused function."""

    def __init__(self) -> None:
        super().__init__()
        self.joint = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        """Attend."""
        batch, rows, _ = x.shape
        q, k, v = (
            part.view(batch, rows, HEADS, -1).transpose(1, 2)
            for part in self.joint(x).split(WIDTH, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(batch, rows, WIDTH))


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        """Add attention and the feed-forward network."""
        x = x + self.attention(self.norms[0](x))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class LanguageModel(nn.Module):
    """Embedding, blocks, tied head and loss, mostly in one forward function."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(ROWS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Any:
        """Return the loss."""
        x = self.words(tokens) + self.positions(torch.arange(ROWS, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, WORDS), tokens.view(-1))


def language_model(microbatch: int) -> Any:
    """Make a small language model."""
    return LanguageModel(), torch.zeros(microbatch, ROWS, dtype=torch.int64)


class Towers(nn.Module):
    """Two towers, one with a skip across a layer, joined at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.right = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.joint = nn.Linear(2 * WIDTH, 1)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        """Return a number to minimise."""
        x = skip = torch.relu(self.left[0](x))
        for layer in self.left[1:]:
            x = torch.relu(layer(x))
        for layer in self.right:
            y = torch.tanh(layer(y))
        return self.joint(torch.cat([x + skip, y], -1)).mean()


def towers(microbatch: int) -> Any:
    """Make the two towers."""
    return Towers(), (torch.zeros(microbatch, WIDTH), torch.zeros(microbatch, WIDTH))


def convolutional(microbatch: int) -> Any:
    """Make a small image classifier without a ModuleList."""
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)
    )
    return module, torch.zeros(microbatch, 3, 8, 8)


class EagerBlock(nn.Module):
    """A block with attention through scores in memory, in plain PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.joint = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        """Attend, then the feed-forward network."""
        batch, rows, _ = x.shape
        q, k, v = (
            part.view(batch, rows, HEADS, -1).transpose(1, 2)
            for part in self.joint(self.norm(x)).split(WIDTH, -1)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / 2, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, rows, WIDTH))
        return x + self.down(functional.silu(self.up(x)))


class EagerBlocks(nn.Module):
    """A stack of eager blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(EagerBlock() for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        """Apply all blocks."""
        for block in self.blocks:
            x = block(x)
        return x


def eager_blocks(microbatch: int) -> Any:
    """Make the stack of eager blocks."""
    return EagerBlocks(), torch.zeros(microbatch, ROWS, WIDTH)


class Shared(nn.Module):
    """One layer used twice, called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.once = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, *, x: Tensor) -> Any:
        """Return the result and something that needs no gradient."""
        return {"result": self.once(self.twice(self.twice(x))), "mask": x > 0}


def shared(microbatch: int) -> Any:
    """Make a module that shares a layer."""
    return Shared(), {"x": torch.zeros(microbatch, WIDTH)}


class Masked(nn.Module):
    """Attention with a mask in a plain attribute and PyTorch's own attention module."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.ones(ROWS, ROWS).tril() == 0
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        """Attend to earlier rows."""
        y, _ = self.attention(x, x, x, attn_mask=self.mask, need_weights=False)
        return self.out(y).sum()


def masked(microbatch: int) -> Any:
    """Make a module with a mask."""
    return Masked(), torch.zeros(microbatch, ROWS, WIDTH)


class Deciding(nn.Module):
    """A module whose control flow depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        """Choose by a value."""
        return self.layer(x) if x.sum() > 0 else x


def deciding(microbatch: int) -> Any:
    """Make a module that cannot be traced."""
    return Deciding(), torch.zeros(microbatch, WIDTH)


def failing(microbatch: int) -> Any:
    """Fail."""
    raise RuntimeError("no weights here")


def only_module(microbatch: int) -> Any:
    """Forget the inputs."""
    return Deciding()


def strange_inputs(microbatch: int) -> Any:
    """Return inputs that are none."""
    return Deciding(), "x"


def frozen(microbatch: int) -> Any:
    """Make a module with nothing to train."""
    return nn.Linear(WIDTH, WIDTH).requires_grad_(False), torch.zeros(microbatch, WIDTH)


NOT_A_FUNCTION = 3


def ending(microbatch: int) -> Any:
    """End the program instead of making anything."""
    sys.exit(0)


def same_for_all(microbatch: int) -> Any:
    """Make a language model of four samples, whatever is asked for."""
    return LanguageModel(), torch.zeros(4, ROWS, dtype=torch.int64)


def planned_in_vain(microbatch: int) -> Any:
    """Make a language model with a plan that names a layer that there is not."""
    return *language_model(microbatch), {"blocks.*.upp": "colwise"}


def planning_nothing(microbatch: int) -> Any:
    """Make a language model with a plan of nothing."""
    return *language_model(microbatch), {}
