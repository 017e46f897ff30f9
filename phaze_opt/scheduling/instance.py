"""One part of a problem in integer time units and resources, and a plan of it.

Under every rule, an operator in a mode has a duration and takes an amount of each of six resources:
tensor cores, vector cores, HBM, global buffer, link, and the chip (a resource of which every
operator takes one unit, and an exclusive operator all units). This is the multi-mode
resource-constrained project scheduling problem (Brucker et al., EJOR 112, 1999, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from phaze_opt.scheduling.schedule_problem import IntraOperatorRule

Time = TypeVar("Time", int, float)

SINGLE, INTRA = 0, 1
"""The two modes: on one core, and on all cores of the type."""

BANDWIDTH_CAPACITY = 10**9
"""Units of a whole bandwidth: shares are rounded to billionths."""

TIME_RESOLUTION = 2**40
"""Integer time units in the sum of the shortest durations of all operators of an instance.

Rounding every duration moves a makespan of 160 operators by less than 1e-10 of it.
"""


class PackedDemand:
    """Amounts of all resources in one integer, so that one operation compares or adds all amounts.

    Each resource has a field of bits with a guard bit on top. The integer of free amounts has all
    guard bits set; where a demand subtracted from it exceeds the free amount of a resource, the
    subtraction clears the guard bit of that resource.

    Attributes
    ----------
    capacity
        The free amounts while no operator runs, with all guard bits set.
    guards
        The guard bits.
    demand
        ``[operator][mode]``: amounts of all resources, packed.
    """

    def __init__(
        self,
        demand: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        capacity: Sequence[int],
    ) -> None:
        field = max(capacity, default=0).bit_length() + 1
        self.guards = sum([1 << (field * place + field - 1) for place in range(len(capacity))])
        self.capacity = _pack(capacity, field) | self.guards
        self.demand = [(_pack(single, field), _pack(intra, field)) for single, intra in demand]


def _pack(amounts: Sequence[int], field: int) -> int:
    """Write amounts into fields of ``field`` bits each, the first amount lowest."""
    packed = 0
    for amount in reversed(amounts):
        packed = packed << field | amount
    return packed


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

    @cached_property
    def runs_alone(self) -> tuple[tuple[bool, bool], ...]:
        """Whether no other operator can run beside an operator in a mode: ``[operator][mode]``."""
        free = any(
            not any(pair[mode])
            for pair, kept in zip(self.demand, self.modes, strict=True)
            for mode in kept
        )
        return tuple(
            (not free and single == self.capacity, not free and intra == self.capacity)
            for single, intra in self.demand
        )

    @cached_property
    def packed(self) -> PackedDemand:
        """Demand and capacity with all resources in one integer."""
        return PackedDemand(self.demand, self.capacity)

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


@dataclass(frozen=True)
class Plan:
    """Start and mode of every operator of an instance, and the makespan, in time units."""

    start: tuple[int, ...]
    mode: tuple[int, ...]
    makespan: int


def proving_bound(makespan: int) -> int:
    """Give the least lower bound that proves a makespan optimal: within 1e-9 of the makespan."""
    return makespan - (makespan >> 30)


def starts_in_order(
    start: Sequence[int], end: Sequence[int], duration: Sequence[Time], origin: Time
) -> list[Time]:
    """Start operators as early as the order of a plan allows, with other durations.

    Every operator waits for all operators that ended in the plan before it started. So operators
    that overlap in the result overlapped in the plan, and the resources that they share suffice.
    Where the durations differ from those of the plan by rounding only, so does the makespan.

    Parameters
    ----------
    start, end
        Of every operator in the plan, in time units.
    duration
        Of every operator in the result, in seconds or other time units.
    origin
        Start of the result.

    Returns
    -------
    Start of every operator in the result.
    """
    by_start = sorted(range(len(start)), key=lambda index: (start[index], end[index]))
    by_end = sorted(range(len(start)), key=lambda index: (end[index], start[index]))
    starts = [origin] * len(start)
    latest_end = origin
    passed = 0
    for index in by_start:
        while end[by_end[passed]] <= start[index]:
            before = by_end[passed]
            latest_end = max(latest_end, starts[before] + duration[before])
            passed += 1
        starts[index] = latest_end
    return starts
