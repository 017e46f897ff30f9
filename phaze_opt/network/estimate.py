"""One collective, or one exchange of tokens, by itself: its time and what it sends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from phaze_opt.choices import CollectiveName, Dispatcher
from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_TENSOR_BYTES, check_size
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import CollectiveCost, collective_cost
from phaze_opt.network.token_exchange import exchange_cost
from phaze_opt.precision import PrecisionName
from phaze_opt.workload.experts import token_bytes
from phaze_opt.workload.graph import TokenExchange


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
    return CollectiveEstimate(latency_s, cost.algorithm, bandwidth, _traffic(cluster, cost))


@dataclass(frozen=True)
class ExchangeEstimate:
    """Predicted times of tokens on their way to their experts, and of results back.

    Attributes
    ----------
    dispatch_s, combine_s
        Without the layout of what is sent, and without the host's wait.
    dispatch_levels, combine_levels
        What each device sends over every level of the network, innermost first.
    """

    dispatch_s: float
    combine_s: float
    dispatch_levels: tuple[LevelTraffic, ...]
    combine_levels: tuple[LevelTraffic, ...]


@dataclass(frozen=True)
class RoutedTokens:
    """Tokens of each device, and the experts that they go to, uniformly routed.

    Raises
    ------
    InputError
        If a size is below 1, a token goes to more experts than there are, or the devices do not
        divide the experts.
    """

    devices: int
    tokens: int
    hidden: int
    top_k: int
    experts: int

    def __post_init__(self) -> None:
        for name in ("devices", "tokens", "hidden", "top_k", "experts"):
            check_size(name, getattr(self, name), MOST_TENSOR_BYTES)
        if self.top_k > self.experts:
            raise InputError(
                f"top_k is {self.top_k}, but a token has at most all {self.experts} experts."
            )
        if self.experts % self.devices:
            raise InputError(
                f"devices is {self.devices}, but it must divide the {self.experts} experts."
            )


def estimate_exchange(
    routed: RoutedTokens,
    cluster: Cluster,
    dispatcher: Dispatcher,
    *,
    precision: PrecisionName = "bf16",
    multiprocessors: int | None = None,
) -> ExchangeEstimate:
    """Estimate a dispatch and its combine.

    Parameters
    ----------
    routed
        What is sent, among how many devices.
    cluster, dispatcher
        The network, and what sends.
    precision
        Of what is dispatched, see `token_bytes`; results come back in 16 bits.
    multiprocessors
        That the dispatcher takes, if not as many as by default.

    Raises
    ------
    InputError
        If the devices do not fit the network.
    """
    if multiprocessors is not None:
        check_size("sms", multiprocessors, MOST_TENSOR_BYTES)
    both = []
    for row_bytes, is_dispatch in (
        (token_bytes(routed.hidden, precision), True),
        (token_bytes(routed.hidden), False),
    ):
        exchange = TokenExchange(
            tokens=routed.tokens,
            top_k=routed.top_k,
            experts=routed.experts,
            devices=routed.devices,
            row_bytes=row_bytes,
            dispatcher=dispatcher,
            plans=False,
        )
        both.append(
            exchange_cost(
                exchange, cluster, is_dispatch=is_dispatch, multiprocessors=multiprocessors
            )
        )
    dispatch, combine = both
    levels = (_traffic(cluster, cost) for cost in both)
    return ExchangeEstimate(dispatch.time_s, combine.time_s, *levels)


def _traffic(cluster: Cluster, cost: CollectiveCost) -> tuple[LevelTraffic, ...]:
    """Return what a device sends over every level."""
    return tuple(
        LevelTraffic(level.topology, level.sustained_bytes_per_s, sent)
        for level, sent in zip(cluster.levels, cost.bytes_by_level, strict=True)
    )


def bus_bandwidth_bytes_per_s(
    kind: CollectiveName, size_bytes: float, devices: int, latency_s: float
) -> float:
    """Return the bytes that each device sends in a ring, over the time of a collective."""
    passes = 2 if kind == "all_reduce" else 1
    ring_bytes = passes * (devices - 1) / devices * size_bytes
    return ring_bytes / latency_s if latency_s > 0.0 else 0.0
