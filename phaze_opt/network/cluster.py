"""Networks of accelerators: levels of links, fastest and innermost first."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from phaze_opt.checked import check_fields
from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_DEVICES, check_size
from phaze_opt.on_demand import hashed_once
from phaze_opt.printing import PrintsAsTables

Topology = Literal["switch", "ring", "torus", "fat-tree", "rail"]

LEAVES = ("fat-tree", "rail")
"""Topologies of leaf switches with links to switches above them."""


@dataclass(frozen=True)
class NetworkLevel:
    """One level of a network.

    Attributes
    ----------
    bandwidth_bytes_per_s
        Nominal, per device and direction, all its links of this level together.
    latency_s
        Of one message, or of one step of a collective.
    topology
        ``switch`` (any two devices reach each other alike), ``ring``, ``torus``; ``fat-tree`` (leaf
        switches and switches above them) or ``rail`` (the devices at one place of their units have
        leaf switches of their own, and what goes to another place goes through the level below).
    group_size
        Units of the level below (devices at the innermost level) that this level joins; ``None``
        for as many as there are.
    axes
        Of a ring or torus: its extents, whose product is ``group_size``. Left out, a level of
        known size is one ring.
    efficiency
        Sustained over nominal bandwidth.
    launch_s
        Once per collective or message, whatever its size and its number of steps.
    ramp_bytes
        Bytes through a link that take twice as long as at the sustained bandwidth. Libraries cut
        transfers into pieces that grow with them, so ``v`` bytes take
        ``(v + √(v · ramp_bytes)) / sustained``.
    own_part_cost
        Cost of a device's own n-th of the tensor, in parts that are sent. It crosses no link but
        goes through the same copy loop: a ring of n handles n parts and sends n − 1. An all-reduce
        has none.
    halving
        Whether libraries go by recursive halving and doubling, in log₂ n steps; else they only go
        round rings, in n − 1 (NCCL inside a node).
    in_switch_efficiency
        Bytes per second of a tensor that the switch reduces and returns to every device, over the
        nominal bandwidth; 0 for a switch that cannot (NVLink SHARP can).
    in_switch_latency_s
        Of an all-reduce in the switch, besides ``launch_s``.
    taper
        Of leaf switches: bandwidth of their devices over that of their links upwards.
    leaf_devices
        Devices that a leaf switch joins; it matters where the taper is above 1.
    links
        Of a device at this level; no time or price takes it. It is there to be searched, with a
        bandwidth that follows.
    """

    bandwidth_bytes_per_s: float
    latency_s: float
    topology: Topology
    group_size: int | None = None
    axes: tuple[int, ...] = ()
    efficiency: float = 1.0
    launch_s: float = 0.0
    ramp_bytes: float = 0.0
    own_part_cost: float = 0.0
    halving: bool = True
    in_switch_efficiency: float = 0.0
    in_switch_latency_s: float = 0.0
    taper: float = 1.0
    leaf_devices: int | None = None
    links: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.axes and (not self.is_direct or min(self.axes) < 1):
            raise InputError(
                f"axes is {list(self.axes)} on a {self.topology}, but axes are the positive "
                "extents of a ring or torus."
            )
        if self.axes and self.group_size is None:
            object.__setattr__(self, "group_size", math.prod(self.axes))
        if self.axes and math.prod(self.axes) != self.group_size:
            raise InputError(
                f"axes is {list(self.axes)}, but its product must be group_size {self.group_size}."
            )
        if not 0 < self.efficiency <= 1:
            raise InputError(f"efficiency is {self.efficiency}, but it must be in (0, 1].")
        if self.group_size is not None:
            check_size("group_size", self.group_size, MOST_DEVICES)
        if not (math.isfinite(self.bandwidth_bytes_per_s) and self.bandwidth_bytes_per_s > 0):
            raise InputError(
                f"bandwidth_bytes_per_s is {self.bandwidth_bytes_per_s}, but it must be positive."
            )
        for name in ("latency_s", "launch_s", "ramp_bytes", "in_switch_latency_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} is {value}, but it must not be negative.")
        for name in ("own_part_cost", "in_switch_efficiency"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name} is {value}, but it must be in [0, 1].")
        if self.in_switch_efficiency > 0 and self.topology != "switch":
            raise InputError(
                f"in_switch_efficiency is {self.in_switch_efficiency} on a {self.topology}, but "
                "only a switch reduces."
            )
        self._check_leaves()

    def _check_leaves(self) -> None:
        """Refuse what only leaf switches have, and what they lack."""
        for name in ("leaf_devices", "links"):
            value = getattr(self, name)
            if value is not None:
                check_size(name, value, MOST_DEVICES)
        if not (math.isfinite(self.taper) and self.taper >= 1.0):
            raise InputError(f"taper is {self.taper}, but it must be at least 1.")
        if self.topology in LEAVES:
            if self.taper > 1.0 and self.leaf_devices is None:
                raise InputError(
                    f"taper is {self.taper}, but then leaf_devices must say how many devices a "
                    "leaf switch joins."
                )
        elif self.taper > 1.0 or self.leaf_devices is not None:
            name, value = ("leaf_devices", self.leaf_devices)
            if value is None:
                name, value = "taper", self.taper
            raise InputError(
                f"{name} is {value} on a {self.topology}, but only the topologies "
                f"{' and '.join(LEAVES)} have leaf switches."
            )

    @property
    def is_direct(self) -> bool:
        """Whether devices are wired to their neighbours, and pass on what goes further."""
        return self.topology in ("ring", "torus")

    @property
    def is_uniform(self) -> bool:
        """Whether any two units reach each other alike, whoever else communicates."""
        return self.topology == "switch" or (self.topology == "fat-tree" and self.taper == 1.0)

    @property
    def sustained_bytes_per_s(self) -> float:
        """Bandwidth per device and direction that a large transfer reaches, on all links."""
        return self.bandwidth_bytes_per_s * self.efficiency

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth between two neighbours: of a switch all of it, of a torus one link of many.

        A device on a ring or torus has two links per axis.
        """
        if not self.is_direct:
            return self.sustained_bytes_per_s
        return self.sustained_bytes_per_s / (2 * max(1, len(self.axes)))

    @property
    def ramp_s(self) -> float:
        """Seconds of ``ramp_bytes``: what takes ``w`` at full rate is ``√(w · ramp_s)`` late."""
        return self.ramp_bytes / self.link_bytes_per_s


@hashed_once
@dataclass(frozen=True, repr=False)
class Cluster(PrintsAsTables):
    """Identical devices joined by levels of network.

    Attributes
    ----------
    levels
        Innermost first.
    devices
        How many there are; a training run may leave some unused.
    source
        Where the numbers come from.
    """

    name: str
    levels: tuple[NetworkLevel, ...]
    devices: int = 1
    source: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        check_size("devices", self.devices, MOST_DEVICES)
        if not self.levels:
            raise InputError(f"The cluster {self.name!r} has no network level.")
        for below, level in zip((None, *self.levels), self.levels, strict=False):
            if level.topology == "rail" and (below is None or below.is_direct):
                raise InputError(
                    f"topology is rail at a level of {self.name!r}, but rails need a level of "
                    "switches below them, through which devices reach one another's rails."
                )
        if self.devices > self.reach:
            raise InputError(
                f"devices is {self.devices}, but the network of {self.name!r} joins at most "
                f"{self.reach:.0f}."
            )

    def __repr__(self) -> str:
        levels = " / ".join(level.topology for level in self.levels)
        return f"Cluster({self.name!r}, {self.devices:,} devices, {levels})"

    @property
    def reach(self) -> float:
        """Devices that all levels together can join; infinite if one has no size."""
        return math.prod(math.inf if v.group_size is None else v.group_size for v in self.levels)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Nominal, per device and direction, of all levels together."""
        return sum(level.bandwidth_bytes_per_s for level in self.levels)


def in_domains(cluster: Cluster, domains: int) -> Cluster:
    """Return a network whose devices stand in so many domains of its innermost level.

    Parameters
    ----------
    cluster
        The network; its innermost level may join more devices than are used of each domain.
    domains
        Nodes, for example.

    Raises
    ------
    InputError
        If they do not divide the devices, or the network has no such domains.
    """
    inner, *outer = cluster.levels
    devices = cluster.devices
    if domains < 1 or devices % domains:
        raise InputError(f"nodes is {domains}, but it must divide the {devices} devices.")
    each = devices // domains
    if inner.is_direct or each > (inner.group_size or devices):
        raise InputError(
            f"nodes is {domains}, but the network of {cluster.name!r} does not join {each} devices "
            "in each."
        )
    if domains > 1 and not outer:
        raise InputError(
            f"nodes is {domains}, but the network of {cluster.name!r} has a single level."
        )
    return replace(cluster, levels=(replace(inner, group_size=each), *outer))


def outermost_level(group: int, cluster: Cluster, stride: int = 1) -> int:
    """Return the index of the outermost level that joins ``group`` ranks ``stride`` apart.

    Groups start at multiples of their own extent, ``group · stride``.

    Raises
    ------
    InputError
        If even the outermost level is too small.
    """
    reach = 1
    for index, level in enumerate(cluster.levels):
        if level.group_size is None:
            return index
        reach *= level.group_size
        if group * stride <= reach:
            return index
    raise InputError(
        f"A group of {group} ranks {stride} apart needs {group * stride} devices, but the network "
        f"of {cluster.name!r} joins at most {reach}."
    )


def launch_s(cluster: Cluster, index: int) -> float:
    """Return the time to start any communication that reaches up to a level.

    A device starts one program for all levels, at the cost of the slowest of them to start.
    """
    return max(level.launch_s for level in cluster.levels[: index + 1])


def units_and_extents(cluster: Cluster, index: int) -> tuple[int, tuple[int, ...]]:
    """Return the devices of one unit of a ring or torus level, and its extents in units.

    Parameters
    ----------
    cluster
        The network.
    index
        Of the level.
    """
    below = math.prod(level.group_size or 1 for level in cluster.levels[:index])
    level = cluster.levels[index]
    return below, level.axes or (level.group_size or -(-cluster.devices // below),)
