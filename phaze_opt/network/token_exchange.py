"""What it costs to send tokens to the devices of their experts, and results back.

With uniform routing, a token with ``k`` of ``E`` experts goes to ``D(g) = g · (1 − C(E − E/g, k) /
C(E, k))`` of ``g`` equal units of devices (`destinations`). NCCL's all-to-all sends every chosen
row; other dispatchers send a token once to every device inside a scale-up domain, and once to every
domain, where it is fanned out. A device's own share stays with it, so that one device sends
nothing.

What takes longest decides: the links, or the multiprocessors of a dispatcher at a rate each, which
counts the own share too: `DirectionRates.seconds`, with constants in ``data/dispatchers.toml``.
Over several domains they move a token twice (DeepEP's kernels between nodes): from its device to
the buffers of the network adapter, a copy for every domain, and from what comes into a device's own
domain to the devices there. The constants are those of one domain for both ways.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from phaze_opt.choices import Dispatcher
from phaze_opt.codec import data_table, from_builtins
from phaze_opt.network.cluster import Cluster, outermost_level
from phaze_opt.network.collective import CollectiveCost, collective_cost
from phaze_opt.network.groups import members_joined
from phaze_opt.network.message import ring_cost
from phaze_opt.network.uplinks import pairwise_slowdown
from phaze_opt.workload.graph import Collective, TokenExchange


@dataclass(frozen=True)
class DirectionRates:
    """Constants of a dispatch or a combine.

    Attributes
    ----------
    latency_s
        Whatever is sent.
    stream_bytes_per_s, destination_s
        What a multiprocessor sends, a copy of a token for each destination, and further seconds
        per copy.
    token_bytes_per_s, token_s
        What it reads of tokens, or writes of their sums, and further seconds per token.
    most_bytes_per_s
        What all of them send at most.
    """

    latency_s: float
    stream_bytes_per_s: float
    token_bytes_per_s: float
    token_s: float
    destination_s: float
    most_bytes_per_s: float

    def seconds(
        self, tokens: int, token_bytes: int, copies: Sequence[float], multiprocessors: int
    ) -> float:
        """Return the seconds to send tokens with multiprocessors.

        Parameters
        ----------
        tokens, token_bytes
            Of a device.
        copies
            Of a token after every way: the copies of one are the tokens of the next.
        multiprocessors
            How many work on it.
        """
        each_s, sent = 0.0, float(tokens)
        for after in copies:
            made = tokens * after
            each_s += made * token_bytes / self.stream_bytes_per_s
            each_s += sent * token_bytes / self.token_bytes_per_s
            each_s += sent * self.token_s + made * self.destination_s
            sent = made
        copied_bytes = sent * token_bytes
        return self.latency_s + max(each_s / multiprocessors, copied_bytes / self.most_bytes_per_s)


@dataclass(frozen=True)
class DispatcherRates:
    """Constants of a dispatcher on networks of some kind.

    Attributes
    ----------
    link_bytes_per_s
        Of the innermost level of the networks that the constants are for, at least.
    multiprocessors, of_multiprocessors
        How many it takes, of those of the chip; of chips with other cores it takes as large a part.
    layout_s
        Per layer, before the first dispatch: layout of what is sent, and wait of the host.
    dispatch, combine
        Both directions.
    source
        Where the numbers come from.
    """

    link_bytes_per_s: float
    multiprocessors: int
    of_multiprocessors: int
    layout_s: float
    dispatch: DirectionRates
    combine: DirectionRates
    source: str


@lru_cache(maxsize=64)
def dispatcher_rates(dispatcher: Dispatcher, cluster: Cluster) -> DispatcherRates | None:
    """Return the constants of a dispatcher on a network; ``None`` of one that has only links."""
    rows = [
        from_builtins(row, DispatcherRates, "dispatchers.toml")
        for row in data_table("network", "dispatchers.toml").get(dispatcher, ())
    ]
    link_bytes_per_s = cluster.levels[0].bandwidth_bytes_per_s
    return next((row for row in reversed(rows) if row.link_bytes_per_s <= link_bytes_per_s), None)


def destinations(
    units: float, experts: int, top_k: int, groups: int = 1, top_groups: int = 1
) -> float:
    """Return how many of some equal units of devices a token goes to, uniformly routed.

    Parameters
    ----------
    units
        How many there are, which hold equally many experts.
    experts, top_k
        Routed experts, and those of a token, all different.
    groups, top_groups
        Of experts, and from how many of them those of a token are chosen: uniformly, and uniformly
        in these. Where units and groups do not divide one another, as if in all groups, but no more
        units than so many groups have.
    """
    if groups == top_groups:
        return units * (1.0 - _missed(experts, experts / units, top_k))
    open_experts = top_groups * experts // groups
    if groups % units == 0:
        inside = int(groups / units)
        missed = sum(
            math.comb(inside, chosen)
            * math.comb(groups - inside, top_groups - chosen)
            * _missed(open_experts, chosen * experts // groups, top_k)
            for chosen in range(min(inside, top_groups) + 1)
        )
        return units * (1.0 - missed / math.comb(groups, top_groups))
    if units % groups == 0:
        hit = 1.0 - _missed(open_experts, experts / units, top_k)
        return units * hit * top_groups / groups
    anywhere = units * (1.0 - _missed(experts, experts / units, top_k))
    return min(anywhere, top_groups * max(1.0, units / groups))


def _missed(experts: int, own: float, top_k: int) -> float:
    """Return the share of tokens none of whose experts are among some of those they may have."""
    outside = experts - own
    return math.prod(max(outside - i, 0.0) / (experts - i) for i in range(top_k))


def operator_cost(collective: Collective, tensor: int, cluster: Cluster) -> CollectiveCost:
    """Return what an operator's communication costs, whichever group of devices it is among.

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
        stride = exchange.stride or tensor
        return exchange_cost(exchange, cluster, stride, is_dispatch=kind == "dispatch")
    context, neighbours = collective.context, collective.neighbours
    if max(neighbours or 1, context.devices * tensor if context else 1) > cluster.devices:
        # No placement has such a group, whose layers are only there to say so.
        return CollectiveCost("none", 0.0, (0.0,) * len(cluster.levels))
    if context:
        devices, size_bytes = context.devices, collective.size_bytes
        if kind == "ring":
            return ring_cost(size_bytes, context.messages, devices, cluster, tensor)
        return collective_cost(kind, size_bytes, devices, cluster, tensor)
    assert kind != "ring"
    return collective_cost(kind, collective.size_bytes, neighbours or tensor, cluster)


@lru_cache(maxsize=4096)
def exchange_cost(
    exchange: TokenExchange,
    cluster: Cluster,
    stride: int = 1,
    *,
    is_dispatch: bool = True,
    multiprocessors: int | None = None,
) -> CollectiveCost:
    """Return seconds and bytes of a dispatch or a combine.

    Parameters
    ----------
    exchange
        What is sent.
    cluster
        The network.
    stride
        Distance of the ranks of the group's devices.
    is_dispatch
        Or a combine.
    multiprocessors
        That the dispatcher takes, if not as many as by default.
    """
    size_bytes, devices = exchange.tokens * exchange.row_bytes, exchange.devices
    if devices == 1 or exchange.dispatcher == "nccl":
        return collective_cost("all_to_all", exchange.size_bytes, devices, cluster, stride)
    rates = dispatcher_rates(exchange.dispatcher, cluster)
    routed = exchange.experts, exchange.top_k, exchange.groups, exchange.top_groups
    levels = cluster.levels[: outermost_level(devices, cluster, stride) + 1]
    sent, time_s, below = [], 0.0, 1
    after: list[float] = []
    for level, joined in zip(levels, members_joined(devices, cluster, stride), strict=True):
        # To devices that differ at this level only; a unit of the level below takes one copy.
        inside = joined / below
        units = destinations(devices / below, *routed)
        copies = units * (inside - 1.0) / inside
        sent.append(size_bytes * copies)
        if copies > 0.0:
            after.insert(0, units)
            latency_s = level.latency_s if rates else 0.0
            slowdown = pairwise_slowdown(cluster, len(sent) - 1, devices, stride)
            time_s = max(time_s, latency_s + slowdown * sent[-1] / level.sustained_bytes_per_s)
        below = joined
    sent += [0.0] * (len(cluster.levels) - len(sent))
    if rates:
        direction = rates.dispatch if is_dispatch else rates.combine
        taken = multiprocessors or rates.multiprocessors
        sending = exchange.tokens, exchange.row_bytes, after, taken
        time_s = max(time_s, direction.seconds(*sending))
        time_s += exchange.plans * rates.layout_s
    return CollectiveCost(exchange.dispatcher, time_s, tuple(sent))
