"""How many tokens a sample of a user's own module has, as its activations and inputs show it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


def tokens_per_sample(
    layer_inputs: Iterable[tuple[int, ...]], inputs: Any, samples: int
) -> int | None:
    """Return the tokens of a sample; ``None`` where it is no sequence, or its length is not clear.

    What layers exchange tells: activations of shape (samples, tokens, hidden), or with the first
    two turned. Where layers exchange others, the module's inputs do: ids of shape (samples,
    tokens), or activations. Lengths that differ tell nothing.

    Parameters
    ----------
    layer_inputs
        Shape of the first tensor of every call of a layer.
    inputs
        Of the module, with one microbatch.
    samples
        Of the microbatch.
    """
    tensors = [tensor for tensor in pytree.tree_leaves(inputs) if isinstance(tensor, Tensor)]
    real = [tuple(tensor.shape) for tensor in tensors if tensor.is_floating_point()]
    ids = [tuple(tensor.shape) for tensor in tensors if not tensor.is_floating_point()]
    of_layers = {_length(shape, samples) for shape in layer_inputs if len(shape) == 3}
    of_inputs = {_length(shape, samples) for shape in real if len(shape) == 3}
    of_inputs |= {_length(shape, samples) for shape in ids if len(shape) == 2}
    for lengths in (of_layers, of_inputs):
        if lengths:
            return lengths.pop() if len(lengths) == 1 else None
    return None


def _length(shape: tuple[int, ...], samples: int) -> int | None:
    """Return the dimension beside the samples, which stand first or second."""
    first, second = shape[:2]
    if first == samples:
        return second
    return first if second == samples else None
