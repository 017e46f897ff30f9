"""The problem in the solver's own terms: integer times, resources, and two modes per operator.

Whatever the rules, an operator in a mode takes a duration and an amount of each of six resources:
tensor cores, vector cores, the HBM, the global buffer, the link, and the chip as such (a resource
that everything shares, and that an exclusive operator takes whole). The scheduler is thereby one
for multi-mode resource-constrained projects (Brucker et al., EJOR 112, 1999, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from phaze_opt.scheduling.schedule_problem import IntraOperatorRule

SINGLE, INTRA = 0, 1
"""The two modes: on one core, on all cores of the type."""

BANDWIDTH_CAPACITY = 10**9
"""A whole bandwidth; fractions are rounded to billionths."""

TIME_RESOLUTION = 2**40
"""Integer time units in the time all operators of an instance take one after another.

Rounding every duration moves a makespan of 160 operators by less than 1e-10 of it.
"""


class PackedDemand:
    """Amounts of all resources in one integer, so that one operation compares or adds them all.

    Each resource has a field of bits with a guard bit on top. What is free has all guard bits set;
    a demand taken off it borrows the guard bit of every resource that it overdraws.

    Attributes
    ----------
    capacity
        All that is free at first, with the guard bits.
    guards
        The guard bits.
    demand
        ``[operator][mode]``.
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
    """Write amounts into fields of so many bits."""
    packed = 0
    for amount in reversed(amounts):
        packed = packed << field | amount
    return packed


@dataclass(frozen=True)
class Instance:
    """A part of a problem whose operators all take time.

    Operators are numbered topologically. Sequences of pairs hold one entry for each mode.

    Attributes
    ----------
    duration
        ``[operator][mode]`` in time units, positive.
    modes
        ``[operator]``: the modes worth considering.
    demand
        ``[operator][mode][resource]`` of the resources that can bind at all.
    capacity
        Of those resources.
    ancestors, descendants
        ``[operator]`` as bit masks, transitively closed.
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
        """Those that come directly before each operator."""
        return tuple(last_of(mask, self.ancestors) for mask in self.ancestors)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Those that come directly after each operator."""
        after: list[list[int]] = [[] for _ in self.ancestors]
        for i, before in enumerate(self.predecessors):
            for j in before:
                after[j].append(i)
        return tuple(map(tuple, after))

    @cached_property
    def runs_alone(self) -> tuple[tuple[bool, bool], ...]:
        """Whether each operator, in each mode, keeps all others from running beside it."""
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
        """Demand and capacity, all resources in one integer."""
        return PackedDemand(self.demand, self.capacity)

    def least_duration(self, operator: int) -> int:
        """Duration in the faster mode."""
        return min(self.duration[operator][mode] for mode in self.modes[operator])


def last_of(mask: int, ancestors: Sequence[int]) -> tuple[int, ...]:
    """List the operators of a set that precede none of the set.

    Parameters
    ----------
    mask
        The set, with every ancestor of its members that matters.
    ancestors
        Of every operator, as bit masks, transitively closed; operators are numbered topologically.
    """
    found = []
    while mask:
        # Nothing that is left follows the one with the highest number.
        last = mask.bit_length() - 1
        found.append(last)
        mask &= ~(ancestors[last] | 1 << last)
    return tuple(found)


def operator_demand(
    attributes: Sequence[float], rule: IntraOperatorRule, capacity: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Give what an operator takes of the six resources in each mode.

    Parameters
    ----------
    attributes
        As `canonical.operator_attributes` lists them.
    rule
        Whether running on all cores takes the whole chip.
    capacity
        ``(TC, VC, HBM, GLB, link, chip)``.
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
