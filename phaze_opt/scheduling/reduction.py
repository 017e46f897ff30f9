"""Make a problem smaller without changing its optimum.

- Operators without duration are contracted into their precedences.
- Where all operators on one side of a cut precede all operators on the other side, the two sides
  are solved as two parts, one after the other. A chain splits into single operators.
- A mode that is never better is dropped, and so is a resource that can never bind.
- An operator beside which no other operator can run takes its faster mode, and the whole chip.

Two reductions come later: `bounds.drop_hopeless_modes` needs a known schedule, and the rules of
`search_kernel` need the order of the search.
"""

from __future__ import annotations

from collections.abc import Sequence

from phaze_opt.scheduling.instance import (
    BANDWIDTH_CAPACITY,
    INTRA,
    SINGLE,
    TIME_RESOLUTION,
    Instance,
    last_of,
    operator_demand,
)
from phaze_opt.scheduling.schedule_problem import IntraOperatorRule

_Demand = tuple[tuple[int, ...], tuple[int, ...]]


def set_bits(mask: int) -> list[int]:
    """List the positions of the bits of a mask that are set, rising."""
    positions = []
    while mask:
        lowest = mask & -mask
        positions.append(lowest.bit_length() - 1)
        mask ^= lowest
    return positions


def is_instant(attributes: Sequence[float]) -> bool:
    """Say whether an operator has no duration in its faster mode."""
    return min(attributes[1], attributes[2]) <= 0.0


def contracted_ancestors(instant: Sequence[bool], edges: Sequence[tuple[int, int]]) -> list[int]:
    """Give the ancestors with a duration of each operator, as bit masks.

    Parameters
    ----------
    instant
        Whether each operator has no duration; operators are numbered topologically.
    edges
        Precedences as sorted pairs of indices.
    """
    ancestors = [0] * len(instant)
    for source, target in edges:
        own = 0 if instant[source] else 1 << source
        ancestors[target] |= ancestors[source] | own
    return ancestors


def series_parts(kept: Sequence[int], ancestors: Sequence[int]) -> list[list[int]]:
    """Split operators into parts of which each must end before the next one starts.

    Parameters
    ----------
    kept
        The operators with a duration, in topological order.
    ancestors
        Ancestors of every operator, as masks over ``kept`` operators.
    """
    ordered = sorted(kept, key=lambda index: (ancestors[index].bit_count(), index))
    common = (1 << (max(kept) + 1)) - 1 if kept else 0
    parts: list[list[int]] = []
    part: list[int] = []
    cuts = set()
    for position in range(len(ordered) - 1, 0, -1):
        # A cut lies before `position` if every later operator has all earlier ones as ancestors.
        common &= ancestors[ordered[position]]
        if common.bit_count() == position:
            cuts.add(position)
    for position, index in enumerate(ordered):
        if position in cuts:
            parts.append(sorted(part))
            part = []
        part.append(index)
    if part:
        parts.append(sorted(part))
    return parts


def build_instance(
    part: Sequence[int],
    attributes: Sequence[Sequence[float]],
    ancestors: Sequence[int],
    cores: tuple[int, int],
    rule: IntraOperatorRule,
) -> Instance:
    """Write one part of a problem as a reduced `Instance`.

    Parameters
    ----------
    part
        Indices of its operators, in topological order.
    attributes, ancestors
        Attributes and ancestors of all operators of the problem.
    cores
        Numbers of tensor cores and of vector cores.
    rule
        Which operators may not run beside an operator on all cores; see `ScheduleProblem`.
    """
    size = len(part)
    capacity: tuple[int, ...] = (
        *cores,
        BANDWIDTH_CAPACITY,
        BANDWIDTH_CAPACITY,
        BANDWIDTH_CAPACITY,
        size,
    )
    own_ancestors, own_descendants = _precedences(part, ancestors)
    total_s = sum(min(attributes[index][1], attributes[index][2]) for index in part)
    duration = tuple(
        (_to_units(attributes[index][1], total_s), _to_units(attributes[index][2], total_s))
        for index in part
    )
    demand: list[_Demand] = [operator_demand(attributes[index], rule, capacity) for index in part]
    modes = [_useful_modes(*pair) for pair in zip(duration, demand, strict=True)]
    _fix_modes_that_run_alone(duration, demand, modes, own_ancestors, own_descendants, capacity)
    demand, capacity = _binding_resources(demand, modes, capacity)
    return Instance(
        duration=duration,
        modes=tuple(modes),
        demand=tuple(demand),
        capacity=capacity,
        ancestors=tuple(own_ancestors),
        descendants=tuple(own_descendants),
        seconds_per_unit=total_s / TIME_RESOLUTION,
    )


def _precedences(part: Sequence[int], ancestors: Sequence[int]) -> tuple[list[int], list[int]]:
    """Give ancestors and descendants within a part; operators are numbered by place in it."""
    members = sum([1 << index for index in part])
    place = {index: position for position, index in enumerate(part)}
    before = [0] * len(part)
    after = [0] * len(part)
    direct = [[place[j] for j in last_of(ancestors[i] & members, ancestors)] for i in part]
    for position, predecessors in enumerate(direct):
        for other in predecessors:
            before[position] |= before[other] | 1 << other
    for position in range(len(part) - 1, -1, -1):
        for other in direct[position]:
            after[other] |= after[position] | 1 << position
    return before, after


def _to_units(latency_s: float, total_s: float) -> int:
    """Round a latency to time units, limited to twice the sum of all shortest latencies."""
    return max(1, round(min(latency_s / total_s, 2.0) * TIME_RESOLUTION))


def _useful_modes(duration: tuple[int, int], demand: _Demand) -> tuple[int, ...]:
    """Drop a mode that is never better than the other one.

    Such a mode takes longer than all operators one after another (by more than rounding), or it
    takes at least the duration of the other mode and at least its amount of every resource.
    """
    for keep, drop in ((SINGLE, INTRA), (INTRA, SINGLE)):
        if duration[drop] > TIME_RESOLUTION + TIME_RESOLUTION // 1024:
            return (keep,)
    for keep, drop in ((SINGLE, INTRA), (INTRA, SINGLE)):
        less = all(a <= b for a, b in zip(demand[keep], demand[drop], strict=True))
        if less and duration[keep] <= duration[drop]:
            return (keep,)
    return (SINGLE, INTRA)


def _fix_modes_that_run_alone(
    duration: Sequence[tuple[int, int]],
    demand: list[_Demand],
    modes: list[tuple[int, ...]],
    ancestors: Sequence[int],
    descendants: Sequence[int],
    capacity: tuple[int, ...],
) -> None:
    """Fix the faster mode of operators beside which no other can run; they take the whole chip."""
    # An operator that takes every resource whole runs alone: all operators take some of the chip.
    shared = [
        [pair[mode] for mode in kept if pair[mode] != capacity]
        for pair, kept in zip(demand, modes, strict=True)
    ]
    size = len(duration)
    everything = (1 << size) - 1
    for index in range(size):
        free = everything & ~(ancestors[index] | descendants[index] | 1 << index)
        if any(
            _fit_together(own, other, capacity)
            for own in shared[index]
            for position in set_bits(free)
            for other in shared[position]
        ):
            continue
        fastest = min(modes[index], key=lambda mode: (duration[index][mode], mode))
        modes[index] = (fastest,)
        demand[index] = (capacity, capacity)
        shared[index] = []


def _fit_together(one: Sequence[int], other: Sequence[int], capacity: Sequence[int]) -> bool:
    """Say whether the capacity suffices for two demands together."""
    return all(a + b <= c for a, b, c in zip(one, other, capacity, strict=True))


def _binding_resources(
    demand: Sequence[_Demand], modes: Sequence[tuple[int, ...]], capacity: tuple[int, ...]
) -> tuple[list[_Demand], tuple[int, ...]]:
    """Drop the resources that suffice for all operators at once."""
    most = [
        tuple(map(max, *pair)) if len(kept) > 1 else pair[kept[0]]
        for pair, kept in zip(demand, modes, strict=True)
    ]
    binding = [
        resource
        for resource, (needed, limit) in enumerate(
            zip(map(sum, zip(*most, strict=True)), capacity, strict=True)
        )
        if needed > limit
    ]
    kept_demand = [
        (tuple(single[r] for r in binding), tuple(intra[r] for r in binding))
        for single, intra in demand
    ]
    return kept_demand, tuple(capacity[r] for r in binding)
