"""Order and modes of one instance with CP-SAT: the scheduling problem without residency.

What is small is solved exactly (`cp_sat_exact`). For what that leaves open, and what is larger, a
coarser model has better plans and bounds: every operator has a start, a Boolean for its mode where
it has two, and for each mode an optional interval of fixed size; the demands of the intervals on a
resource form a cumulative constraint. The list schedule is the hint and gives the horizon, and
heads and tails limit the starts. Its time units are rounded, so it proves little by itself.
"""

from __future__ import annotations

import logging
from typing import Any

from phaze_opt.scheduling.bounds import Bounds
from phaze_opt.scheduling.cp_sat import SolverAnswer, minimise, new_model
from phaze_opt.scheduling.cp_sat_exact import EFFORT_PER_CONFLICT, Overlaps, Ranks
from phaze_opt.scheduling.cp_sat_order import smallest_units
from phaze_opt.scheduling.instance import (
    INTRA,
    SINGLE,
    Instance,
    Plan,
    proving_bound,
    starts_in_order,
)

_log = logging.getLogger(__name__)

_TIME_BITS = 18
"""Integer time units in the horizon, as a power of two, where the resources allow that many. The
solver's bounds creep unit by unit where starts conflict, so more units take much longer; these lose
at most 4e-6 of the makespan per operator, in the bound and in the choice between plans."""

MOST_EXACT = 32
"""Most operators of an exact model: nearly all layers up to 25 are solved, hardly any above 32."""

_MANY, _LESS_ON_MANY = 64, 4
"""On more operators, the coarse model takes so many times less effort: a million of it is three
seconds there, and on five of six wide graphs all of it found nothing after the local search and
the bound by sets."""

_PRODUCT_BITS = 58
"""The sum over operators of duration × demand stays below this power of two."""


class _ModesModel:
    """The variables of one instance, whose durations are coarser and rounded down."""

    def __init__(self, instance: Instance, bounds: Bounds, known: Plan) -> None:
        self.instance, self.known = instance, known
        self.length: list[list[int]] = instance.duration.tolist()
        self.model = new_model()
        demand, capacity = smallest_units(instance)
        bits = _PRODUCT_BITS - max([amount.bit_length() for amount in capacity], default=0)
        bits = min(_TIME_BITS, bits - instance.size.bit_length())
        # At least 1, so that operators keep their order.
        self.units = max(1, known.makespan >> bits)
        self.duration = [[max(1, length // self.units) for length in pair] for pair in self.length]
        chosen = [pair[mode] for pair, mode in zip(self.duration, known.mode, strict=True)]
        end = [
            start + pair[mode]
            for start, pair, mode in zip(known.start, self.length, known.mode, strict=True)
        ]
        self.known_start = starts_in_order(known.start, end, chosen, 0)
        self.horizon = max(map(sum, zip(self.known_start, chosen, strict=True)))
        self.hint: list[tuple[Any, int]] = []
        self.start: list[Any] = []
        self.on_all: list[Any] = []
        self.ends: list[Any] = []
        intervals = self._add_operators()
        for resource, amount in enumerate(capacity):
            used = [
                (interval, demand[i][mode][resource])
                for (i, mode), interval in intervals.items()
                if demand[i][mode][resource] > 0
            ]
            if used:
                self.model.add_cumulative(*zip(*used, strict=True), amount)
        self.makespan = self.model.new_int_var(
            min(self.horizon, max(0, bounds.makespan // self.units - instance.size)),
            self.horizon,
            "makespan",
        )
        self.hint.append((self.makespan, self.horizon))
        for end_variable in self.ends:
            self.model.add(self.makespan >= end_variable)

    def _add_operators(self) -> dict[tuple[int, int], Any]:
        """Add starts, modes and precedences, and return the interval of every mode."""
        instance, model = self.instance, self.model
        least = [
            min(pair[mode] for mode in kept)
            for pair, kept in zip(self.duration, instance.modes, strict=True)
        ]
        head, tail = [0] * instance.size, list(least)
        for i in range(instance.size):
            head[i] = max([head[j] + least[j] for j in instance.predecessors[i]], default=0)
        for i in range(instance.size - 1, -1, -1):
            tail[i] += max([tail[j] for j in instance.successors[i]], default=0)
        intervals = {}
        for i, modes in enumerate(instance.modes):
            start = model.new_int_var(head[i], max(head[i], self.horizon - tail[i]), f"start{i}")
            self.hint.append((start, self.known_start[i]))
            single, on_all = self.duration[i]
            if len(modes) == 1:
                mode = modes[0]
                length = self.duration[i][mode]
                intervals[i, mode] = model.new_fixed_size_interval_var(start, length, f"run{i}")
                chosen: Any = mode
            else:
                chosen = model.new_bool_var(f"on_all{i}")
                self.hint.append((chosen, self.known.mode[i]))
                for mode, present in ((SINGLE, ~chosen), (INTRA, chosen)):
                    intervals[i, mode] = model.new_optional_fixed_size_interval_var(
                        start, self.duration[i][mode], present, f"run{i}_{mode}"
                    )
            self.start.append(start)
            self.on_all.append(chosen)
            self.ends.append(start + single + (on_all - single) * chosen)
            for before in instance.predecessors[i]:
                model.add(start >= self.ends[before])
        return intervals

    def solve(self, effort: int) -> tuple[Plan, int]:
        """Return the best plan, never longer than the known one, and a lower bound."""
        solved = minimise(
            self.model,
            self.makespan,
            self.hint,
            effort,
            linearization_level=1,
            max_number_of_conflicts=max(1, effort // EFFORT_PER_CONFLICT),
        )
        # Durations were rounded down, so the bound holds for the true ones, but for the operators
        # that had to be lengthened to one unit.
        longer = sum(min(pair) < self.units for pair in self.length)
        bound = min((solved.bound - longer) * self.units, self.known.makespan)
        if solved.denied:
            # The instance has no mode that only plans as long as the known one need.
            return self.known, proving_bound(self.known.makespan)
        if solved.values is None:
            return self.known, 0
        read = self._read(solved)
        return min(read, self.known, key=lambda plan: plan.makespan), bound

    def _read(self, solved: SolverAnswer) -> Plan:
        """Read the plan, with the durations of the instance in the solver's order."""
        mode = [mode if isinstance(mode, int) else solved.value(mode) for mode in self.on_all]
        start = [solved.value(variable) for variable in self.start]
        coarse = [pair[number] for pair, number in zip(self.duration, mode, strict=True)]
        end = list(map(sum, zip(start, coarse, strict=True)))
        length = [pair[number] for pair, number in zip(self.length, mode, strict=True)]
        fine = starts_in_order(start, end, length, 0)
        return Plan(tuple(fine), tuple(mode), max(map(sum, zip(fine, length, strict=True))))


def improve_with_cp_sat(
    instance: Instance, bounds: Bounds, hint: Plan, known: Plan, proven: int, effort: int
) -> tuple[Plan, int]:
    """Search for the shortest plan with CP-SAT.

    Parameters
    ----------
    instance
        The operators to schedule.
    bounds, hint
        Lower bounds of the instance and a valid plan, with which the solver begins.
    known, proven
        The best plan and the highest lower bound known, on which the search does not depend.
    effort
        Deterministic time to spend on each model; a million stand for about a second.

    Returns
    -------
    The best plan known, and a lower bound on the makespan in time units. Where it proves the plan
    optimal, CP-SAT proved that with two models.
    """
    best, bound = known, proven
    if instance.size <= MOST_EXACT:
        better, claim = Overlaps(instance, bounds, hint).solve(effort)
        best = min(best, better or best, key=lambda plan: plan.makespan)
        best, bound = _check(instance, best, proven, claim, effort)
    if bound < proving_bound(best.makespan):
        less = _LESS_ON_MANY if instance.size > _MANY else 1
        better, claim = _ModesModel(instance, bounds, hint).solve(effort // less)
        best = min(best, better, key=lambda plan: plan.makespan)
        best, bound = _check(instance, best, proven, max(bound, claim), effort)
    return best, bound


def _check(
    instance: Instance, best: Plan, proven: int, claim: int, effort: int
) -> tuple[Plan, int]:
    """Give the best plan, and a lower bound: no proof of that plan that no second model confirms.

    Parameters
    ----------
    instance
        The operators to schedule.
    best
        The best plan known.
    proven, claim
        Lower bound that needs no confirmation, and CP-SAT's.
    effort
        See `improve_with_cp_sat`.
    """
    proof = proving_bound(best.makespan)
    if claim < proof or proven >= proof:
        return best, max(claim, proven)
    shorter, denied = Ranks(instance, proof - 1).solve(effort)
    if denied:
        return best, proof
    if shorter is not None:
        _log.warning(
            "CP-SAT's bound of %d time units for %d operators is wrong: its second model has a "
            "schedule of %d. The bound is dropped.",
            claim,
            instance.size,
            shorter.makespan,
        )
        best = shorter
    return best, proven
