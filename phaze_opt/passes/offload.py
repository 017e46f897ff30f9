"""Activations that wait on the host: what they free, and how long the link holds a layer up.

What a layer with attention keeps, or a named part of it, goes out after its forward and comes back
before its backward, beside the compute of other layers. Two layers' worth of it is on the device at
a time: what one layer has made goes out while the next makes its own, and what one backward reads
comes in while the backward of the layer behind it runs (double buffers, as in Transformer Engine's
``cpu_offload.py``). Out and in have a direction of the link each, so that with ``o`` seconds for
what a layer sends a forward takes

    max(forward, o),   and what runs again and the backward together   max(again + backward, o)

For layers that are alike, these are the queues of the link over a stage. What this takes of the
bandwidth of the HBM is left out, and the memory of the host has no limit.
"""

from __future__ import annotations

import math

from phaze_opt.passes.layer_cost import LayerPasses
from phaze_opt.training import Training
from phaze_opt.workload.graph import Layer
from phaze_opt.workload.layer_forward import LayerForward

_BUFFERS = 2
"""Layers whose offloaded activations are on the device at a time."""


def offloaded_bytes(layer: Layer, training: Training, kept_bytes: int) -> tuple[int, int]:
    """Return what a layer sends to the host per microbatch, and what of it is on the device.

    Parameters
    ----------
    layer
        With what its named tensors hold (`phaze_opt.workload.recompute_parts`).
    training
        Says what is offloaded.
    kept_bytes
        All that the layer keeps.
    """
    if not training.offloads_activations or not LayerForward(layer).attention:
        return 0, 0
    whole = kept_bytes
    if training.offloaded_names:
        whole = min(layer.offloaded_bytes or 0, kept_bytes)
    return math.floor(whole * training.offload_share), _BUFFERS * whole


def behind_link(passes: LayerPasses, link_s: float) -> LayerPasses:
    """Return the passes of a layer beside the transfers of its activations, each taking so long."""
    return passes._replace(
        forward=passes.forward.waiting_for(link_s),
        backward=passes.backward.waiting_for(link_s - passes.recompute.seconds),
    )
