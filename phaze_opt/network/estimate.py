"""One collective by itself: its time, algorithm and bus bandwidth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from phaze_opt.choices import CollectiveName
from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_TENSOR_BYTES
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import collective_cost


@dataclass(frozen=True)
class LevelTraffic:
    """What one collective sends over a level of the network.

    Attributes
    ----------
    topology, sustained_bytes_per_s
        Of the level; its rate is per device and direction.
    bytes_per_device
        What each device sends over it.
    """

    topology: str
    sustained_bytes_per_s: float
    bytes_per_device: float


@dataclass(frozen=True)
class CollectiveEstimate:
    """Predicted cost of one collective.

    Attributes
    ----------
    latency_s
        From its call to its end.
    algorithm
        The cheapest; ``"none"`` for one device.
    bus_bandwidth_bytes_per_s
        As nccl-tests define it (their doc/PERFORMANCE.md): the bytes that each device sends in a
        ring, over the time. It is above the link's rate where the switch reduces; 0 for one device.
    levels
        Of the network, innermost first.
    """

    latency_s: float
    algorithm: str
    bus_bandwidth_bytes_per_s: float
    levels: tuple[LevelTraffic, ...]


def estimate_collective(
    kind: CollectiveName,
    size_bytes: float,
    devices: int,
    cluster: Cluster,
    call_overhead_s: float = 0.0,
    stride: int = 1,
) -> CollectiveEstimate:
    """Estimate one collective.

    Parameters
    ----------
    kind, size_bytes, devices, cluster, stride
        As `phaze_opt.network.collective.collective_s` takes them: the size is that of the whole
        tensor, for an all-to-all of what one device holds.
    call_overhead_s
        What the caller's framework adds per call.

    Raises
    ------
    InputError
        If the kind is unknown, the size or the overhead is negative or not finite, or the devices
        do not fit the network.
    """
    for name, value in (("size_bytes", size_bytes), ("call_overhead_s", call_overhead_s)):
        if not (math.isfinite(value) and value >= 0.0):
            raise InputError(f"{name} is {value}, but it must be finite and must not be negative.")
    if size_bytes > MOST_TENSOR_BYTES:
        raise InputError(
            f"size_bytes is {size_bytes:g}, but it may be at most {MOST_TENSOR_BYTES:,}."
        )
    cost = collective_cost(kind, size_bytes, devices, cluster, stride)
    latency_s = cost.time_s + call_overhead_s
    bandwidth = bus_bandwidth_bytes_per_s(kind, size_bytes, devices, latency_s)
    levels = tuple(
        LevelTraffic(level.topology, level.sustained_bytes_per_s, sent)
        for level, sent in zip(cluster.levels, cost.bytes_by_level, strict=True)
    )
    return CollectiveEstimate(latency_s, cost.algorithm, bandwidth, levels)


def bus_bandwidth_bytes_per_s(
    kind: CollectiveName, size_bytes: float, devices: int, latency_s: float
) -> float:
    """Return the bytes that each device sends in a ring, over the time of a collective."""
    passes = 2 if kind == "all_reduce" else 1
    ring_bytes = passes * (devices - 1) / devices * size_bytes
    return ring_bytes / latency_s if latency_s > 0.0 else 0.0
