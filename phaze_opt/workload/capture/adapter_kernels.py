"""Products of low-rank adapters as traced operators, told apart from those of the model.

They multiply in bf16 in every recipe (`phaze_opt.workload.casts`), and selective recompute chooses
among the products of the model as without them (`phaze_opt.workload.capture.selective_recompute`).
"""

from __future__ import annotations

from torch import Tensor

from phaze_opt.workload.capture.kernels import differentiate, shape_only


@shape_only
def adapter_product(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply the last dimension by a factor, ``(outputs, inputs)``."""
    return x.new_empty((*x.shape[:-1], factor.shape[0]))


@shape_only
def adapter_product_data(gradient: Tensor, factor: Tensor) -> Tensor:
    """Return the gradient of what is multiplied."""
    return gradient.new_empty((*gradient.shape[:-1], factor.shape[1]))


@shape_only
def adapter_product_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of the factor."""
    return x.new_empty((gradient.shape[-1], x.shape[-1]))


def _backward(gradient: Tensor, x: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return both gradients, each of a product of its own."""
    return adapter_product_data(gradient, factor), adapter_product_weight(gradient, x)


differentiate(adapter_product, _backward, lambda inputs, _: tuple(inputs))
