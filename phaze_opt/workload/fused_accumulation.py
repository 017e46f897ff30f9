"""A backward whose weight gradients are added to their accumulators by the products that make them.

Without it a product writes its weight gradient, and the gradient is added to the accumulator by
work of its own (`phaze_opt.placement.costs`). Fused, the product does it (``C ← A·B + C``,
``gradient_accumulation_fusion`` of Megatron-LM, ``fuse_wgrad_accumulation`` of Transformer Engine):
it reads the accumulator and writes it, in the accumulator's type, which takes time only as far as
the HBM takes longer than the arrays. Per parameter and microbatch,

    separately: 2 B written by the product; from the second microbatch on 2 · a B beside it
    fused:      2 · a B by the product

with a = 4 B (fp32) or 2 B (bf16). The products of the first microbatch read accumulators too, which
hold zeros, as in Megatron-LM, whose buffer of gradients is set to zero before a batch: the passes
of all microbatches are then the same. A batch is slower by at most this one read than if the first
products read nothing.

What no product writes, gradients of norms, biases and embeddings, is added as without it. The
working set of a layer is taken to be as without it too, with the largest gradient in it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from phaze_opt.choices import GradientDtype
from phaze_opt.training import Training
from phaze_opt.workload.graph import OperatorGraph, Tensor, TensorRead, WorkloadVariant


def with_fused_accumulation(variant: WorkloadVariant, training: Training) -> WorkloadVariant:
    """Return a model whose products add their weight gradients up.

    Parameters
    ----------
    variant
        As its devices have it; experts are shared out already.
    training
        Says whether products do so, and in which type.
    """
    if not training.products_accumulate:
        return variant
    return _accumulating(variant, training.accumulator_dtype)


@lru_cache(maxsize=64)
def _accumulating(variant: WorkloadVariant, dtype: GradientDtype) -> WorkloadVariant:
    """Do the same."""
    layers = [
        replace(layer, backward=_accumulating_graph(layer.backward, dtype))
        for layer in variant.layers
    ]
    return replace(variant, layers=tuple(layers))


@lru_cache(maxsize=1024)
def accumulated_parameters(backward: OperatorGraph) -> int:
    """Count the parameters whose gradients the products of a backward add up."""
    return sum(tensor.elements for tensor in backward.tensors if _is_accumulator(tensor))


def _is_accumulator(tensor: Tensor) -> bool:
    """Say whether a tensor is the accumulator that a product reads."""
    return tensor.kind == "weight_gradient" and not tensor.writers


def _accumulating_graph(backward: OperatorGraph, dtype: GradientDtype) -> OperatorGraph:
    """Return a backward whose products add their weight gradients up."""
    tensors: list[Tensor] = []
    for tensor in backward.tensors:
        if not _is_of_products(tensor, backward):
            tensors.append(tensor)
            continue
        added = tuple([TensorRead(writer, elements) for writer, elements in tensor.writers])
        tensors.append(replace(tensor, dtype=dtype, writers=(), readers=added, outlives=False))
        tensors.append(replace(tensor, dtype=dtype))
    return OperatorGraph(backward.operators, tuple(tensors))


def _is_of_products(tensor: Tensor, backward: OperatorGraph) -> bool:
    """Say whether a tensor is a weight gradient that products write and nothing reads."""
    if tensor.kind != "weight_gradient" or not tensor.writers or tensor.readers:
        return False
    return all(backward.operators[writer].gemms for writer, _ in tensor.writers)
