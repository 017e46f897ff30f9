"""The bound of the makespan of a pass on one chip, in plain Python; see `scalar_bounds`.

The operators of a pass form parts, and every part ends before the next part starts. The bound of a
part looks at the schedules that are shorter than a limit. An operator runs on all cores, and so
alone, if the longest chain through it exceeds the limit when it runs on one core. Every operator
that runs alone adds its time to all chains and to the use of every resource, so that more operators
may exceed the limit. The smaller of the limit and of the time that results bounds every schedule
(Klein and Scholl, EJOR 112, 1999).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from phaze_opt.whole_space.scalar_operators import OperatorTimes
from phaze_opt.workload.graph import OperatorGraph

_LIMITS = 3
"""Number of limits that are tried below the time of all operators one after another."""

_Part = dict[int, list[int]]
"""Operators in topological order, each with its direct predecessors in the part."""


def makespan_s(graph: OperatorGraph, times: OperatorTimes) -> float:
    """Bound every schedule of a pass from below, in seconds."""
    return math.fsum(_part_s(part, times) for part in _parts(graph))


def _part_s(part: _Part, times: OperatorTimes) -> float:
    """Bound one part by a few limits."""
    # All operators one after another, each in its faster mode, are a schedule.
    enough_s = math.fsum(times.fastest_s[operator] for operator in part)
    if len(part) == 1 or math.isinf(enough_s):
        return enough_s
    least_s = min(_least_below_s(part, times, enough_s), enough_s)
    for _ in range(_LIMITS):
        limit_s = 0.5 * (least_s + enough_s)
        shorter_s = _least_below_s(part, times, limit_s)
        if shorter_s < limit_s:
            enough_s = limit_s
        least_s = max(least_s, min(shorter_s, limit_s))
    return least_s


def _least_below_s(part: _Part, times: OperatorTimes, limit_s: float) -> float:
    """Bound the schedules that are shorter than a limit; infinite if there are none."""
    alone: set[int] = set()
    alone_s = 0.0
    while True:
        own_s = {
            operator: 0.0 if operator in alone else times.fastest_s[operator] for operator in part
        }
        heads, tails = _chains_s(part, own_s)
        if alone_s + max(heads[operator] + tails[operator] for operator in part) >= limit_s:
            return math.inf
        through = {
            operator: heads[operator] + tails[operator] - own_s[operator] for operator in part
        }
        too_long = [
            operator
            for operator in part
            if operator not in alone
            and alone_s + through[operator] + times.beside_s[operator] >= limit_s
        ]
        if not too_long:
            break
        alone.update(too_long)
        alone_s += sum(times.alone_s[operator] for operator in too_long)
    least_s = alone_s + max(heads[operator] + tails[operator] for operator in part)
    others = [operator for operator in part if operator not in alone]
    for shared_s in times.shared_s:
        work_s = sum(min(shared_s[operator], times.alone_s[operator]) for operator in others)
        least_s = max(least_s, alone_s + work_s)
    return least_s


def _chains_s(part: _Part, own_s: dict[int, float]) -> tuple[dict[int, float], dict[int, float]]:
    """Return the longest chain before every operator, and the longest chain from it to the end."""
    heads, tails = dict.fromkeys(part, 0.0), dict(own_s)
    for operator, before in part.items():
        for other in before:
            heads[operator] = max(heads[operator], heads[other] + own_s[other])
    for operator, before in reversed(part.items()):
        for other in before:
            tails[other] = max(tails[other], own_s[other] + tails[operator])
    return heads, tails


@lru_cache(maxsize=1024)
def _parts(graph: OperatorGraph) -> list[_Part]:
    """Split the operators that do work into parts; every part depends on the whole part before."""
    ancestors = _ancestors(graph)
    works = {
        place
        for place, operator in enumerate(graph.operators)
        if operator.gemms or operator.vector or operator.collective
    }
    # An operator has fewer ancestors than every operator that depends on it.
    order = sorted(works, key=lambda place: (len(ancestors[place] & works), place))
    parts, begin = [], 0
    for end in range(1, len(order) + 1):
        done = set(order[:end])
        if all(done <= ancestors[place] for place in order[end:]):
            parts.append(_part(order[begin:end], ancestors))
            begin = end
    return parts


def _part(operators: Sequence[int], ancestors: Sequence[set[int]]) -> _Part:
    """Return operators in their order, each with its direct predecessors among them."""
    part = {}
    for operator in operators:
        earlier = [other for other in operators if other in ancestors[operator]]
        behind: set[int] = set().union(*(ancestors[other] for other in earlier))
        part[operator] = [other for other in earlier if other not in behind]
    return part


def _ancestors(graph: OperatorGraph) -> list[set[int]]:
    """Return the operators that come before each operator."""
    ancestors: list[set[int]] = [set() for _ in graph.operators]
    for source, destination, _ in sorted(graph.edges, key=lambda edge: edge[1]):
        ancestors[destination] |= ancestors[source] | {source}
    return ancestors
