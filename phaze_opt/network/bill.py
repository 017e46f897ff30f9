"""What a network costs and draws: switches, cables and transceivers.

Switches are priced by what they carry. Devices reach one another through as many tiers of switches
as their number takes with the ports of a switch, and each tier after the first has the bandwidth of
all devices twice, over the taper of leaf switches: once in the switches below, once in those above.
Every rail has tiers of its own. What joins devices of one rack is passive copper, anything beyond
has transceivers at both ends. A torus has no switches; it is copper inside blocks of a rack and
optics between them (as in a TPU v4, whose optical circuit switches are not counted). The numbers
are in ``data/bill.toml``, with their sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from phaze_opt.codec import data_table
from phaze_opt.network.cluster import Cluster, NetworkLevel, units_and_extents
from phaze_opt.ranged import Ranged


@dataclass(frozen=True)
class LevelBill:
    """What one level of a network is built of, for all devices.

    Attributes
    ----------
    topology
        Of the level.
    tiers
        Of switches, 0 without any.
    switch_bytes_per_s, copper_bytes_per_s, optics_bytes_per_s
        Bandwidth per direction of all switch ports, and of all cables of each kind.
    usd, power_w
        Price, and power without cooling.
    """

    topology: str
    tiers: int
    switch_bytes_per_s: float
    copper_bytes_per_s: float
    optics_bytes_per_s: float
    usd: Ranged
    power_w: Ranged


@dataclass(frozen=True)
class NetworkBill:
    """What a network costs and draws.

    Attributes
    ----------
    usd, power_w
        Of all levels: US dollars and watts.
    levels
        Innermost first.
    """

    usd: Ranged
    power_w: Ranged
    levels: tuple[LevelBill, ...]


@lru_cache(maxsize=64)
def network_bill(cluster: Cluster, devices: int) -> NetworkBill:
    """Return what the network of some devices costs and draws.

    Parameters
    ----------
    cluster
        The network; each level is built for as many devices as stand in its units.
    devices
        How many there are.

    Returns
    -------
    bill
        Without the links' part of the chips, and without network adapters.
    """
    levels = tuple(_level_bills(cluster, devices))
    nothing = Ranged(0.0, 0.0, 0.0)
    usd, power_w = nothing, nothing
    for level in levels:
        usd, power_w = usd.plus(level.usd), power_w.plus(level.power_w)
    return NetworkBill(usd, power_w, levels)


def _level_bills(cluster: Cluster, devices: int) -> Iterator[LevelBill]:
    """Yield the bills of all levels; a level of single units has no links."""
    below = 1
    for index, level in enumerate(cluster.levels):
        joined = min(devices, below * (level.group_size or math.ceil(devices / below)))
        if joined <= below:
            yield _bill(level, index, 0, 0.0, 0.0, 0.0)
        elif level.is_direct:
            optical = _optical_share(cluster, index, joined)
            # Every cable has two ends, each with the bandwidth of a link.
            cables = devices * level.bandwidth_bytes_per_s / 2
            yield _bill(level, index, 0, 0.0, cables * (1.0 - optical), cables * optical)
        else:
            ends = joined // below if level.topology == "rail" else joined
            tiers = _tiers(ends, index)
            bytes_per_s = devices * level.bandwidth_bytes_per_s
            above = (tiers - 1) / level.taper
            cables = bytes_per_s * (1.0 + above)
            copper = cables if joined <= _reach("copper_devices") else 0.0
            switches = bytes_per_s * (1.0 + 2.0 * above)
            yield _bill(level, index, tiers, switches, copper, cables - copper)
        below *= level.group_size or 1


def _bill(
    level: NetworkLevel, index: int, tiers: int, switches: float, copper: float, optics: float
) -> LevelBill:
    """Price what a level is built of; switches of the innermost level are those of a rack."""
    switch = "scale_up_switch" if index == 0 else "switch"
    usd = _price(f"{switch}_usd").times(switches)
    power_w = _price("switch_w").times(switches)
    for kind, bytes_per_s in (("copper", copper), ("optics", optics)):
        usd = usd.plus(_price(f"{kind}_usd").times(bytes_per_s))
        power_w = power_w.plus(_price(f"{kind}_w").times(bytes_per_s))
    return LevelBill(level.topology, tiers, switches, copper, optics, usd, power_w)


def _tiers(ends: int, index: int) -> int:
    """Return the tiers of switches that join some ends: all ports of the top, half of others."""
    ports = _reach("scale_up_ports" if index == 0 else "switch_ports")
    tiers, most = 1, ports
    while most < ends:
        tiers, most = tiers + 1, most * ports // 2
    return tiers


def _optical_share(cluster: Cluster, index: int, joined: int) -> float:
    """Return the share of the links of a ring or torus that leave blocks of one rack.

    A block is halved along its longest axis until it fits.
    """
    _, extents = units_and_extents(cluster, index)
    unit = joined // math.prod(extents) or 1
    block = list(extents)
    while math.prod(block) * unit > _reach("copper_devices") and max(block) > 1:
        longest = block.index(max(block))
        block[longest] = -(-block[longest] // 2)
    # Of the two links of an axis of n devices in a block, 2 / n leave it on average.
    leaving = [
        0.0 if own == whole else 1.0 / own for own, whole in zip(block, extents, strict=True)
    ]
    return sum(leaving) / len(leaving)


@cache
def _reach(name: str) -> int:
    """Return a count of ``data/bill.toml``."""
    return int(data_table("network", "bill.toml")["reach"][name])


@cache
def _price(name: str) -> Ranged:
    """Return a price, or a power, of ``data/bill.toml``, per byte/s."""
    row = data_table("network", "bill.toml")[name]
    return Ranged(row["low"], row["central"], row["high"])
