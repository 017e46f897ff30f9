"""Residual streams that hyper-connections mix, as torch modules and traced kernels.

Streams lie side by side, ``(sequence, batch, streams · hidden)``. What makes the weights of a token
multiplies in 16 bits in every recipe; their few elements are part of the kernels that use them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from phaze_opt.workload.capture.attention import RmsNorm
from phaze_opt.workload.capture.kernels import differentiate, shape_only
from phaze_opt.workload.capture.tensor_parallel import TensorGroup, parameter
from phaze_opt.workload.config import TransformerConfig


@shape_only
def stream_product(x: Tensor, weight: Tensor, devices: int) -> Tensor:
    """Multiply all streams by ``(weights of a token, inputs)``; ``devices`` compute the same."""
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=torch.float32)


@shape_only
def stream_product_data(gradient: Tensor, weight: Tensor, devices: int) -> Tensor:
    """Return the gradient of the streams."""
    return weight.new_empty((*gradient.shape[:-1], weight.shape[1]))


@shape_only
def stream_product_weight(gradient: Tensor, x: Tensor, devices: int) -> Tensor:
    """Return the gradient of the weight."""
    return x.new_empty((gradient.shape[-1], x.shape[-1]))


def _product_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, devices: int
) -> tuple[Tensor, Tensor]:
    """Return both gradients, each of a product of its own."""
    of_weight = stream_product_weight(gradient, x, devices)
    return stream_product_data(gradient, weight, devices), of_weight


differentiate(stream_product, _product_backward, lambda inputs, _: tuple(inputs))


@shape_only
def collapse_streams(x: Tensor, raw: Tensor, base: Tensor, scale: Tensor, streams: int) -> Tensor:
    """Sum the streams with weights of every token."""
    return x.new_empty((*x.shape[:-1], x.shape[-1] // streams))


@shape_only
def collapse_streams_backward(
    gradient: Tensor, x: Tensor, raw: Tensor, base: Tensor, scale: Tensor, streams: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of streams and weights, and of what scales these."""
    like = torch.empty_like
    return like(x), like(raw), like(base), like(scale)


differentiate(collapse_streams, collapse_streams_backward, lambda inputs, _: tuple(inputs))


@shape_only
def expand_streams(
    x: Tensor, result: Tensor, raw: Tensor, base: Tensor, scale: Tensor, streams: int
) -> Tensor:
    """Mix the streams, and give each a share of a sub-layer's result."""
    return torch.empty_like(x)


@shape_only
def expand_streams_backward(
    gradient: Tensor,
    x: Tensor,
    result: Tensor,
    raw: Tensor,
    base: Tensor,
    scale: Tensor,
    streams: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of streams, result and weights, and of what scales these."""
    like = torch.empty_like
    return like(x), like(result), like(raw), like(base), like(scale)


differentiate(expand_streams, expand_streams_backward, lambda inputs, _: tuple(inputs))


class HyperConnection(nn.Module):
    """What a sub-layer reads of the streams; ``weights`` for each token are made at once."""

    def __init__(self, config: TransformerConfig, group: TensorGroup, *, expands: bool) -> None:
        super().__init__()
        assert config.compressed
        shape = config.compressed
        self.streams, width = shape.streams, shape.streams * config.hidden
        self.devices = 1 if group.splits_sequence else group.tensor_degree
        weights = shape.mixing_weights if expands else shape.streams
        self.norm = RmsNorm(width, made_by=config.kernels, weighted=False)
        self.weight = parameter(weights, width)
        self.base, self.scale = parameter(weights), parameter(3 if expands else 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the streams, and the weights that `expanded` takes."""
        raw = stream_product(self.norm(x), self.weight, self.devices)
        return collapse_streams(x, raw, self.base, self.scale, self.streams), raw

    def expanded(self, x: Tensor, result: Tensor, raw: Tensor) -> Tensor:
        """Return the streams behind a sub-layer."""
        mixed: Tensor = expand_streams(x, result, raw, self.base, self.scale, self.streams)
        return mixed
