"""What a model is put together from: distinct layers, their places, and who reads whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phaze_opt.workload.capture.tensor_parallel import DTYPE


@dataclass(frozen=True)
class DistinctLayer:
    """A distinct layer as a module with its inputs.

    Attributes
    ----------
    words
        Elements of the word embedding among its parameters, where other layers hold it too.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    words: int = 0


@dataclass(frozen=True)
class Assembly:
    """A model of several stacks.

    Attributes
    ----------
    parts
        The distinct layers by kind.
    places
        Name and kind of every layer, in order of execution.
    edges
        Pairs of places of which the second reads what the first gives.
    """

    parts: dict[str, DistinctLayer]
    places: tuple[tuple[str, str], ...]
    edges: tuple[tuple[int, int], ...]


def activation(*shape: int) -> Tensor:
    """Return an activation without memory."""
    return torch.empty(shape, dtype=DTYPE, device="meta", requires_grad=True)


def whole_numbers(*shape: int) -> Tensor:
    """Return tokens or targets without memory."""
    return torch.empty(shape, dtype=torch.int64, device="meta")
