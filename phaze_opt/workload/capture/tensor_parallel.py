"""Layers that are split over a tensor-parallel group, with their communication in both directions.

The sequence is dimension 0 of every activation. Modules live on the meta device in bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from phaze_opt.workload.capture import expert_kernels, kernels
from phaze_opt.workload.capture.adapter_kernels import (
    adapter_product,
    adapter_product_data,
    adapter_product_weight,
)
from phaze_opt.workload.capture.kernels import differentiate, shape_only

DTYPE = torch.bfloat16


@dataclass(frozen=True)
class TensorGroup:
    """The tensor-parallel group of a layer.

    Attributes
    ----------
    tensor_degree, sequence_parallel
        Its devices, and whether they split the residual stream too.
    expert_tensor
        Devices over which each routed expert is split, where that is not this group; 0 if it is.
    """

    tensor_degree: int = 1
    sequence_parallel: bool = False
    expert_tensor: int = 0

    @property
    def splits_sequence(self) -> bool:
        """Whether the residual stream is split along the sequence."""
        return self.sequence_parallel and self.tensor_degree > 1


@shape_only
def all_reduce(x: Tensor) -> Tensor:
    """Sum partial results over the group; every device gets the sum (``g`` of Megatron-LM)."""
    return torch.empty_like(x)


@shape_only
def reduce_scatter(x: Tensor, tensor_degree: int) -> Tensor:
    """Sum partial results over the group; every device gets its share of the sequence."""
    return x.new_empty((x.shape[0] // tensor_degree, *x.shape[1:]))


@shape_only
def all_gather(x: Tensor, tensor_degree: int) -> Tensor:
    """Collect the whole sequence from the shares of the devices."""
    return x.new_empty((x.shape[0] * tensor_degree, *x.shape[1:]))


@shape_only
def all_gather_columns(x: Tensor, tensor_degree: int) -> Tensor:
    """Collect all columns (of the last dimension) from the shares of the devices."""
    return x.new_empty((*x.shape[:-1], x.shape[-1] * tensor_degree))


def _own_columns(gradient: Tensor, tensor_degree: int) -> Tensor:
    """Return the share of a device, which holds the whole gradient."""
    return gradient.narrow(-1, 0, gradient.shape[-1] // tensor_degree)


differentiate(all_reduce, lambda gradient: gradient.view_as(gradient), lambda inputs, _: ())
differentiate(reduce_scatter, all_gather, lambda inputs, _: inputs[1:])
differentiate(all_gather, reduce_scatter, lambda inputs, _: inputs[1:])
differentiate(all_gather_columns, _own_columns, lambda inputs, _: inputs[1:])


def apply(function: Any, *arguments: Any) -> Any:
    """Apply an autograd function (PyTorch's ``apply`` has no types)."""
    return function.apply(*arguments)


class _CopyToGroup(torch.autograd.Function):
    """Identity forward, all-reduce backward (``f`` of Megatron-LM, Shoeybi et al. 2019)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Every device already holds the input."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Sum the partial gradients of the devices."""
        return all_reduce(gradient)


def copy_to_group(x: Tensor) -> Tensor:
    """Return a tensor that every device holds, whose gradient is summed over the group."""
    copied: Tensor = apply(_CopyToGroup, x)
    return copied


def gather_sequence(x: Tensor, group: TensorGroup) -> Tensor:
    """Return what all devices of a group hold of a tensor, each of which has its own gradient.

    They hold shares of the sequence under sequence parallelism, and the same without. Whole numbers
    have no gradient.
    """
    if group.splits_sequence:
        return all_gather(x, group.tensor_degree)
    if group.tensor_degree == 1 or not x.is_floating_point():
        return x
    return copy_to_group(x)


class _OwnRows(torch.autograd.Function):
    """The device's share of the sequence of what every device holds; its gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tensor_degree: int) -> Tensor:
        """Take the share."""
        ctx.tensor_degree = tensor_degree
        return x.narrow(0, 0, x.shape[0] // tensor_degree)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Gather the gradients of all shares."""
        return all_gather(gradient, ctx.tensor_degree), None


class _GatheredLinear(torch.autograd.Function):
    """Column-parallel linear layers of one input that is split along the sequence.

    Only the share of the device is kept for the backward, which gathers the sequence again for the
    weight gradients (Korthikanti et al. 2022, section 4.2.2). The first factor of an adapter
    multiplies the gathered sequence too, and its result is the last one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        tensor_degree: int,
        factor: Tensor | None,
        *weights_and_biases: Tensor | None,
    ) -> Any:
        """Gather the sequence once and multiply it by every weight."""
        half = len(weights_and_biases) // 2
        weights, biases = weights_and_biases[:half], weights_and_biases[half:]
        ctx.tensor_degree = tensor_degree
        ctx.with_bias = [bias is not None for bias in biases]
        ctx.save_for_backward(x, factor, *weights)
        whole = all_gather(x, tensor_degree)
        results = tuple(
            functional.linear(whole, weight, bias)
            for weight, bias in zip(weights, biases, strict=True)
            if weight is not None
        )
        return results if factor is None else (*results, adapter_product(whole, factor))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return gradients of the share, of the weights and of the biases."""
        x, factor, *weights = ctx.saved_tensors
        own = gradients if factor is None else gradients[:-1]
        flat = [gradient.reshape(-1, gradient.shape[-1]) for gradient in own]
        products = [g.mm(weight) for g, weight in zip(flat, weights, strict=True)]
        if factor is not None:
            product = adapter_product_data(gradients[-1], factor)
            products.append(product.view(-1, product.shape[-1]))
        whole = all_gather(x, ctx.tensor_degree)
        partial = products[0]
        for product in products[1:]:
            partial = partial + product
        share = reduce_scatter(partial.view(whole.shape), ctx.tensor_degree)
        rows = whole.view(-1, whole.shape[-1])
        weight_gradients = [g.t().mm(rows) for g in flat]
        bias_gradients = [
            g.sum(0) if wanted else None for g, wanted in zip(flat, ctx.with_bias, strict=True)
        ]
        of_factor = None if factor is None else adapter_product_weight(gradients[-1], whole)
        return share, None, of_factor, *weight_gradients, *bias_gradients


def parameter(*shape: int) -> nn.Parameter:
    """Return a bf16 parameter without memory."""
    return nn.Parameter(torch.empty(shape, dtype=DTYPE, device="meta"))


class ColumnParallelLinear(nn.Module):
    """Linear layers of one input, each split by output columns over the group."""

    def __init__(
        self,
        inputs: int,
        outputs: tuple[int, ...],
        bias: bool | tuple[bool, ...],
        group: TensorGroup,
        adapter_rank: int = 0,
    ) -> None:
        super().__init__()
        self.group = group
        self.with_bias = bias if isinstance(bias, tuple) else (bias,) * len(outputs)
        columns = [n // group.tensor_degree for n in outputs]
        self.weights = nn.ParameterList(parameter(n, inputs) for n in columns)
        biased = zip(columns, self.with_bias, strict=True)
        self.biases = nn.ParameterList(parameter(n) for n, has_bias in biased if has_bias)
        self.adapter = ColumnAdapter(inputs, columns, adapter_rank, group) if adapter_rank else None

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the local columns of every product."""
        weights: Sequence[Tensor] = list(self.weights)
        own = iter(self.biases)
        biases: Sequence[Tensor | None] = [
            next(own) if has_bias else None for has_bias in self.with_bias
        ]
        factor = None if self.adapter is None else self.adapter.first
        if self.group.splits_sequence:
            degree = self.group.tensor_degree
            results = tuple(apply(_GatheredLinear, x, degree, factor, *weights, *biases))
            return (
                results if self.adapter is None else self.adapter.added(results[:-1], results[-1])
            )
        if self.group.tensor_degree > 1:
            x = copy_to_group(x)
        pairs = zip(weights, biases, strict=True)
        results = tuple(functional.linear(x, weight, bias) for weight, bias in pairs)
        if self.adapter is None or factor is None:
            return results
        return self.adapter.added(results, adapter_product(x, factor))


class RowParallelLinear(nn.Module):
    """A linear layer split by input rows; partial products are summed over the group.

    The bias is added after the sum, so that it is added once.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool, group: TensorGroup, adapter_rank: int = 0
    ) -> None:
        super().__init__()
        self.group = group
        self.weight = parameter(outputs, inputs // group.tensor_degree)
        self.bias = parameter(outputs) if bias else None
        self.adapter = RowAdapter(inputs, outputs, adapter_rank, group) if adapter_rank else None

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the local part and sum over the group."""
        if self.group.tensor_degree == 1:
            total = functional.linear(x, self.weight, self.bias)
            return total if self.adapter is None else self.adapter(total, x)
        total = sum_over_group(functional.linear(x, self.weight), self.group)
        if self.adapter is not None:
            total = self.adapter(total, x)
        return total if self.bias is None else total + self.bias


_ADAPTER_SCALE = 2.0
"""What an adapter's result is multiplied by; its value changes nothing that is counted."""


class ColumnAdapter(nn.Module):
    """A low-rank adapter beside column-parallel layers of one input; both factors by columns."""

    def __init__(self, inputs: int, columns: Sequence[int], rank: int, group: TensorGroup) -> None:
        super().__init__()
        self.group = group
        self.first = parameter(rank // group.tensor_degree, inputs)
        self.second = nn.ParameterList(parameter(n, rank) for n in columns)

    def added(self, results: tuple[Tensor, ...], short: Tensor) -> tuple[Tensor, ...]:
        """Add to the layers' results what the device's share of the first factor's becomes."""
        if self.group.tensor_degree > 1:
            short = copy_to_group(all_gather_columns(short, self.group.tensor_degree))
        pairs = zip(results, self.second, strict=True)
        return tuple(
            result + adapter_product(short, second) * _ADAPTER_SCALE for result, second in pairs
        )


class RowAdapter(nn.Module):
    """A low-rank adapter beside a row-parallel layer: factors by rows, and by columns."""

    def __init__(self, inputs: int, outputs: int, rank: int, group: TensorGroup) -> None:
        super().__init__()
        self.group = group
        self.first = parameter(rank, inputs // group.tensor_degree)
        self.second = parameter(outputs // group.tensor_degree, rank)

    def forward(self, total: Tensor, x: Tensor) -> Tensor:
        """Add what the adapter makes of the layer's input to the layer's summed result."""
        short, degree = adapter_product(x, self.first), self.group.tensor_degree
        if degree > 1:
            short = copy_to_group(all_reduce(short))
        result = adapter_product(short, self.second)
        if degree > 1:
            result = all_gather_columns(result, degree)
        if self.group.splits_sequence:
            result = apply(_OwnRows, result, degree)
        return total + result * _ADAPTER_SCALE


class RepeatedLinear(nn.Module):
    """A linear layer that is whole on every device of the group.

    Under sequence parallelism devices have tokens of their own; without, all compute the same.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool, group: TensorGroup) -> None:
        super().__init__()
        self.devices = 1 if group.splits_sequence else group.tensor_degree
        self.weight = parameter(outputs, inputs)
        self.bias = parameter(outputs) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the whole weight."""
        if self.devices == 1:
            return functional.linear(x, self.weight, self.bias)
        weight = self.weight.unsqueeze(0)
        flat = x.flatten(0, 1)
        rows = expert_kernels.grouped_product(flat, weight, None, 1, self.devices, len(flat))
        result = rows.view(*x.shape[:2], -1)
        return result if self.bias is None else result + self.bias


def sum_over_group(partial: Tensor, group: TensorGroup) -> Tensor:
    """Sum partial results: all-reduce, or reduce-scatter under sequence parallelism."""
    if group.splits_sequence:
        return reduce_scatter(partial, group.tensor_degree)
    return all_reduce(partial) if group.tensor_degree > 1 else partial


@shape_only
def cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return maximum, sum of exponentials and predicted logit of each row, in one pass."""
    rows = logits.shape[:-1]
    return logits.new_empty(rows), logits.new_empty(rows), logits.new_empty(rows)


@shape_only
def cross_entropy_backward(
    gradient: Tensor, logits: Tensor, targets: Tensor, log_sum: Tensor
) -> Tensor:
    """Return the gradient of the local logits."""
    return torch.empty_like(logits)


class _VocabularyParallelCrossEntropy(torch.autograd.Function):
    """Cross-entropy of fp32 logits whose vocabulary is split over the group.

    Three small all-reduces complete the statistics of the rows, as in Megatron-LM. The logits are
    kept for the backward.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Any:
        """Return the loss of every token."""
        local, total, predicted = cross_entropy(logits, targets)
        largest = all_reduce(local)
        total = all_reduce(total * torch.exp(local - largest))
        predicted = all_reduce(predicted)
        log_sum = torch.log(total) + largest
        ctx.save_for_backward(logits, targets, log_sum)
        return log_sum - predicted

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient of the local logits."""
        return cross_entropy_backward(gradient, *ctx.saved_tensors), None


def token_losses(logits: Tensor, targets: Tensor, group: TensorGroup) -> Tensor:
    """Return the cross-entropy of every token; the vocabulary is split over the group.

    On one device it is PyTorch's: the log-probabilities are kept, and their gradient is in memory
    beside that of the logits.
    """
    if group.tensor_degree == 1:
        return kernels.nll_loss_forward(torch.log_softmax(logits, -1), targets)
    losses: Tensor = apply(_VocabularyParallelCrossEntropy, logits, targets)
    return losses
