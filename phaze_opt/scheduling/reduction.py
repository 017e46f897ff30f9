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

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import callee, inlined, lazily_compiled
from phaze_opt.scheduling.instance import (
    BANDWIDTH_CAPACITY,
    INTRA,
    SINGLE,
    TIME_RESOLUTION,
    WORD,
    add_to_set,
    in_set,
)

_RESOURCES = 6
"""Tensor cores, vector cores, HBM, global buffer, link, and the chip."""

INSTANCE_TYPE = "i8[:, ::1], b1[:, ::1], i8[:, :, ::1], i8[::1], i8[:, ::1], i8[:, ::1]"
"""In numba's notation, the arrays of an `instance.Instance`, in its order."""

InstanceArrays = tuple[IntArray, BoolArray, IntArray, IntArray, IntArray, IntArray]


@lazily_compiled("i8[:, ::1](b1[::1], i8[:, ::1])")
def contracted_ancestors(instant: BoolArray, edges: IntArray) -> IntArray:
    """Give the ancestors with a duration of each operator.

    Parameters
    ----------
    instant : (operators,)
        Whether each operator has no duration; operators are numbered topologically.
    edges : (precedences, 2)
        Sorted.

    Returns
    -------
    ancestors : (operators, words)
        Sets as bit masks.
    """
    count = len(instant)
    ancestors = np.zeros((count, (count + WORD - 1) // WORD), dtype=np.int64)
    for e in range(len(edges)):
        source, target = edges[e, 0], edges[e, 1]
        for word in range(ancestors.shape[1]):
            ancestors[target, word] |= ancestors[source, word]
        if not instant[source]:
            add_to_set(ancestors[target], source)
    return ancestors


@lazily_compiled("UniTuple(i8[::1], 2)(b1[::1], i8[:, ::1])")
def series_parts(instant: BoolArray, ancestors: IntArray) -> tuple[IntArray, IntArray]:
    """Split operators into parts of which each must end before the next one starts.

    Parameters
    ----------
    instant
        As for `contracted_ancestors`: operators without duration belong to no part.
    ancestors
        What it returns.

    Returns
    -------
    members : (operators with a duration,)
        Part by part, in topological order.
    first : (parts + 1,)
        Where each part begins in ``members``, and where the last one ends.
    """
    count, words = ancestors.shape
    sizes = np.full(count, count + 1)
    kept = 0
    for i in range(count):
        if not instant[i]:
            kept += 1
            sizes[i] = _size_of(ancestors[i])
    # Those with fewer ancestors come first, then those with the lower number.
    members = np.argsort(sizes, kind="mergesort")[:kept]
    first = np.empty(kept + 1, dtype=np.int64)
    first[0] = 0
    parts = 0
    # A cut lies before a place if every later operator has all earlier ones as ancestors.
    common = np.full(words, -1)
    is_cut = np.zeros(kept + 1, dtype=np.bool_)
    for place in range(kept - 1, 0, -1):
        for word in range(words):
            common[word] &= ancestors[members[place], word]
        is_cut[place] = _size_of(common) == place
    for place in range(1, kept + 1):
        if is_cut[place] or place == kept:
            parts += 1
            first[parts] = place
            members[first[parts - 1] : place] = np.sort(members[first[parts - 1] : place])
    return members, first[: parts + 1]


@inlined
def _size_of(words: IntArray) -> int:
    """Count the operators of a set."""
    size = 0
    for word in range(words.shape[0]):
        rest = words[word]
        while rest != 0:
            rest &= rest - 1
            size += 1
    return size


Rules = tuple[int, int, bool, bool]
"""Numbers of tensor cores and of vector cores, and whether nothing runs beside an operator on all
cores (``exclusive``), and whether shares are elastic; see `ScheduleProblem`."""
RULES_TYPE = "Tuple((i8, i8, b1, b1))"


@lazily_compiled(
    f"Tuple((Tuple(({INSTANCE_TYPE})), f8))(i8[::1], i8[::1], f8[:, ::1], i8[:, ::1], {RULES_TYPE})"
)
def build_instance(
    part: IntArray,
    core: IntArray,
    values: FloatArray,
    ancestors: IntArray,
    rules: Rules,
) -> tuple[InstanceArrays, float]:
    """Write one part of a problem as the arrays of a reduced `Instance`.

    Parameters
    ----------
    part : (size,)
        Indices of its operators, in topological order.
    core, values, ancestors
        Of all operators of the problem; see `canonical.CanonicalForm` and `contracted_ancestors`.
    rules
        See `Rules`.

    Returns
    -------
    The arrays of the instance, and the seconds of `TIME_RESOLUTION` time units.
    """
    size = len(part)
    before, after = part_precedences(part, ancestors)
    demand, capacity = unreduced_demand(part, core, values, rules)
    total_s = 0.0
    for i in range(size):
        total_s += min(values[part[i], 0], values[part[i], 1])
    duration = np.empty((size, 2), dtype=np.int64)
    allowed = np.empty((size, 2), dtype=np.bool_)
    for i in range(size):
        own = values[part[i]]
        for mode in range(2):
            duration[i, mode] = _to_units(own[mode], total_s)
        _write_useful_modes(duration[i], demand[i], allowed[i])
    _fix_modes_that_run_alone(duration, demand, allowed, before, after, capacity, rules[3])
    demand, capacity = _binding_resources(demand, allowed, capacity)
    return (duration, allowed, demand, capacity, before, after), total_s


@callee(f"Tuple((i8[:, :, ::1], i8[::1]))(i8[::1], i8[::1], f8[:, ::1], {RULES_TYPE})")
def unreduced_demand(
    part: IntArray, core: IntArray, values: FloatArray, rules: Rules
) -> tuple[IntArray, IntArray]:
    """Write what the operators of a part take of all six resources in both modes.

    An `Instance` leaves out what suffices for all of its allowed modes at once. So it cannot tell
    what fits in a plan of another instance, in which other modes are allowed.

    Parameters
    ----------
    part, core, values, rules
        See `build_instance`.

    Returns
    -------
    demand : (size, 2, resources)
        In each mode.
    capacity : (resources,)
        Amount of each resource.
    """
    size = len(part)
    num_tc, num_vc, exclusive, _ = rules
    capacity = np.array(
        [num_tc, num_vc, BANDWIDTH_CAPACITY, BANDWIDTH_CAPACITY, BANDWIDTH_CAPACITY, size]
    )
    demand = np.empty((size, 2, _RESOURCES), dtype=np.int64)
    for i in range(size):
        _write_demand(core[part[i]], values[part[i]], exclusive, capacity, demand[i])
    return demand, capacity


@inlined
def _to_units(latency_s: float, total_s: float) -> int:
    """Round a latency to time units, limited to twice the sum of all shortest latencies."""
    return max(1, int(np.rint(min(latency_s / total_s, 2.0) * TIME_RESOLUTION)))


@lazily_compiled("UniTuple(i8[:, ::1], 2)(i8[::1], i8[:, ::1])")
def part_precedences(part: IntArray, ancestors: IntArray) -> tuple[IntArray, IntArray]:
    """Give ancestors and descendants within a part; operators are numbered by place in it."""
    size = len(part)
    before = np.zeros((size, (size + WORD - 1) // WORD), dtype=np.int64)
    after = np.zeros_like(before)
    for i in range(size):
        for j in range(i):
            if in_set(ancestors[part[i]], part[j]):
                add_to_set(before[i], j)
                add_to_set(after[j], i)
    return before, after


@inlined
def _write_demand(
    core: int, values: FloatArray, exclusive: bool, capacity: IntArray, demand: IntArray
) -> None:
    """Write the amounts of the six resources that an operator takes in each mode.

    Under the rule ``exclusive``, an operator on all cores of its type takes every resource whole.
    """
    tensor, vector = int(core == 0 or core == 2), int(core == 1 or core == 2)
    demand[SINGLE, 0], demand[SINGLE, 1], demand[SINGLE, 5] = tensor, vector, 1
    for resource in range(3):
        demand[SINGLE, 2 + resource] = int(np.rint(values[2 + resource] * BANDWIDTH_CAPACITY))
    if exclusive:
        for resource in range(_RESOURCES):
            demand[INTRA, resource] = capacity[resource]
    else:
        demand[INTRA, 0], demand[INTRA, 1] = capacity[0] * tensor, capacity[1] * vector
        demand[INTRA, 2] = int(np.rint(values[5] * BANDWIDTH_CAPACITY))
        demand[INTRA, 3] = int(np.rint(values[6] * BANDWIDTH_CAPACITY))
        demand[INTRA, 4], demand[INTRA, 5] = demand[SINGLE, 4], 1


@inlined
def _write_useful_modes(duration: IntArray, demand: IntArray, allowed: BoolArray) -> None:
    """Drop a mode that is never better than the other one.

    Such a mode takes longer than all operators one after another (by more than rounding), or it
    takes at least the duration of the other mode and at least its amount of every resource.
    """
    allowed[SINGLE] = allowed[INTRA] = True
    for drop in (INTRA, SINGLE):
        if duration[drop] > TIME_RESOLUTION + TIME_RESOLUTION // 1024 and allowed[drop]:
            allowed[drop] = False
            return
    for drop in (INTRA, SINGLE):
        keep = 1 - drop
        if duration[keep] <= duration[drop] and _at_most(demand[keep], demand[drop]):
            allowed[drop] = False
            return


@inlined
def _at_most(amounts: IntArray, other: IntArray) -> bool:
    """Say whether no amount of a demand is larger than that of another."""
    most = True
    for resource in range(amounts.shape[0]):
        most = most and amounts[resource] <= other[resource]
    return most


@inlined
def _fix_modes_that_run_alone(
    duration: IntArray,
    demand: IntArray,
    allowed: BoolArray,
    before: IntArray,
    after: IntArray,
    capacity: IntArray,
    elastic: bool,
) -> None:
    """Fix the faster mode of operators beside which no other can run; they take the whole chip."""
    for i in range(len(duration)):
        if _has_company(i, demand, allowed, before[i], after[i], capacity, elastic):
            continue
        fastest = _fastest_mode(duration[i], allowed[i])
        for mode in range(2):
            allowed[i, mode] = mode == fastest
            for resource in range(_RESOURCES):
                demand[i, mode, resource] = capacity[resource]


@inlined
def _has_company(
    i: int,
    demand: IntArray,
    allowed: BoolArray,
    before: IntArray,
    after: IntArray,
    capacity: IntArray,
    elastic: bool,
) -> bool:
    """Say whether another operator can run beside one, by precedences and capacities.

    Elastic shares of bandwidths always leave room for others.

    An operator that takes every resource whole runs alone: all operators take some of the chip.
    """
    for own in range(2):
        if not allowed[i, own]:
            continue
        for j in range(len(demand)):
            if j == i or in_set(before, j) or in_set(after, j):
                continue
            for other in range(2):
                if allowed[j, other]:
                    together = True
                    for resource in range(capacity.shape[0]):
                        needed = demand[i, own, resource] + demand[j, other, resource]
                        gives_way = elastic and 2 <= resource < 5
                        together = together and (gives_way or needed <= capacity[resource])
                    if together:
                        return True
    return False


@inlined
def _fastest_mode(duration: IntArray, allowed: BoolArray) -> int:
    """Give the allowed mode with the shorter duration, of equal ones the first."""
    if allowed[SINGLE] and (not allowed[INTRA] or duration[SINGLE] <= duration[INTRA]):
        return SINGLE
    return INTRA


@callee("Tuple((i8[:, :, ::1], i8[::1]))(i8[:, :, ::1], b1[:, ::1], i8[::1])")
def _binding_resources(
    demand: IntArray, allowed: BoolArray, capacity: IntArray
) -> tuple[IntArray, IntArray]:
    """Drop the resources that suffice for all operators at once."""
    kept = np.empty(len(capacity), dtype=np.int64)
    count = 0
    for resource in range(len(capacity)):
        needed = 0
        for i in range(len(demand)):
            most = 0
            for mode in range(2):
                if allowed[i, mode]:
                    most = max(most, demand[i, mode, resource])
            needed += most
        if needed > capacity[resource]:
            kept[count] = resource
            count += 1
    fewer = np.empty((len(demand), 2, count), dtype=np.int64)
    for place in range(count):
        fewer[:, :, place] = demand[:, :, kept[place]]
    return fewer, capacity[kept[:count]]
