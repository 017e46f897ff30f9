"""Reduction, bounds and list schedules of the scheduler in plain Python, to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from phaze_opt.choices import IntraOperatorRule
from phaze_opt.scheduling.instance import (
    BANDWIDTH_CAPACITY,
    INTRA,
    SINGLE,
    TIME_RESOLUTION,
    Plan,
    proving_bound,
)
from phaze_opt.scheduling.schedule_problem import CORE_TYPES, ScheduleOperator, ScheduleProblem

Attributes = tuple[int, float, float, float, float, float, float, float]
_Demand = tuple[tuple[int, ...], tuple[int, ...]]


def operator_attributes(operator: ScheduleOperator, bandwidth: bool) -> Attributes:
    """List the numbers of an operator: index of the core type, two latencies, five fractions."""
    core = CORE_TYPES.index(operator.core)
    # An operator on no core has one mode: its other latency and shares do not count.
    has_modes = operator.core != "none"
    latency_s = operator.latency_s
    intra_s = operator.intra_op_latency_s if has_modes else latency_s
    if not bandwidth:
        return (core, latency_s, intra_s, 0.0, 0.0, 0.0, 0.0, 0.0)
    return (
        core,
        latency_s,
        intra_s,
        operator.hbm_fraction,
        operator.glb_fraction,
        operator.link_fraction,
        operator.intra_op_hbm_fraction if has_modes else operator.hbm_fraction,
        operator.intra_op_glb_fraction if has_modes else operator.glb_fraction,
    )


def canonical_order(
    attributes: Sequence[Attributes], edges: Sequence[tuple[int, int]], order: Sequence[int]
) -> list[int]:
    """Order operators topologically by their attributes and their place in the graph, not by name.

    Every operator gets one colour from its attributes and the colours of its predecessors, and one
    from the first colour and the colours of its successors: one round of Weisfeiler–Leman
    refinement in each direction, which covers the whole of an acyclic graph. Operators of equal
    colours are interchangeable in practice; if they are not, the order is still topological, but
    depends on the order of writing.

    Parameters
    ----------
    attributes
        Attributes of each operator.
    edges
        Precedences as pairs of indices.
    order
        Any topological order.
    """
    count = len(attributes)
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    depth = [0] * count
    above = [0] * count
    for index in order:
        colours = sorted([above[other] for other in before[index]])
        above[index] = hash((attributes[index], *colours))
        for other in after[index]:
            depth[other] = max(depth[other], depth[index] + 1)
    below = [0] * count
    for index in reversed(order):
        colours = sorted([below[other] for other in after[index]])
        below[index] = hash((above[index], *colours))
    return sorted(order, key=lambda index: (depth[index], above[index], below[index]))


def canonical_form(
    problem: ScheduleProblem, order: Sequence[int], bandwidth: bool
) -> tuple[list[int], list[Attributes], list[tuple[int, int]]]:
    """Give the canonical order of the operators, and the attributes and edges in this order.

    Parameters
    ----------
    problem
        A valid problem.
    order
        Any topological order of its operators.
    bandwidth
        Whether bandwidths are resources; if not, all shares count as 0.
    """
    attributes = [operator_attributes(operator, bandwidth) for operator in problem.operators]
    edges = sorted(set(problem.edges))
    canonical = canonical_order(attributes, edges, order)
    rank = [0] * len(canonical)
    for position, index in enumerate(canonical):
        rank[index] = position
    return (
        canonical,
        [attributes[index] for index in canonical],
        sorted([(rank[source], rank[target]) for source, target in edges]),
    )


@dataclass(frozen=True)
class Instance:
    """A part of a problem in which every operator has a positive duration.

    Operators are numbered topologically. Pairs hold one entry per mode.

    Attributes
    ----------
    duration
        ``[operator][mode]`` in time units, positive.
    modes
        ``[operator]``: the modes that some shortest schedule may use.
    demand
        ``[operator][mode][resource]``, only of resources that can bind.
    capacity
        ``[resource]``: amount of each of these resources.
    ancestors, descendants
        ``[operator]``: sets of operators as bit masks, transitively closed.
    seconds_per_unit
        Length of a time unit.
    """

    duration: tuple[tuple[int, int], ...]
    modes: tuple[tuple[int, ...], ...]
    demand: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    capacity: tuple[int, ...]
    ancestors: tuple[int, ...]
    descendants: tuple[int, ...]
    seconds_per_unit: float

    @property
    def size(self) -> int:
        """Number of operators."""
        return len(self.duration)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Direct predecessors of each operator."""
        return tuple(last_of(mask, self.ancestors) for mask in self.ancestors)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Direct successors of each operator."""
        after: list[list[int]] = [[] for _ in self.ancestors]
        for i, before in enumerate(self.predecessors):
            for j in before:
                after[j].append(i)
        return tuple(map(tuple, after))

    def least_duration(self, operator: int) -> int:
        """Give the duration of an operator in its faster mode."""
        return min(self.duration[operator][mode] for mode in self.modes[operator])


def last_of(mask: int, ancestors: Sequence[int]) -> tuple[int, ...]:
    """List the operators of a set that precede no other operator of the set.

    Parameters
    ----------
    mask
        The set as a bit mask, closed: with an operator it holds all ancestors of the operator that
        count.
    ancestors
        Ancestors of every operator as bit masks, transitively closed; operators are numbered
        topologically.
    """
    found = []
    while mask:
        # The operator with the highest number precedes no other one of the set.
        last = mask.bit_length() - 1
        found.append(last)
        mask &= ~(ancestors[last] | 1 << last)
    return tuple(found)


def operator_demand(
    attributes: Sequence[float], rule: IntraOperatorRule, capacity: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Give the amounts of the six resources that an operator takes in each mode.

    Parameters
    ----------
    attributes
        As `canonical.operator_attributes` lists them.
    rule
        Under ``exclusive``, an operator on all cores of its type takes every resource whole.
    capacity
        Amounts that the chip has: ``(TC, VC, HBM, GLB, link, chip)``.
    """
    core = int(attributes[0])
    hbm, glb, link, intra_hbm, intra_glb = [
        round(fraction * BANDWIDTH_CAPACITY) for fraction in attributes[3:8]
    ]
    tensor, vector = core in (0, 2), core in (1, 2)
    single = (int(tensor), int(vector), hbm, glb, link, 1)
    if rule == "exclusive":
        return single, tuple(capacity)
    whole = (capacity[0] * tensor, capacity[1] * vector, intra_hbm, intra_glb, link, 1)
    return single, whole


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


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of an instance that need no search, in time units.

    Attributes
    ----------
    makespan
        Lower bound on the makespan of every schedule.
    tail
        ``[operator]``: least time from the operator's start to the end of the schedule.
    """

    makespan: int
    tail: tuple[int, ...]


def root_bounds(instance: Instance) -> Bounds:
    """Bound the makespan from below by the critical path and by the work of every resource."""
    tail = tails(instance, [instance.least_duration(i) for i in range(instance.size)])
    work = [work_bound(instance, resource) for resource in range(len(instance.capacity))]
    return Bounds(max([*tail, *work]), tuple(tail))


def tails(instance: Instance, duration: Sequence[int]) -> list[int]:
    """Give the longest path from the start of each operator to the end of the schedule.

    Parameters
    ----------
    instance
        The precedences.
    duration
        Duration of each operator, in time units.
    """
    tail = list(duration)
    for i in range(instance.size - 1, -1, -1):
        tail[i] += max([tail[j] for j in instance.successors[i]], default=0)
    return tail


def drop_hopeless_modes(instance: Instance, upper: int) -> Instance:
    """Keep the modes in which the longest path through the operator is shorter than a makespan.

    Parameters
    ----------
    instance
        The operators to schedule.
    upper
        Makespan in time units. Only shorter schedules count: if some operator has no mode left,
        no schedule is shorter.
    """
    shortest = [instance.least_duration(i) for i in range(instance.size)]
    tail = tails(instance, shortest)
    modes = []
    head = [0] * instance.size
    for i, kept in enumerate(instance.modes):
        head[i] = max([head[j] + shortest[j] for j in instance.predecessors[i]], default=0)
        around = head[i] + tail[i] - shortest[i]
        modes.append(tuple([m for m in kept if around + instance.duration[i][m] < upper]))
    return replace(instance, modes=tuple(modes))


def work_bound(instance: Instance, resource: int) -> int:
    """Bound the makespan by one resource: the sum of duration × demand, divided by capacity.

    Each operator counts in the mode in which duration × demand is smaller.
    """
    work = 0
    for duration, demand, modes in zip(
        instance.duration, instance.demand, instance.modes, strict=True
    ):
        work += min([duration[mode] * demand[mode][resource] for mode in modes])
    return -(-work // instance.capacity[resource])


def best_list_schedule(instance: Instance, bounds: Bounds) -> Plan:
    """Give the shortest list schedule over all choices, or the first one that meets the bound."""
    best: Plan | None = None
    for mode, priority, drain in _choices(instance):
        plan = list_schedule(instance, mode, priority, drain)
        if best is None or plan.makespan < best.makespan:
            best = plan
        if proving_bound(best.makespan) <= bounds.makespan:
            break
    assert best is not None  # there is always a first choice
    return best


def _choices(instance: Instance) -> Iterator[tuple[Sequence[int], Sequence[int], bool]]:
    """Yield modes, priorities (longest tail first) and draining; the fastest modes come first."""
    fastest = tuple(
        min(kept, key=lambda mode: (instance.duration[i][mode], mode))
        for i, kept in enumerate(instance.modes)
    )
    single = tuple(kept[0] for kept in instance.modes)
    for mode in dict.fromkeys((fastest, single)):
        tail = tails(instance, [instance.duration[i][m] for i, m in enumerate(mode)])
        priority = [-value for value in tail]
        for drain in (False, True):
            yield mode, priority, drain


def list_schedule(
    instance: Instance, mode: Sequence[int], priority: Sequence[int], drain: bool
) -> Plan:
    """Build one list schedule.

    Parameters
    ----------
    instance
        The operators to schedule.
    mode
        Mode of each operator.
    priority
        Priority of each operator; of the waiting operators the one with the smallest starts first.
    drain
        Whether, while an operator does not fit, the operators behind it wait too.
    """
    waiting = sorted(range(instance.size), key=lambda i: (priority[i], i))
    ancestors, free = instance.ancestors, list(instance.capacity)
    length = [pair[m] for pair, m in zip(instance.duration, mode, strict=True)]
    demand = [pair[m] for pair, m in zip(instance.demand, mode, strict=True)]
    start = [0] * instance.size
    running: list[tuple[int, int]] = []
    done, now, makespan = 0, 0, 0
    while waiting:
        left = []
        blocked = False
        for i in waiting:
            if blocked or ancestors[i] & ~done:
                left.append(i)
            elif any(needed > limit for needed, limit in zip(demand[i], free, strict=True)):
                blocked = drain
                left.append(i)
            else:
                start[i] = now
                free = [a - b for a, b in zip(free, demand[i], strict=True)]
                running.append((now + length[i], i))
        waiting = left
        running.sort()
        now = running[0][0]
        makespan = max(makespan, running[-1][0])
        while running and running[0][0] == now:
            _, i = running.pop(0)
            done |= 1 << i
            free = [a + b for a, b in zip(free, demand[i], strict=True)]
    return Plan(tuple(start), tuple(mode), makespan)


def quick_plan(instance: Instance) -> tuple[Instance, Bounds, Plan, bool]:
    """Do as `phaze_opt.scheduling.quick_plan.quick_plan`."""
    bounds = root_bounds(instance)
    plan = best_list_schedule(instance, bounds)
    proving = proving_bound(plan.makespan)
    if proving <= bounds.makespan:
        return instance, bounds, plan, True
    fewer = drop_hopeless_modes(instance, proving)
    if not all(fewer.modes):
        return fewer, Bounds(proving, bounds.tail), plan, True
    bounds = root_bounds(fewer)
    if proving <= bounds.makespan:
        return fewer, Bounds(proving, bounds.tail), plan, True
    return fewer, bounds, plan, False
