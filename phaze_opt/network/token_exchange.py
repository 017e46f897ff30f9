"""What it costs to send tokens to the devices of their experts, and results back.

With uniform routing, a token with ``k`` of ``E`` experts goes to ``D(g) = g · (1 − C(E − E/g, k) /
C(E, k))`` of ``g`` equal groups of devices. NCCL's all-to-all sends every chosen row; other
dispatchers send a token once to every device inside a scale-up domain, and once to every domain,
where it is fanned out. A device's own share stays with it, so that one device sends nothing.

What takes longest decides: links, or the multiprocessors of a dispatcher at a rate each, which
counts the own share too. Constants are in ``data/dispatchers.toml``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from phaze_opt.choices import Dispatcher
from phaze_opt.codec import data_table, from_builtins
from phaze_opt.network.cluster import Cluster, outermost_level
from phaze_opt.network.collective import CollectiveCost, collective_cost
from phaze_opt.network.groups import members_joined
from phaze_opt.workload.graph import Collective, TokenExchange


@dataclass(frozen=True)
class DispatcherRates:
    """Constants of a dispatcher.

    Attributes
    ----------
    multiprocessors, multiprocessor_bytes_per_s
        How many it takes, and what each sends.
    token_s, destination_s
        Further seconds per token, and per token and destination, of one multiprocessor.
    layout_s
        Per layer, before the first dispatch: layout of what is sent, and wait of the host.
    source
        Where the numbers come from.
    """

    multiprocessors: int
    multiprocessor_bytes_per_s: float
    token_s: float
    destination_s: float
    layout_s: float
    source: str


@lru_cache(maxsize=1)
def dispatchers() -> dict[Dispatcher, DispatcherRates]:
    """Return the dispatchers that send tokens once to every destination, by name."""
    table = data_table("network", "dispatchers.toml")
    return {
        name: from_builtins(table[name], DispatcherRates, "dispatchers.toml")
        for name in ("deepep", "hybridep", "ideal")
    }


def destinations(groups: float, experts: int, top_k: int) -> float:
    """Return how many of some equal groups of experts a token goes to, uniformly routed.

    Parameters
    ----------
    groups
        How many there are.
    experts, top_k
        Routed experts, and those of a token, all different.
    """
    outside = experts - experts / groups
    missed = math.prod(max(outside - i, 0.0) / (experts - i) for i in range(top_k))
    return groups * (1.0 - missed)


def operator_cost(collective: Collective, tensor: int, cluster: Cluster) -> CollectiveCost:
    """Return what an operator's communication costs: of a tensor-parallel group, or of experts.

    Parameters
    ----------
    collective
        Of the operator.
    tensor
        Devices of a tensor-parallel group, which are neighbours.
    cluster
        The network.
    """
    kind, exchange = collective.kind, collective.exchange
    if kind == "dispatch" or kind == "combine":
        assert exchange
        return exchange_cost(exchange, cluster, tensor)
    return collective_cost(kind, collective.size_bytes, tensor, cluster)


@lru_cache(maxsize=4096)
def exchange_cost(exchange: TokenExchange, cluster: Cluster, stride: int) -> CollectiveCost:
    """Return seconds and bytes of a dispatch or a combine.

    Parameters
    ----------
    exchange
        What is sent.
    cluster
        The network.
    stride
        Distance of the ranks of the group's devices.
    """
    size_bytes, devices = exchange.tokens * exchange.row_bytes, exchange.devices
    if devices == 1 or exchange.dispatcher == "nccl":
        return collective_cost("all_to_all", size_bytes * exchange.top_k, devices, cluster, stride)
    rates = dispatchers()[exchange.dispatcher]
    routed = exchange.experts, exchange.top_k
    levels = cluster.levels[: outermost_level(devices, cluster, stride) + 1]
    sent, time_s, below = [], 0.0, 1
    for level, joined in zip(levels, members_joined(devices, cluster, stride), strict=True):
        # Devices that differ at this level only, of all, or of one of each unit below.
        inside = joined / below
        copies = destinations(devices / below, *routed) * (inside - 1.0) / inside
        sent.append(size_bytes * copies)
        if copies > 0.0:
            latency_s = 0.0 if exchange.dispatcher == "ideal" else level.latency_s
            time_s = max(time_s, latency_s + sent[-1] / level.sustained_bytes_per_s)
        below = joined
    sent += [0.0] * (len(cluster.levels) - len(sent))
    copies = destinations(devices, *routed)
    each_s = size_bytes * copies / rates.multiprocessor_bytes_per_s
    each_s += exchange.tokens * (rates.token_s + copies * rates.destination_s)
    time_s = max(time_s, each_s / rates.multiprocessors)
    return CollectiveCost(
        exchange.dispatcher, time_s + exchange.plans * rates.layout_s, tuple(sent)
    )
