"""What a collective moves: bytes that each device sends, level by level, beside its time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import (
    CollectiveName,
    collective_terms,
    members_per_level,
    outermost_level,
)


@dataclass(frozen=True)
class CollectiveCost:
    """One collective by its cheapest algorithm.

    Attributes
    ----------
    algorithm
        Its name; ``"none"`` for a single device.
    time_s
        As `phaze_opt.network.collective.collective_s` gives it.
    bytes_by_level
        Sent per device over every level of the cluster, innermost first, by the device of the
        group that sends most there. What a device of a torus passes on for others in an
        all-to-all is not counted.
    """

    algorithm: str
    time_s: float
    bytes_by_level: tuple[float, ...]


def collective_cost(
    kind: CollectiveName, size_bytes: float, group: int, cluster: Cluster, stride: int = 1
) -> CollectiveCost:
    """Return time and volume of one collective by its cheapest algorithm.

    Parameters and errors are those of `phaze_opt.network.collective.collective_s`.
    """
    terms = collective_terms(kind, group, cluster, stride)
    best = min(terms, key=lambda term: term.seconds(size_bytes))
    joined = _joined(group, cluster, stride)
    if best.algorithm == "hierarchical":
        per_pass = _hierarchical_shares(kind, group, cluster, stride)
    elif best.algorithm in ("none", "ring"):
        per_pass = _ring_shares(joined)
    else:
        per_pass = _distance_shares(joined, power_of_two=best.algorithm == "tree")
    passes = 2 if kind == "all_reduce" else 1
    unused = len(cluster.levels) - len(per_pass)
    volume = [passes * share * size_bytes for share in per_pass] + [0.0] * unused
    return CollectiveCost(best.algorithm, best.seconds(size_bytes), tuple(volume))


def _joined(group: int, cluster: Cluster, stride: int) -> list[int]:
    """Return how many members of the group one unit of each level joins."""
    joined, reach = [], 1
    for level in cluster.levels[: outermost_level(group, cluster, stride)]:
        reach *= level.group_size or 1
        joined.append(min(group, max(1, reach // stride)))
    return [*joined, group]


def _ring_shares(joined: list[int]) -> list[float]:
    """Return the shares of the tensor in one pass round a ring.

    At every level some device's next neighbour is in another unit, and everything that it sends
    takes that link.
    """
    inside = [1, *joined]
    share = (joined[-1] - 1) / joined[-1]
    return [share if joined[i] > inside[i] else 0.0 for i in range(len(joined))]


def _distance_shares(joined: list[int], power_of_two: bool) -> list[float]:
    """Return the shares of the tensor where every device sends to ranks at many distances.

    Pairwise, each member gets an equal part. Recursive halving sends half of the tensor half the
    group away, a quarter of it a quarter away and so on (Thakur et al., 2005), which is the same
    for a power of two; ranks beyond it first hand everything to a partner that far away.
    """
    group = joined[-1]
    core = 1 << (group.bit_length() - 1) if power_of_two else group
    reached = [1, *(min(core, members) for members in joined)]
    shares = [(reached[i + 1] - reached[i]) / core for i in range(len(joined))]
    shares[-1] += 1.0 if core < group else 0.0
    return shares


def _hierarchical_shares(
    kind: CollectiveName, group: int, cluster: Cluster, stride: int
) -> list[float]:
    """Return the shares of the tensor in one pass level by level."""
    members = members_per_level(group, cluster, stride)
    assert members is not None  # else there is no such algorithm
    shares, shrink = [], 1
    for axes in members:
        count = math.prod(number for number, _ in axes)
        left = 1 if kind == "all_to_all" else shrink
        shares.append((count - 1) / count / left)
        shrink *= count
    return shares
