"""What collectives and point-to-point messages cost on a cluster: seconds and bytes sent.

This is the only description of both. A group of devices is ``group`` ranks, ``stride`` apart. Every
algorithm is a `Term`: its time is ``a + b · bytes`` by the α–β model, with its own ``a`` (messages
× latency) and ``b`` (share of the tensor over the bandwidth per device and direction), and it sends
a share of the tensor over each level. A collective takes the algorithm with the least time, so its
time is a lower envelope of a few lines: see `collective_terms`.

All groups of one extent and stride communicate at the same time. On a switch each has links of its
own. On a ring or torus, groups whose ranks are some places apart pass through one another's
devices, and all that pass through a link share its bandwidth; `phaze_opt.network.torus` counts.

Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations
in MPICH" (2005): ring, recursive halving and doubling; E. Chan et al., "Collective communication:
theory, practice, and experience" (2007): hierarchical and multi-dimensional algorithms.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from phaze_opt.errors import InputError
from phaze_opt.network.cluster import (
    Cluster,
    NetworkLevel,
    outermost_level,
    units_and_extents,
)
from phaze_opt.network.term import Term, cheapest, nothing_sent
from phaze_opt.network.torus import is_grid, ring_load

Axes = tuple[tuple[int, float], ...]
"""Members along each axis of a level, and the links that a ring through them has for itself.

A closed ring has two, a line one; where the members are some places apart, so many groups share
the links between them.
"""

CollectiveName = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


@dataclass(frozen=True)
class CollectiveCost:
    """One collective by its cheapest algorithm.

    Attributes
    ----------
    algorithm
        Its name; ``"none"`` for a single device.
    time_s
        Its time.
    bytes_by_level
        Sent per device over each level, innermost first; see `Term.sent_per_byte`.
    """

    algorithm: str
    time_s: float
    bytes_by_level: tuple[float, ...]


def collective_cost(
    kind: CollectiveName, size_bytes: float, group: int, cluster: Cluster, stride: int = 1
) -> CollectiveCost:
    """Return seconds and bytes of one collective by its cheapest algorithm.

    Parameters and errors are those of `collective_s`.
    """
    best = cheapest(collective_terms(kind, group, cluster, stride), size_bytes)
    sent = tuple(share * size_bytes for share in best.sent_per_byte)
    return CollectiveCost(best.algorithm, best.seconds(size_bytes), sent)


def collective_s(
    kind: CollectiveName, size_bytes: float, group: int, cluster: Cluster, stride: int = 1
) -> float:
    """Return the time of one collective by its cheapest algorithm.

    Parameters
    ----------
    kind
        One of `COLLECTIVES`.
    size_bytes
        Size of the whole (unsharded) tensor: what each device holds after an all-gather, before a
        reduce-scatter, before and after an all-reduce, and sends in total in an all-to-all.
    group
        Devices taking part; one device takes no time.
    cluster
        The network.
    stride
        Distance of the group's ranks: 1 for neighbours (a tensor-parallel group), the tensor
        degree for a data-parallel one.

    Raises
    ------
    InputError
        If the kind is unknown or the group does not fit the cluster's network.
    """
    return min(t.seconds(size_bytes) for t in collective_terms(kind, group, cluster, stride))


@lru_cache(maxsize=65536)
def collective_terms(
    kind: CollectiveName, group: int, cluster: Cluster, stride: int = 1
) -> tuple[Term, ...]:
    """Return the cost line of every algorithm that can run this collective on this group.

    Parameters and errors are those of `collective_s`.
    """
    if kind not in COLLECTIVES:
        raise InputError(
            f"The collective {kind!r} is unknown, but allowed are: {', '.join(COLLECTIVES)}."
        )
    if group < 1:
        raise InputError(f"group is {group}, but it must be at least 1.")
    if group == 1:
        return (nothing_sent(cluster),)
    terms = _flat_terms(kind, group, cluster, stride)
    members = members_per_level(group, cluster, stride)
    if members is not None and (len(members) > 1 or cluster.levels[0].topology != "switch"):
        terms.append(_hierarchical_term(kind, members, cluster))
    return tuple(terms)


def members_per_level(group: int, cluster: Cluster, stride: int = 1) -> tuple[Axes, ...] | None:
    """Split a group over the levels: members along each axis of each level, innermost first.

    Returns ``None`` where the group does not split evenly (12 ranks over nodes of 8), or is not a
    grid of a torus (3 of 8 in a row).
    """
    levels = cluster.levels[: outermost_level(group, cluster, stride) + 1]
    if not all(is_grid(_cuts(cluster, index), group, stride) for index in range(len(levels))):
        return None
    reach, inside = 1, 1
    found: list[Axes] = []
    for level in levels:
        along: list[tuple[int, float]] = []
        for size in level.axes or (level.group_size,):
            spacing = max(1, stride // reach)
            extent = cluster.devices // reach if size is None else size
            reach = group * stride if size is None else reach * size
            members = min(group, max(1, reach // stride))
            if members % inside or group % members:
                return None
            count = members // inside
            links = 2.0 if count * spacing >= extent else 1.0
            along.append((count, links / spacing))
            inside = members
        found.append(tuple(along))
    return tuple(found)


def _cuts(cluster: Cluster, index: int) -> list[int]:
    """Return the ranks at which lines along the axes of a ring or torus level begin and end."""
    if cluster.levels[index].topology == "switch":
        return []
    below, extents = units_and_extents(cluster, index)
    # No group reaches beyond the end of the outermost level.
    last = -1 if index == len(cluster.levels) - 1 else None
    return list(itertools.accumulate((below, *extents), operator.mul))[:last]


def _flat_terms(kind: CollectiveName, group: int, cluster: Cluster, stride: int) -> list[Term]:
    """Return the algorithms that ignore levels: bound by the slowest link of the group."""
    levels = cluster.levels[: outermost_level(group, cluster, stride) + 1]
    reach = itertools.accumulate((level.group_size or math.inf for level in levels), operator.mul)
    indices = [index for index, joined in enumerate(reach) if joined > stride]
    used = [levels[index] for index in indices]
    latency_s = max(level.latency_s for level in used)
    s_per_byte = max(_ring_s_per_byte(group, cluster, stride, index) for index in indices)
    joined = _joined(group, cluster, stride)
    share = (group - 1) / group

    def term(algorithm: str, messages: int, share: float, sent: Sequence[float]) -> Term:
        passes = 2 if kind == "all_reduce" else 1
        unused = (0.0,) * (len(cluster.levels) - len(sent))
        shares = tuple(passes * part for part in sent) + unused
        return Term(algorithm, passes * messages * latency_s, passes * share * s_per_byte, shares)

    if kind == "all_to_all":
        hops = 1.0 if all(level.topology == "switch" for level in used) else max(1.0, group / 4)
        return [term("pairwise", group - 1, share * hops, _pairwise_shares(joined))]
    ring = term("ring", group - 1, share, _ring_shares(joined))
    if any(level.topology != "switch" for level in used):
        return [ring]
    # Recursive halving and doubling over the largest power of two; the ranks beyond it hand their
    # whole tensor to a partner first and get the result last.
    steps = group.bit_length() - 1
    core = 1 << steps
    fold = 1 if core < group else 0
    return [ring, term("tree", steps + fold, (core - 1) / core + fold, _tree_shares(joined))]


def _joined(group: int, cluster: Cluster, stride: int) -> list[int]:
    """Return how many members of the group one unit of each level joins."""
    joined, reach = [], 1
    for level in cluster.levels[: outermost_level(group, cluster, stride)]:
        reach *= level.group_size or 1
        joined.append(min(group, max(1, reach // stride)))
    return [*joined, group]


def _ring_shares(joined: Sequence[int]) -> list[float]:
    """Return the shares of the tensor that a ring sends over each level in one pass.

    Every device sends (g − 1)/g of it to the next one; at every level one device of each unit has
    its next one in another unit.
    """
    group = joined[-1]
    units = [group, *(-(-group // members) for members in joined)]
    # As many devices send beyond their unit as there are units, none if there is only one.
    beyond = [count if count > 1 else 0 for count in units]
    share = (group - 1) / group
    return [share * (beyond[i] - beyond[i + 1]) / group for i in range(len(joined))]


def _pairwise_shares(joined: Sequence[int]) -> list[float]:
    """Return the shares of the tensor where every device sends every other one its part."""
    group = joined[-1]

    def together(members: int) -> float:
        """Return the share of all parts that stay inside units of so many members."""
        whole, rest = divmod(group, members)
        return float(whole * members**2 + rest**2) / group**2

    inside = [1.0 / group, *(together(members) for members in joined)]
    return [inside[i + 1] - inside[i] for i in range(len(joined))]


def _tree_shares(joined: Sequence[int]) -> list[float]:
    """Return the shares of the tensor in one pass of recursive halving or doubling.

    It sends half of the tensor half the group away, a quarter of it a quarter away and so on
    (Thakur et al., 2005). Ranks beyond the largest power of two hand everything to a partner that
    far away.
    """
    group = joined[-1]
    core = 1 << (group.bit_length() - 1)
    reached = [1, *(min(core, members) for members in joined)]
    shares = [(reached[i + 1] - reached[i]) / group for i in range(len(joined))]
    shares[-1] += (group - core) / group
    return shares


def _ring_s_per_byte(group: int, cluster: Cluster, stride: int, index: int) -> float:
    """Return seconds per byte of a ring in the order of ranks, where it crosses a level.

    On a torus each of its messages has one link at a time, and shares it with other groups' rings.
    """
    level = cluster.levels[index]
    if level.topology == "switch":
        return 1.0 / level.sustained_bytes_per_s
    below, extents = units_and_extents(cluster, index)
    units = -(-stride // below)
    members = min(max(1, group * stride // (below * units)), math.prod(extents) // units)
    return ring_load(extents, members, units) / level.link_bytes_per_s


def _hierarchical_term(kind: CollectiveName, members: tuple[Axes, ...], cluster: Cluster) -> Term:
    """Return the cost of going level by level: reduce-scatter inwards out, all-gather back."""
    latency_s, s_per_byte, shrink = 0.0, 0.0, 1
    sent = [0.0] * len(cluster.levels)
    for index, (axes, level) in enumerate(zip(members, cluster.levels, strict=False)):
        used = [(count, links) for count, links in axes if count > 1]
        if not used:
            continue
        # An all-to-all moves the whole tensor at every level, a reduce-scatter what is left of it.
        left = 1 if kind == "all_to_all" else shrink
        if kind == "all_to_all":
            level_latency_s, level_s_per_byte = _level_all_to_all(used, level)
        else:
            level_latency_s, level_s_per_byte = _level_reduce_scatter(used, level)
        latency_s += level_latency_s
        s_per_byte += level_s_per_byte / left
        count = math.prod(count for count, _ in used)
        sent[index] = (count - 1) / count / left
        shrink *= count
    passes = 2 if kind == "all_reduce" else 1
    shares = tuple(passes * share for share in sent)
    return Term("hierarchical", passes * latency_s, passes * s_per_byte, shares)


def _level_reduce_scatter(
    used: list[tuple[int, float]], level: NetworkLevel
) -> tuple[float, float]:
    """Return latency and seconds per byte of a reduce-scatter within one level.

    On a torus the tensor is cut in one part per axis and each part visits the axes in another
    order, so the links of all axes work at once.
    """
    if level.topology == "switch":
        ((count, _),) = used
        steps = math.log2(count) if count & (count - 1) == 0 else count - 1
        return steps * level.latency_s, (count - 1) / count / level.sustained_bytes_per_s
    parts = len(used)
    s_per_byte = 0.0
    for phase in range(parts):
        slowest = 0.0
        for part in range(parts):
            done = math.prod(used[(part + step) % parts][0] for step in range(phase))
            count, links = used[(part + phase) % parts]
            share = (count - 1) / count / parts / done
            slowest = max(slowest, share / (level.link_bytes_per_s * links))
        s_per_byte += slowest
    return sum(count - 1 for count, _ in used) * level.latency_s, s_per_byte


def _level_all_to_all(used: list[tuple[int, float]], level: NetworkLevel) -> tuple[float, float]:
    """Return latency and seconds per byte of an all-to-all within one level.

    On a ring a message travels a quarter of it on average.
    """
    latency_s = sum(count - 1 for count, _ in used) * level.latency_s
    if level.topology == "switch":
        ((count, _),) = used
        return latency_s, (count - 1) / count / level.sustained_bytes_per_s
    slowest = max(count / 4 / (level.link_bytes_per_s * links) for count, links in used)
    return latency_s, max(1.0 / level.sustained_bytes_per_s, slowest)
