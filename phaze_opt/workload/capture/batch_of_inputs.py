"""Whether the inputs that a factory makes have the microbatch that it was called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from phaze_opt.errors import InputError

Shape = tuple[int, ...]


def refuse_other_batch(
    name: str, inputs: Any, samples: int, again: Callable[[int], Any] | None
) -> None:
    """Refuse inputs of another number of samples than the microbatch.

    Samples mostly are the first dimension of every input. Where they are not, tokens may stand
    first, or a sample may be a pair: a factory that minds its microbatch then makes other shapes
    for another one. Inputs without tensors say nothing.

    Parameters
    ----------
    name
        Of the factory or the module, for the error's sentence.
    inputs
        Made for the microbatch.
    samples
        The microbatch.
    again
        Makes the inputs of another microbatch; ``None`` for those of a module, which has one.

    Raises
    ------
    InputError
        If the inputs have another number of samples.
    """
    shapes = _shapes(inputs)
    if all(shape[0] == samples for shape in shapes):
        return
    shown = " and ".join(" × ".join(map(str, shape)) for shape in shapes[:3])
    if again is None:
        if not any(size and size % samples == 0 for shape in shapes for size in shape[:2]):
            raise InputError(
                f"The microbatch is {samples}, but the inputs of {name} are of shape {shown}; give "
                "the microbatch that they hold."
            )
        return
    try:
        others = _shapes(again(2 * samples))
    except InputError:
        return  # made for some microbatches only
    if others == shapes:
        raise InputError(
            f"The factory {name} was called with the microbatch {samples}, but returned inputs of "
            f"shape {shown}, and the same for {2 * samples}; give their first dimension the size "
            "of the microbatch, which the factory takes as its argument."
        )


def _shapes(inputs: Any) -> list[Shape]:
    """Return the shapes of the tensors among inputs, those of single numbers aside."""
    tensors = [tensor for tensor in pytree.tree_leaves(inputs) if isinstance(tensor, Tensor)]
    return [tuple(tensor.shape) for tensor in tensors if tensor.dim() > 0]
