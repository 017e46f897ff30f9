"""The algorithms of collectives: what each takes and sends, as a `Term`.

The time to start a program is not in these terms: a device starts one for all levels, see
`phaze_opt.network.collective`.

Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations
in MPICH" (2005): ring, recursive halving and doubling; E. Chan et al., "Collective communication:
theory, practice, and experience" (2007): hierarchical and multi-dimensional algorithms; reduction
in the switch: NVIDIA, NCCL issue 1455 and nccl-tests issue 212 (measured, by number of devices).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from phaze_opt.choices import CollectiveName
from phaze_opt.network.cluster import Cluster, NetworkLevel, units_and_extents
from phaze_opt.network.groups import Axes, crossed_levels, members_joined
from phaze_opt.network.term import Term
from phaze_opt.network.torus import ring_load
from phaze_opt.network.uplinks import (
    halving_slowdown,
    pairwise_slowdown,
    rails_crossed,
    ring_slowdown,
)

Links = Sequence[tuple[NetworkLevel, float]]
"""Levels that a group crosses, with the seconds per byte of a ring there."""

Members = Sequence[tuple[int, float]]
"""`Axes` with more than one member."""


def flat_terms(kind: CollectiveName, group: int, cluster: Cluster, stride: int) -> list[Term]:
    """Return the algorithms that ignore levels: bound by the slowest link of the group."""
    crossed = crossed_levels(group, cluster, stride)
    outermost = crossed[-1]
    if rails_crossed(cluster, outermost, stride) > 1 and crossed[0] == outermost:
        crossed = [outermost - 1, outermost]  # through which all reach other rails
    joined = members_joined(group, cluster, stride)
    unused = (0.0,) * (len(cluster.levels) - len(joined))
    share = (group - 1) / group
    routed = any(cluster.levels[i].is_direct for i in crossed)
    if kind == "all_to_all":
        used = _links(_pairwise_s_per_byte, group, cluster, stride, crossed)
        hops = max(1.0, group / 4) if routed else 1.0
        sent = (*_with_rails(_pairwise_shares(joined), group, cluster, stride), *unused)
        return [_flat_term("pairwise", kind, group, used, group - 1, share * hops, sent)]
    used = _links(_ring_s_per_byte, group, cluster, stride, crossed)
    sent = (*_ring_shares(joined), *unused)
    ring = _flat_term("ring", kind, group, used, group - 1, share, sent)
    if routed or not all(level.halving for level, _ in used):
        return [ring]
    # Recursive halving and doubling over the largest power of two; the ranks beyond it hand their
    # whole tensor to a partner first and get the result last.
    steps = group.bit_length() - 1
    core = 1 << steps
    fold = 1 if core < group else 0
    share = (core - 1) / core + fold
    used = _links(_halving_s_per_byte, group, cluster, stride, crossed)
    sent = (*_tree_shares(joined), *unused)
    return [ring, _flat_term("tree", kind, group, used, steps + fold, share, sent)]


def _flat_term(
    algorithm: str,
    kind: CollectiveName,
    group: int,
    used: Links,
    messages: int,
    share: float,
    sent: Sequence[float],
) -> Term:
    """Return the cost of one algorithm.

    Parameters
    ----------
    algorithm, kind, group
        Its name, what it does, and for how many devices.
    used
        The levels that it crosses.
    messages, share, sent
        Steps of one pass, tensors through the slowest link, and tensors that a device sends over
        each level.
    """
    passes = 2 if kind == "all_reduce" else 1
    carried = passes * share
    return Term(
        algorithm,
        passes * messages * max(level.latency_s for level, _ in used),
        max((carried + _own_part(kind, group, level)) * s_per_byte for level, s_per_byte in used),
        tuple(passes * part for part in sent),
        max(math.sqrt(carried * s_per_byte * level.ramp_s) for level, s_per_byte in used),
    )


def _own_part(kind: CollectiveName, count: int, level: NetworkLevel) -> float:
    """Return what handling a device's own n-th of the tensor costs, in tensors through a link.

    In an all-reduce there is none: every part is added up on another device and comes back.
    """
    return 0.0 if kind == "all_reduce" else level.own_part_cost / count


def _links(
    s_per_byte: Callable[[int, Cluster, int, int], float],
    group: int,
    cluster: Cluster,
    stride: int,
    crossed: Sequence[int],
) -> Links:
    """Return the levels that a group crosses, with what one way to communicate takes on each."""
    return [(cluster.levels[i], s_per_byte(group, cluster, stride, i)) for i in crossed]


def _ring_s_per_byte(group: int, cluster: Cluster, stride: int, index: int) -> float:
    """Return seconds per byte of a ring in the order of ranks, where it crosses a level.

    On a torus each of its messages has one link at a time, and shares it with other groups' rings.
    """
    level = cluster.levels[index]
    if not level.is_direct:
        return ring_slowdown(cluster, index, group, stride) / level.sustained_bytes_per_s
    below, extents = units_and_extents(cluster, index)
    units = -(-stride // below)
    members = min(max(1, group * stride // (below * units)), math.prod(extents) // units)
    return ring_load(extents, members, units) / level.link_bytes_per_s


def _pairwise_s_per_byte(group: int, cluster: Cluster, stride: int, index: int) -> float:
    """Return seconds per byte where every member of a group sends to every other one."""
    level = cluster.levels[index]
    if level.is_direct:
        return _ring_s_per_byte(group, cluster, stride, index)
    return pairwise_slowdown(cluster, index, group, stride) / level.sustained_bytes_per_s


def _halving_s_per_byte(group: int, cluster: Cluster, stride: int, index: int) -> float:
    """Return seconds per byte of recursive halving and doubling, on a level of switches."""
    slowdown = halving_slowdown(cluster, index, group, stride)
    return slowdown / cluster.levels[index].sustained_bytes_per_s


def _with_rails(shares: list[float], group: int, cluster: Cluster, stride: int) -> list[float]:
    """Return shares of the tensor with what reaches other rails through the level below."""
    for index in range(1, len(shares)):
        rails = min(group, rails_crossed(cluster, index, stride))
        shares[index - 1] += shares[index] * (1.0 - 1.0 / rails)
    return shares


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


def hierarchical_term(
    kind: CollectiveName,
    members: Sequence[Axes],
    cluster: Cluster,
    stride: int = 1,
    *,
    in_switch: bool = False,
    rings: bool = False,
) -> Term:
    """Return the cost of going level by level: reduce-scatter inwards out, all-gather back.

    Parameters
    ----------
    kind
        What they do.
    members
        Of the group, along each axis of each level.
    cluster, stride
        The network, and how far the ranks of the group are apart.
    in_switch
        Whether an all-reduce takes place in the switches of the levels that can do it.
    rings
        Whether all levels go round rings, although libraries could go by halving and doubling.
    """
    latency_s, s_per_byte, s_per_sqrt_byte, shrink = 0.0, 0.0, 0.0, 1
    sent = [0.0] * len(cluster.levels)
    below = 1
    for index, (axes, level) in enumerate(zip(members, cluster.levels, strict=False)):
        used = [(count, links) for count, links in axes if count > 1]
        apart, below = max(below, stride), below * (level.group_size or 1)
        if not used:
            continue
        if in_switch and level.in_switch_efficiency > 0.0:
            step = _level_in_switch(used, level)
        else:
            own = replace(level, halving=False) if rings else level
            slowdown = _slowdown(kind, own, cluster, index, used[0][0], apart)
            step = _level_term(kind, used, own, slowdown)
        # An all-to-all moves the whole tensor at every level, a reduce-scatter what is left of it.
        left = 1 if kind == "all_to_all" else shrink
        latency_s += step.latency_s
        s_per_byte += step.s_per_byte / left
        s_per_sqrt_byte += step.s_per_sqrt_byte / math.sqrt(left)
        sent[index] = step.all_sent_per_byte / left
        shrink *= math.prod(count for count, _ in used)
    algorithm = "in_switch" if in_switch else "hierarchical"
    return Term(algorithm, latency_s, s_per_byte, tuple(sent), s_per_sqrt_byte)


def _slowdown(
    kind: CollectiveName, level: NetworkLevel, cluster: Cluster, index: int, count: int, apart: int
) -> float:
    """Return how much leaf switches slow what all groups do at a level; 1 of other levels."""
    where = cluster, index, count, apart
    if kind == "all_to_all":
        return pairwise_slowdown(*where)
    return halving_slowdown(*where) if _halves(level, count) else ring_slowdown(*where)


def halves_beyond_leaves(kind: CollectiveName, members: Sequence[Axes], cluster: Cluster) -> bool:
    """Say whether rings may take less than halving and doubling at a level, whose links narrow."""
    return kind != "all_to_all" and any(
        level.taper > 1.0 and any(count > 1 and _halves(level, count) for count, _ in axes)
        for axes, level in zip(members, cluster.levels, strict=False)
    )


def _halves(level: NetworkLevel, count: int) -> bool:
    """Say whether so many members go by recursive halving and doubling on a level of switches."""
    return level.halving and count & (count - 1) == 0


def changes_rails(members: Sequence[Axes], cluster: Cluster, stride: int) -> bool:
    """Say whether neighbours at some level of the group are on different rails."""
    below = 1
    for index, (axes, level) in enumerate(zip(members, cluster.levels, strict=False)):
        apart, below = max(below, stride), below * (level.group_size or 1)
        if axes[0][0] > 1 and rails_crossed(cluster, index, apart) > 1:
            return True
    return False


def reduces_in_switch(members: Sequence[Axes], cluster: Cluster) -> bool:
    """Say whether some level that the group uses reduces in its switch."""
    return any(
        level.in_switch_efficiency > 0.0 and any(count > 1 for count, _ in axes)
        for axes, level in zip(members, cluster.levels, strict=False)
    )


def _level_term(kind: CollectiveName, used: Members, level: NetworkLevel, slowdown: float) -> Term:
    """Return the cost of going through one level: once, or twice in an all-reduce."""
    one_way = _level_all_to_all if kind == "all_to_all" else _level_reduce_scatter
    latency_s, s_per_byte = one_way(used, level)
    count = math.prod(count for count, _ in used)
    passes = 2 if kind == "all_reduce" else 1
    carried = passes * s_per_byte * slowdown
    return Term(
        "level",
        passes * latency_s,
        carried + _own_part(kind, count, level) / level.sustained_bytes_per_s,
        (passes * ((count - 1) / count),),
        math.sqrt(carried * level.ramp_s),
    )


def _level_in_switch(used: Members, level: NetworkLevel) -> Term:
    """Return the cost of an all-reduce in the switch of one level.

    Every device sends the tensor to be added up and receives the sum, both at the same time. It
    also receives the n-th that it multicasts, and sends it again. That lets the measured time fall
    by a tenth from 4 devices to 8; it is left out of the time, so that more devices are never
    faster, and counted in the bytes.
    """
    count = math.prod(count for count, _ in used)
    s_per_byte = 1.0 / (level.in_switch_efficiency * level.bandwidth_bytes_per_s)
    ramp = math.sqrt(s_per_byte * level.ramp_s)
    return Term("level", level.in_switch_latency_s, s_per_byte, (1.0 + 1.0 / count,), ramp)


def _level_reduce_scatter(used: Members, level: NetworkLevel) -> tuple[float, float]:
    """Return latency and seconds per byte of a reduce-scatter within one level.

    On a torus the tensor is cut in one part per axis and each part visits the axes in another
    order, so the links of all axes work at once.
    """
    if not level.is_direct:
        ((count, _),) = used
        steps = math.log2(count) if _halves(level, count) else count - 1
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


def _level_all_to_all(used: Members, level: NetworkLevel) -> tuple[float, float]:
    """Return latency and seconds per byte of an all-to-all within one level.

    On a ring a message travels a quarter of it on average.
    """
    latency_s = sum(count - 1 for count, _ in used) * level.latency_s
    if not level.is_direct:
        ((count, _),) = used
        return latency_s, (count - 1) / count / level.sustained_bytes_per_s
    slowest = max(count / 4 / (level.link_bytes_per_s * links) for count, links in used)
    return latency_s, max(1.0 / level.sustained_bytes_per_s, slowest)
