"""Contiguous splits of graphs with too many downsets: dynamic programming over merged units.

Merged units stay on one device, and fewer units have far fewer downsets. First whole stretches of
the graph are merged, which finds a split that is good everywhere. Then all units are merged but
those near the borders of the best split, which moves the borders of all devices at once, again and
again until that finds nothing better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phaze_opt.partitioning.downsets import Downsets, TooManyDownsetsError, enumerate_downsets
from phaze_opt.partitioning.unit_graph import UnitGraph, merge_units

MOST_MERGED_DOWNSETS = 20_000
"""Units are merged until their graph has no more downsets."""

_FIRST_PARTS = 64
"""Merged units have at most this part of all work in the first try; twice that in the next."""

_REACH = 16
"""Units up to so many edges from a border stay single in a first try; half of that in the next."""

_ROUNDS = 12
"""The borders move at most so often."""

Stages = Sequence[tuple[str, tuple[int, ...]]]
"""Devices with their units (`dag.Device`); each edge stays inside one or leads to a later one."""

Solve = Callable[[UnitGraph, Downsets, float], tuple[Stages | None, float]]
"""Takes a graph, its downsets and an upper bound; returns the best split below it, if there is any,
and its largest load."""


def improve_split(
    graph: UnitGraph, known: Stages | None, load: float, solve: Solve
) -> Stages | None:
    """Search for a split with a smaller largest load than a known one.

    Parameters
    ----------
    graph
        Units and devices.
    known, load
        The best split known, and its largest load; None and infinity if there is none.
    solve
        The dynamic program over given downsets.

    Returns
    -------
    The best split known then.
    """
    best, everywhere = known, [True] * len(graph.edges)
    work = sum(min(unit.accelerator_latency, unit.cpu_latency) for unit in graph.units)
    merged = None
    parts = _FIRST_PARTS
    while merged is None and parts > 1:
        merged = _merge(graph, everywhere, work / parts)
        parts //= 2
    for _ in range(_ROUNDS):
        if merged is None:
            break
        coarse, group, downsets = merged
        stages, better = solve(coarse, downsets, load)
        if stages is not None and better < load:
            best, load = _unmerge(stages, group), better
        elif best is not known:
            break
        merged = None if best is None else _merge_inside(graph, best)
    return best


def _unmerge(stages: Stages, group: Sequence[int]) -> Stages:
    """Replace merged units by their units."""
    members: dict[int, list[int]] = {}
    for unit, number in enumerate(group):
        members.setdefault(number, []).append(unit)
    return [
        (kind, tuple(sorted(unit for number in numbers for unit in members[number])))
        for kind, numbers in stages
    ]


def _merge_inside(
    graph: UnitGraph, stages: Stages
) -> tuple[UnitGraph, Sequence[int], Downsets] | None:
    """Merge the units of each device that are far enough from its borders; None if none are."""
    stage_of = {unit: number for number, (_, units) in enumerate(stages) for unit in units}
    far = [len(graph.units)] * len(graph.units)
    for source, destination in graph.edges:
        if stage_of[source] != stage_of[destination]:
            far[source] = far[destination] = 0
    # Edges lead from lower to higher numbers: two passes each way settle most distances, and a
    # larger one only merges more.
    for _ in range(2):
        for edges in (graph.edges, graph.edges[::-1]):
            for one, other in edges:
                far[one] = min(far[one], far[other] + 1)
                far[other] = min(far[other], far[one] + 1)
    reach = _REACH
    while reach > 0:
        allowed = [
            stage_of[one] == stage_of[other] and min(far[one], far[other]) >= reach
            for one, other in graph.edges
        ]
        merged = _merge(graph, allowed, float("inf"))
        if merged is not None:
            return merged
        reach //= 2
    return None


def _merge(
    graph: UnitGraph, allowed: Sequence[bool], most: float
) -> tuple[UnitGraph, Sequence[int], Downsets] | None:
    """Merge units along edges, the most expensive transfers first.

    An edge is merged if its source has no other follower or its destination no other predecessor,
    so that no cycle appears.

    Parameters
    ----------
    graph
        Units and devices.
    allowed
        Which edges may be merged.
    most
        Largest latency of a merged unit.

    Returns
    -------
    The merged graph, the merged unit of every unit, and the downsets; None if these are too many.
    """
    before: list[set[int]] = [set() for _ in graph.units]
    after: list[set[int]] = [set() for _ in graph.units]
    for source, destination in graph.edges:
        before[destination].add(source)
        after[source].add(destination)
    cost = [0.0] * len(graph.units)
    for tensor in graph.tensors:
        cost[tensor.producer] += tensor.cost
    weight = [min(unit.accelerator_latency, unit.cpu_latency) for unit in graph.units]
    size = [unit.size_bytes for unit in graph.units]
    group = list(range(len(graph.units)))
    pairs = sorted(
        (edge for edge, can in zip(graph.edges, allowed, strict=True) if can),
        key=lambda edge: (-cost[edge[0]], edge),
    )
    changed = True
    while changed:
        changed = False
        for source, destination in pairs:
            one, other = group[source], group[destination]
            if one == other or (len(after[one]) > 1 and len(before[other]) > 1):
                continue
            if weight[one] + weight[other] > most or size[one] + size[other] > graph.memory_bytes:
                continue
            _join(one, other, before, after)
            weight[one] += weight[other]
            size[one] += size[other]
            group = [one if number == other else number for number in group]
            changed = True
    coarse, group = merge_units(graph, group)
    try:
        downsets = enumerate_downsets(len(coarse.units), coarse.edges, MOST_MERGED_DOWNSETS)
    except TooManyDownsetsError:
        return None
    return coarse, group, downsets


def _join(one: int, other: int, before: list[set[int]], after: list[set[int]]) -> None:
    """Let a unit take the neighbours of another."""
    after[one] = (after[one] | after[other]) - {one, other}
    before[one] = (before[one] | before[other]) - {one, other}
    for unit in before[other] - {one}:
        after[unit] = after[unit] - {other} | {one}
    for unit in after[other] - {one}:
        before[unit] = before[unit] - {other} | {one}
