"""The bound of the makespan of a pass on one chip, in plain Python; see `scalar_bounds`.

A pass falls into parts, of which each ends before the next one starts. Of a part, a limit is taken,
and the schedules that are shorter are looked at. An operator of which the longest chain does not
fit the limit on one core runs on all cores, and so alone. What runs alone adds to every chain and
to the work of every resource, so that others no longer fit. What then is the least, or the limit if
that is smaller, bounds every schedule (Klein and Scholl, EJOR 112, 1999).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from phaze_opt.whole_space.scalar_operators import OperatorTimes
from phaze_opt.workload.graph import OperatorGraph

_LIMITS = 3
"""Limits that are tried below the time of all operators one after another."""


class _Part(NamedTuple):
    """Operators in topological order, and of each those right before it in the part."""

    operators: list[int]
    before: dict[int, list[int]]


def makespan_s(graph: OperatorGraph, times: OperatorTimes) -> float:
    """Bound every schedule of a pass from below."""
    return math.fsum(_part_s(part, times) for part in _parts(graph))


def _part_s(part: _Part, times: OperatorTimes) -> float:
    """Bound one part by a few limits."""
    # One after another, each in its faster mode, is a schedule.
    enough_s = math.fsum(times.fastest_s[one] for one in part.operators)
    if len(part.operators) == 1 or math.isinf(enough_s):
        return enough_s
    least_s = min(_least_below_s(part, times, enough_s), enough_s)
    for _ in range(_LIMITS):
        limit_s = 0.5 * (least_s + enough_s)
        found_s = _least_below_s(part, times, limit_s)
        if found_s < limit_s:
            enough_s = limit_s
        least_s = max(least_s, min(found_s, limit_s))
    return least_s


def _least_below_s(part: _Part, times: OperatorTimes, limit_s: float) -> float:
    """Bound the schedules that are shorter than a limit; infinite where there are none."""
    alone: set[int] = set()
    alone_s = 0.0
    while True:
        own = {one: 0.0 if one in alone else times.fastest_s[one] for one in part.operators}
        heads, tails = _chains_s(part, own)
        if alone_s + max(heads[one] + tails[one] for one in part.operators) >= limit_s:
            return math.inf
        through = {one: heads[one] + tails[one] - own[one] for one in part.operators}
        found = [
            one
            for one in part.operators
            if one not in alone and alone_s + through[one] + times.beside_s[one] >= limit_s
        ]
        if not found:
            break
        alone.update(found)
        alone_s += sum(times.alone_s[one] for one in found)
    least_s = alone_s + max(heads[one] + tails[one] for one in part.operators)
    others = [one for one in part.operators if one not in alone]
    for shared_s in times.shared_s:
        work_s = sum(min(shared_s[one], times.alone_s[one]) for one in others)
        least_s = max(least_s, alone_s + work_s)
    return least_s


def _chains_s(part: _Part, own_s: dict[int, float]) -> tuple[dict[int, float], dict[int, float]]:
    """Return the longest chain before every operator, and the longest one from each on."""
    heads, tails = dict.fromkeys(part.operators, 0.0), dict(own_s)
    for one in part.operators:
        for other in part.before[one]:
            heads[one] = max(heads[one], heads[other] + own_s[other])
    for one in reversed(part.operators):
        for other in part.before[one]:
            tails[other] = max(tails[other], own_s[other] + tails[one])
    return heads, tails


@lru_cache(maxsize=1024)
def _parts(graph: OperatorGraph) -> list[_Part]:
    """Split the operators that do anything; an operator of a part follows all of those before."""
    ancestors = _ancestors(graph)
    works = {
        place
        for place, one in enumerate(graph.operators)
        if one.gemms or one.vector or one.collective
    }
    # An operator comes after fewer others than what follows it.
    order = sorted(works, key=lambda one: (len(ancestors[one] & works), one))
    parts, begin = [], 0
    for end in range(1, len(order) + 1):
        done = set(order[:end])
        if all(done <= ancestors[one] for one in order[end:]):
            parts.append(_part(order[begin:end], ancestors))
            begin = end
    return parts


def _part(operators: Sequence[int], ancestors: Sequence[set[int]]) -> _Part:
    """Return some operators with those right before each."""
    before = {}
    for one in operators:
        earlier = [other for other in operators if other in ancestors[one]]
        behind: set[int] = set().union(*(ancestors[other] for other in earlier))
        before[one] = [other for other in earlier if other not in behind]
    return _Part(list(operators), before)


def _ancestors(graph: OperatorGraph) -> list[set[int]]:
    """Return which operators come before each."""
    ancestors: list[set[int]] = [set() for _ in graph.operators]
    for source, destination, _ in sorted(graph.edges, key=lambda edge: edge[1]):
        ancestors[destination] |= ancestors[source] | {source}
    return ancestors
