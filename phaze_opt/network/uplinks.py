"""How much the links above leaf switches slow what all groups of ranks send at once.

A *fat tree* (C. E. Leiserson, IEEE Transactions on Computers C-34, 1985) joins devices by leaf
switches, and these by switches above them. With a *taper* above 1 the links upwards have less
bandwidth than the devices of the leaf together; above them nothing is narrower. On *rails* (NVIDIA
DGX SuperPOD reference architecture: rail-optimised) the devices at one place of their units have
leaf switches of their own, so that as many units as a leaf has devices reach one another without
the links upwards; what goes to a device at another place takes the level below first (NCCL's PXN).

Here a *pod* is all devices that reach one another without links upwards: those of a leaf and of
their units, or of the leaves of all rails. Everything crosses the links upwards in equal parts
(adaptive routing). A slowdown is the time over that of the same level without a taper.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from phaze_opt.network.cluster import Cluster


class _Pod(NamedTuple):
    """What reaches one another without links upwards.

    Attributes
    ----------
    devices
        That share links upwards: of one leaf, or of the leaves of all rails.
    reach
        Ranks among which nothing takes these links.
    rails
        Parts into which the links upwards are divided.
    taper
        See `phaze_opt.network.cluster.NetworkLevel`.
    """

    devices: int
    reach: int
    rails: int
    taper: float

    def is_left_by(self, extent: int) -> bool:
        """Say whether groups of so many ranks, one beside the other, leave a pod."""
        return self.reach % extent != 0

    def crossing(self, sends: int) -> float:
        """Return the slowdown where so many devices of a pod send to others at once."""
        busiest = min(max(sends, self.rails), self.devices)
        return max(1.0, busiest / self.devices * self.taper)

    def outside(self, group: int, stride: int) -> float:
        """Return the share of a tensor that a device sends to other pods, each member its part.

        The average of the busiest pod. Groups that do not fit it are in two of its pods.
        """
        extent, members = group * stride, max(self.reach, stride)
        if not self.is_left_by(extent):
            return 0.0
        if extent % self.reach == 0 or stride >= self.reach:
            return 1.0 - members / extent
        share = extent / (2 * self.reach) if extent < self.reach else 1.0 - members / (2 * extent)
        return min(share, (group - 1) / group)


def _pod_of(cluster: Cluster, index: int) -> _Pod | None:
    """Return the pods of a level; ``None`` where no link upwards is narrower, or there is one."""
    level = cluster.levels[index]
    if level.taper == 1.0 or level.leaf_devices is None:
        return None
    below = _devices_below(cluster, index)
    if level.topology == "rail":
        devices = reach = level.leaf_devices * below
        rails = below
    else:
        devices, reach, rails = level.leaf_devices, max(level.leaf_devices, below), 1
    return _Pod(devices, reach, rails, level.taper) if reach < cluster.devices else None


def _devices_below(cluster: Cluster, index: int) -> int:
    """Return the devices of a unit of a level."""
    return math.prod(level.group_size or 1 for level in cluster.levels[:index])


def shift_slowdown(cluster: Cluster, index: int, stride: int) -> float:
    """Return the slowdown where every rank sends to the one a stride further.

    Parameters
    ----------
    cluster
        The network.
    index
        Of the level.
    stride
        Distance in ranks.

    Returns
    -------
    slowdown
        1 for a level without tapered leaf switches.
    """
    pod = _pod_of(cluster, index)
    return 1.0 if pod is None else pod.crossing(stride)


def ring_slowdown(cluster: Cluster, index: int, group: int, stride: int) -> float:
    """Return the slowdown of rings in the order of ranks, one through every group.

    Parameters
    ----------
    cluster, index
        As for `shift_slowdown`.
    group, stride
        Ranks of each group, and how far they are apart.
    """
    pod, extent = _pod_of(cluster, index), group * stride
    if pod is None or not pod.is_left_by(extent):
        return 1.0
    # Of groups that end inside a pod, it has the last ranks of some and the first of others.
    return pod.crossing(stride if extent % pod.reach == 0 else 2 * stride)


def pairwise_slowdown(cluster: Cluster, index: int, group: int, stride: int) -> float:
    """Return the slowdown where every member of a group sends every other one a part.

    Parameters are those of `ring_slowdown`.
    """
    pod = _pod_of(cluster, index)
    if pod is None or group == 1:
        return 1.0
    return max(1.0, pod.taper * pod.outside(group, stride) * group / (group - 1))


def halving_slowdown(cluster: Cluster, index: int, group: int, stride: int) -> float:
    """Return the slowdown of recursive halving or doubling; see `algorithms.flat_terms`.

    What is exchanged with members of other pods goes in steps of its own. In groups that do not
    fit pods every step is counted as one of these. Parameters are those of `ring_slowdown`.
    """
    pod, extent = _pod_of(cluster, index), group * stride
    if pod is None or not pod.is_left_by(extent):
        return 1.0
    core = 1 << (group.bit_length() - 1)
    fits = extent % pod.reach == 0 and core == group
    share = (core - 1) / core + (core < group)
    outside = pod.outside(group, stride) if fits else share
    return (share - outside + pod.taper * outside) / share


def rails_crossed(cluster: Cluster, index: int, stride: int) -> int:
    """Return on how many rails of a level ranks some distance apart are; 1 where it has none."""
    if cluster.levels[index].topology != "rail":
        return 1
    below = _devices_below(cluster, index)
    return below // math.gcd(stride, below)
