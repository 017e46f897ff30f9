"""The work of kernels of compressed attention and of residual streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from torch import fx

from phaze_opt.workload.attention import AttentionShape, backward_work, forward_work
from phaze_opt.workload.capture.aten_fused import (
    adapter_product,
    adapter_product_weight,
    on_elements,
)
from phaze_opt.workload.capture.aten_node import NodeWork, name_of, value_of
from phaze_opt.workload.compressed_attention import NORMALISATIONS
from phaze_opt.workload.graph import VectorWork
from phaze_opt.workload.sparse_attention import chosen_shape


def _streams(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return weighted sums of residual streams, or their gradients, and the weights of tokens.

    Each stream behind a sub-layer is a sum of all streams and its result. Mixing weights are
    normalised by rows and columns, in the backward twice.
    """
    name, streams = name_of(node), cast(int, node.args[-1])
    backward, mixes = name.endswith("backward"), "expand" in name
    x = value_of(node.args[1 if backward else 0])
    terms, steps = (streams + 1, 2 * NORMALISATIONS * streams) if mixes else (1, 1)
    rows, times = x.numel() // x.shape[-1], 2 if backward else 1
    summed = VectorWork("multiply", rows, x.shape[-1] * terms * times)
    made = VectorWork("multiply", rows, streams * steps * times)
    return (NodeWork(vector=(summed, made)),)


def _stream_product(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return the product that makes the weights of streams, or a gradient; devices do the same."""
    kind, devices = name_of(node), cast(int, node.args[-1])
    (own,) = (adapter_product_weight if kind.endswith("weight") else adapter_product)(node)
    flops = sum(gemm.flops for gemm in own.gemms)
    return (replace(own, surplus_flops=flops - flops // devices),)


def _compressed_attention(node: fx.Node) -> tuple[NodeWork, ...]:
    """Return attention to the latest tokens and to entries, forward or backward."""
    backward = name_of(node).endswith("backward")
    query, joint = (value_of(node.args[place + backward]) for place in (0, 1))
    rows, batch, heads, size = query.shape
    whole = AttentionShape(batch, rows, joint.shape[0], heads, 1, size, True)
    seen = cast(int, node.args[7])
    shape = chosen_shape(whole, seen)
    gemms, vector = (backward_work if backward else forward_work)(shape)
    # The operands of an indexer only pass through to its gradients.
    read = node.args[:7] if backward else (*node.args[:3], node.args[6])
    operands = tuple(each for each in read if isinstance(each, fx.Node))
    return (NodeWork(gemms, vector, attention=shape.scores, operands=operands),)


STREAMS: Mapping[str, Callable[[fx.Node], tuple[NodeWork, ...]]] = {
    "phaze::compress": on_elements("softmax", "multiply", "reduce"),
    "phaze::compress_backward": on_elements(
        *("softmax", "multiply", "multiply", "softmax_backward", "reduce"), place=1
    ),
    "phaze::compressed_attention": _compressed_attention,
    "phaze::compressed_attention_backward": _compressed_attention,
    "phaze::stream_product": _stream_product,
    "phaze::stream_product_data": _stream_product,
    "phaze::stream_product_weight": _stream_product,
    "phaze::collapse_streams": _streams,
    "phaze::collapse_streams_backward": _streams,
    "phaze::expand_streams": _streams,
    "phaze::expand_streams_backward": _streams,
}
"""Handlers by qualified name."""
