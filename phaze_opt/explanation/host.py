"""Passes in which the device waits for the host, which launches their kernels."""

from __future__ import annotations

from dataclasses import dataclass

from phaze_opt.choices import FusionMode
from phaze_opt.passes.graphs import graphs_of
from phaze_opt.passes.launches import launches
from phaze_opt.passes.layers import DegreeCost


@dataclass(frozen=True)
class HostBoundPass:
    """A pass of a distinct layer that takes the host longer than the device.

    Attributes
    ----------
    layer, count, direction
        The layer, how often it occurs, and which pass.
    launches
        Kernels that the host launches in it.
    host_s, device_s
        What it takes the host to launch them, and the device to run them.
    """

    layer: str
    count: int
    direction: str
    launches: int
    host_s: float
    device_s: float


def host_bound_passes(cost: DegreeCost, fusion: FusionMode) -> tuple[HostBoundPass, ...]:
    """Return the passes of a model that wait for the host, in the order of its layers.

    Parameters
    ----------
    cost
        The model at one tensor degree.
    fusion
        How its operators are fused.
    """
    return tuple(
        HostBoundPass(
            layer.name,
            layer.count,
            name,
            launches(graphs_of(captured, cost.training)[name], fusion, cost.training.launch),
            host_s,
            device_s,
        )
        for captured, layer, own in zip(cost.variant.layers, cost.layers, cost.passes, strict=True)
        for name, host_s in layer.host_s.items()
        if host_s > (device_s := own.passes[name].schedule.makespan_s)
    )
