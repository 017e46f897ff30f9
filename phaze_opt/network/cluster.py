"""Networks of accelerators: levels of links, fastest and innermost first."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from phaze_opt.codec import data_table, from_builtins, read_toml_file
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.printing import PrintsAsTables

Topology = Literal["switch", "ring", "torus"]


@dataclass(frozen=True)
class NetworkLevel:
    """One level of a network.

    Attributes
    ----------
    bandwidth_bytes_per_s
        Nominal, per device and direction, all its links of this level together.
    latency_s
        Of one message.
    group_size
        Units of the level below (devices at the innermost level) that this level joins; ``None``
        for as many as there are.
    axes
        Of a ring or torus: its extents, whose product is ``group_size``. Left out, a level of
        known size is one ring.
    efficiency
        Sustained over nominal bandwidth.
    """

    bandwidth_bytes_per_s: float
    latency_s: float
    topology: Topology
    group_size: int | None = None
    axes: tuple[int, ...] = ()
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        if self.axes and (self.topology == "switch" or min(self.axes) < 1):
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
        if self.group_size is not None and self.group_size < 1:
            raise InputError(f"group_size is {self.group_size}, but it must be at least 1.")
        if not (math.isfinite(self.bandwidth_bytes_per_s) and self.bandwidth_bytes_per_s > 0):
            raise InputError(
                f"bandwidth_bytes_per_s is {self.bandwidth_bytes_per_s}, but it must be positive."
            )
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise InputError(f"latency_s is {self.latency_s}, but it must not be negative.")

    @property
    def sustained_bytes_per_s(self) -> float:
        """Bandwidth per device and direction that a large transfer reaches, on all links."""
        return self.bandwidth_bytes_per_s * self.efficiency

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth between two neighbours: of a switch all of it, of a torus one link of many.

        A device on a ring or torus has two links per axis.
        """
        if self.topology == "switch":
            return self.sustained_bytes_per_s
        return self.sustained_bytes_per_s / (2 * max(1, len(self.axes)))


@dataclass(frozen=True, repr=False)
class Cluster(PrintsAsTables, tables="phaze_opt.report.tables:cluster_tables"):
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
        if self.devices < 1:
            raise InputError(f"devices is {self.devices}, but it must be at least 1.")
        if not self.levels:
            raise InputError(f"The cluster {self.name!r} has no network level.")
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


@cache
def cluster_presets() -> dict[str, Cluster]:
    """Return all clusters of ``data/clusters.toml`` by name."""
    return {
        name: from_builtins({"name": name, **entry}, Cluster, f"cluster {name!r}")
        for name, entry in data_table("network", "clusters.toml").items()
    }


def find_cluster(name: str) -> Cluster:
    """Return the preset of this name, or the cluster of a TOML file at this path.

    A file holds what an entry of ``data/clusters.toml`` holds.

    Raises
    ------
    InputError
        If there is no such preset, or the file is not valid.
    NotFoundError
        If there is no such file.
    """
    presets = cluster_presets()
    if name in presets:
        return presets[name]
    if not name.endswith(".toml"):
        raise unknown_name("cluster", name, presets)
    path = Path(name)
    table = read_toml_file(path, "cluster file")
    return from_builtins({"name": path.stem, **table}, Cluster, f"cluster file {path}")


def load_cluster(name_or_path: str, devices: int) -> Cluster:
    """Return a preset, or the cluster of a TOML file, with a number of devices.

    Of a larger torus, a job gets the most cubic slice that is large enough, grown by doubling the
    shortest axis (as slices of TPU pods are offered).

    Parameters
    ----------
    name_or_path
        See `find_cluster`.
    devices
        Number of devices that a training run may use.

    Raises
    ------
    InputError
        If there is no such preset, the file is not valid, or the network joins fewer devices.
    NotFoundError
        If there is no such file.
    """
    cluster = find_cluster(name_or_path)
    if cluster.levels[0].topology == "torus" and 1 <= devices < math.prod(cluster.levels[0].axes):
        axes = _slice(cluster.levels[0].axes, devices)
        first = replace(cluster.levels[0], axes=axes, group_size=math.prod(axes))
        return Cluster(cluster.name, (first, *cluster.levels[1:]), devices, cluster.source)
    return replace(cluster, devices=devices)


def _slice(pod: tuple[int, ...], devices: int) -> tuple[int, ...]:
    """Return the extents of the slice of a pod that holds so many devices."""
    axes = [1] * len(pod)
    while math.prod(axes) < devices:
        free = [axis for axis in range(len(pod)) if axes[axis] < pod[axis]]
        shortest = min(free, key=lambda axis: (axes[axis], axis))
        axes[shortest] = min(2 * axes[shortest], pod[shortest])
    return tuple(axes)


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
