"""PyTorch's caching allocator, run over the tensors of a forward and a backward on meta tensors."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

_ROUNDING = 2**21
WIDTH, HEADS, KV_HEADS, INNER, WORDS, TOKENS, BATCH = 4096, 32, 8, 14336, 128256, 8192, 2
_META: dict[str, Any] = {"device": "meta", "dtype": torch.bfloat16}
_ATEN = torch.ops.aten
_REFERENCE: Any = StorageWeakRef
"""torch states no types for it."""


class Pool:
    """Segments of pieces ``[size, is free]``: best fit, split and merged, never moved.

    Parameters
    ----------
    expandable
        Whether there is one segment, which grows at its end, or one per request.
    """

    def __init__(self, expandable: bool) -> None:
        self.expandable = expandable
        self.segments: list[list[list[Any]]] = []
        self.live = self.peak = self.reserved = 0

    def take(self, size: int) -> list[Any]:
        """Return a piece, cut from the smallest free one that is large enough."""
        size = -(-size // _ROUNDING) * _ROUNDING
        self.live += size
        self.peak = max(self.peak, self.live)
        free = [
            (piece[0], place, index)
            for place, segment in enumerate(self.segments)
            for index, piece in enumerate(segment)
            if piece[1] and piece[0] >= size
        ]
        if free:
            held, place, index = min(free)
            piece = self.segments[place][index]
            piece[:] = [size, False]
            if held > size:
                self.segments[place].insert(index + 1, [held - size, True])
            return piece
        if self.expandable and self.segments:
            last = self.segments[0][-1]
            self.reserved += size - (last[0] if last[1] else 0)
            if last[1]:
                last[:] = [size, False]
                return last
            self.segments[0].append([size, False])
            return self.segments[0][-1]
        self.reserved += size
        self.segments.append([[size, False]])
        return self.segments[-1][0]

    def give(self, piece: list[Any]) -> None:
        """Take a piece back, and merge it with free neighbours."""
        self.live -= piece[0]
        piece[1] = True
        for segment in self.segments:
            where = [index for index, each in enumerate(segment) if each is piece]
            for index in where:
                while index + 1 < len(segment) and segment[index + 1][1]:
                    piece[0] += segment.pop(index + 1)[0]
                while index > 0 and segment[index - 1][1]:
                    piece[0] += segment.pop(index - 1)[0]
                    index -= 1


class Allocated(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Give every new tensor pieces of some pools until it dies; ``given`` tensors have none."""

    def __init__(self, pools: list[Pool], given: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pools, self.given = pools, {each.untyped_storage()._cdata for each in given}
        self.held: dict[int, tuple[Any, list[list[Any]]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and look for what is new."""
        self.collect()
        results = func(*args, **(kwargs or {}))
        self.collect()
        for result in results if isinstance(results, (tuple, list)) else [results]:
            if isinstance(result, Tensor) and result.device.type == "meta":
                storage = result.untyped_storage()
                if storage._cdata not in self.held and storage._cdata not in self.given:
                    pieces = [pool.take(storage.nbytes()) for pool in self.pools]
                    self.held[storage._cdata] = _REFERENCE(storage), pieces
        return results

    def collect(self) -> None:
        """Take back what nothing refers to."""
        for key in [key for key, (storage, _) in self.held.items() if storage.expired()]:
            for pool, piece in zip(self.pools, self.held.pop(key)[1], strict=True):
                pool.give(piece)


class Block(nn.Module):
    """A Llama block as torchtitan runs it without compile."""

    def __init__(self) -> None:
        super().__init__()

        def linear(inner: int, outer: int) -> nn.Linear:
            return nn.Linear(inner, outer, bias=False, **_META)

        self.q, self.k, self.v = (linear(WIDTH, n * 128) for n in (HEADS, KV_HEADS, KV_HEADS))
        self.gate, self.up = linear(WIDTH, INNER), linear(WIDTH, INNER)
        self.down, self.o = linear(INNER, WIDTH), linear(WIDTH, WIDTH)
        self.first, self.second = nn.RMSNorm(WIDTH, **_META), nn.RMSNorm(WIDTH, **_META)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Attend, and feed forward."""
        h = self.first(x)
        q, k, v = (part(h).unflatten(-1, (-1, 128)) for part in (self.q, self.k, self.v))
        q, k = (rotated(part, angles).transpose(1, 2) for part in (q, k))
        k, v = (part.repeat_interleave(HEADS // KV_HEADS, 1) for part in (k, v.transpose(1, 2)))
        attended = _ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        h = self.second(x)
        fed: Tensor = self.down(functional.silu(self.gate(h)) * self.up(h))
        return x + fed


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate pairs of elements in fp32."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(3).type_as(x)


def _kept_products() -> Any:
    """Keep every second product and attention, as torchtitan's selective checkpoints do."""
    products: dict[bool, int] = defaultdict(int)
    attention = _ATEN._scaled_dot_product_flash_attention.default

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        products[context.is_recompute] += func is _ATEN.mm.default
        every_second = func is _ATEN.mm.default and products[context.is_recompute] % 2
        keep = every_second or func is attention
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]


def train(blocks: int) -> list[Pool]:
    """Run a step of a Llama with some blocks; weights and their gradients are not counted."""
    stack = nn.ModuleList([Block() for _ in range(blocks)])
    words, head = nn.Embedding(WORDS, WIDTH, **_META), nn.Linear(WIDTH, WORDS, False, **_META)
    angles = torch.empty(1, TOKENS, 1, 64, dtype=torch.complex64, device="meta")
    tokens = torch.empty(BATCH, TOKENS, dtype=torch.long, device="meta")
    weights = [each for part in (stack, words, head) for each in part.parameters()]
    for weight in weights:
        watched: Any = weight
        watched.register_post_accumulate_grad_hook(lambda each: setattr(each, "grad", None))
    pools = [Pool(True), Pool(False)]
    with Allocated(pools, [*weights, angles, tokens]):
        x = words(tokens)
        for block in stack:
            x = checkpoint(block, x, angles, use_reentrant=False, context_fn=_kept_products)
        logits = head(x)
        del x
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        del logits
        loss.backward()  # type: ignore[no-untyped-call]
    return pools
