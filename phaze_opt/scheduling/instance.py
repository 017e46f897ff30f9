"""One part of a problem in integer time units and resources, and a plan of it.

Under every rule, an operator in a mode has a duration and takes an amount of each of six resources:
tensor cores, vector cores, HBM, global buffer, link, and the chip (a resource of which every
operator takes one unit, and an exclusive operator all units). This is the multi-mode
resource-constrained project scheduling problem (Brucker et al., EJOR 112, 1999, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from phaze_opt.arrays import BoolArray, IntArray
from phaze_opt.compiled import inlined
from phaze_opt.on_demand import cached_property

Time = TypeVar("Time", int, float)

SINGLE, INTRA = 0, 1
"""The two modes: on one core, and on all cores of the type."""

BANDWIDTH_CAPACITY = 10**9
"""Units of a whole bandwidth: shares are rounded to billionths."""

TIME_RESOLUTION = 2**40
"""Integer time units in the sum of the shortest durations of all operators of an instance.

Rounding every duration moves a makespan of 160 operators by less than 1e-10 of it.
"""

WORD = 64
"""Operators in a word of a set."""


@inlined
def in_set(words: IntArray, operator: int) -> bool:
    """Say whether a set of operators, a bit mask over several words, holds one."""
    return bool((words[operator >> 6] >> (operator & 63)) & 1)


@inlined
def add_to_set(words: IntArray, operator: int) -> None:
    """Add an operator to a set."""
    words[operator >> 6] |= 1 << (operator & 63)


@dataclass(frozen=True, eq=False)
class Instance:
    """A part of a problem in which every operator has a positive duration.

    Operators are numbered topologically.

    Attributes
    ----------
    duration : (operators, 2)
        In each mode, in time units, positive.
    allowed : (operators, 2)
        The modes that some shortest schedule may use.
    demand : (operators, 2, resources)
        In each mode, only of resources that can bind.
    capacity : (resources,)
        Amount of each of these resources.
    ancestors, descendants : (operators, words)
        Sets of operators as bit masks, transitively closed.
    seconds_per_unit
        Length of a time unit.
    """

    duration: IntArray
    allowed: BoolArray
    demand: IntArray
    capacity: IntArray
    ancestors: IntArray
    descendants: IntArray
    seconds_per_unit: float

    @property
    def arrays(self) -> tuple[IntArray, BoolArray, IntArray, IntArray, IntArray, IntArray]:
        """All arrays, in the order in which compiled functions take them."""
        return (
            self.duration,
            self.allowed,
            self.demand,
            self.capacity,
            self.ancestors,
            self.descendants,
        )

    @property
    def size(self) -> int:
        """Number of operators."""
        return len(self.duration)

    @cached_property
    def modes(self) -> tuple[tuple[int, ...], ...]:
        """The allowed modes of each operator."""
        return tuple(tuple(np.flatnonzero(row).tolist()) for row in self.allowed)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Direct predecessors of each operator, the last one first."""
        return direct_predecessors(self.ancestors)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Direct successors of each operator."""
        after: list[list[int]] = [[] for _ in self.predecessors]
        for i, before in enumerate(self.predecessors):
            for j in before:
                after[j].append(i)
        return tuple(map(tuple, after))


def direct_predecessors(ancestors: IntArray) -> tuple[tuple[int, ...], ...]:
    """List the ancestors of each operator that precede no other one of them, the last one first.

    Parameters
    ----------
    ancestors : (operators, words)
        Transitively closed; operators are numbered topologically.
    """
    masks = [int.from_bytes(row.astype("<i8").tobytes(), "little") for row in ancestors]
    allowed: list[tuple[int, ...]] = []
    for mask in masks:
        own, rest = [], mask
        while rest:
            # The operator with the highest number precedes no other one of the set.
            last = rest.bit_length() - 1
            own.append(last)
            rest &= ~(masks[last] | 1 << last)
        allowed.append(tuple(own))
    return tuple(allowed)


@dataclass(frozen=True)
class Plan:
    """Start and mode of every operator of an instance, and the makespan, in time units."""

    start: tuple[int, ...]
    mode: tuple[int, ...]
    makespan: int

    @classmethod
    def of(cls, plan: IntArray, makespan: int) -> Plan:
        """Return the plan whose starts and modes are the columns of an array."""
        start, mode = plan.T.tolist()
        return cls(tuple(start), tuple(mode), makespan)


def proving_bound(makespan: int) -> int:
    """Give the least lower bound that proves a makespan optimal: within 1e-9 of the makespan."""
    return makespan - (makespan >> 30)


within_proof = inlined(proving_bound)
"""The same for compiled code."""


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
