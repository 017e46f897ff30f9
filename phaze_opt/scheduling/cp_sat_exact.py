"""Two CP-SAT models of one instance that round nothing: one finds the optimum, one checks it.

`Overlaps` sums up what runs whenever an operator starts; `Ranks` has intervals over the order of
the starts, in cumulative constraints. Both are solved without the solver's presolve. With it,
ortools 9.15.6755 proved bounds above the optimum for 41 of 200 problems of up to 12 operators
written as `Overlaps`, and denied a plan that exists for 2 written as `Ranks` (without its probing:
42 and 7); without presolve, none.
"""

from __future__ import annotations

from typing import Any

from phaze_opt.scheduling.bounds import Bounds
from phaze_opt.scheduling.cp_sat import decide, minimise
from phaze_opt.scheduling.cp_sat_order import OrderModel, negated
from phaze_opt.scheduling.instance import INTRA, SINGLE, Instance, Plan, proving_bound

EFFORT_PER_CONFLICT = 100
"""Conflicts are limited too: some cost hardly any deterministic time."""

_AREA_BITS = 45
"""Bits to which a whole resource over the horizon is rounded, so that sums stay small."""


class Overlaps(OrderModel):
    """Whatever runs when an operator starts must leave room for it: a sum for each resource.

    A capacity that is exceeded at no start is never exceeded. Plans up to the length of the known
    one are searched.
    """

    def __init__(self, instance: Instance, bounds: Bounds, known: Plan) -> None:
        super().__init__(instance, known.makespan)
        lowest = min(known.makespan, max(0, bounds.makespan))
        self.makespan = self.model.new_int_var(lowest, known.makespan, "makespan")
        for end in self.end:
            self.model.add(end <= self.makespan)
        self._add_transitivity()
        for i in range(instance.size):
            self._add_room(i)
        self._add_areas()
        modes = zip(self.on_all, known.mode, strict=True)
        self.hint = [
            (self.makespan, known.makespan),
            *zip(self.start, known.start, strict=True),
            *[(on_all, mode) for on_all, mode in modes if not isinstance(on_all, int)],
        ]

    def _add_transitivity(self) -> None:
        """Who starts, or ends, before one that starts before a third does so before the third."""
        starts = self.starts_first
        for i, j in self.pairs():
            for k in range(self.instance.size):
                if k not in (i, j):
                    for first in (starts, self.ends_first):
                        self.add_clause(negated(first[i, j]), negated(starts[j, k]), first[i, k])

    def _add_room(self, operator: int) -> None:
        """Limit what runs when an operator starts."""
        model, resources = self.model, range(len(self.capacity))
        taken = [self._amount(operator, r, 1, self.on_all[operator]) for r in resources]
        for other in range(self.instance.size):
            # One that must precede has ended.
            if other == operator or self.exclude[other, operator]:
                continue
            started, ended = (
                first[other, operator] for first in (self.starts_first, self.ends_first)
            )
            if isinstance(started, bool):
                continue
            runs = model.new_bool_var(f"runs{other}_{operator}")
            model.add_bool_or([runs, ~started, ended])
            model.add_bool_and(started, ~ended).only_enforce_if(runs)
            on_all = self.on_all[other]
            if not isinstance(on_all, int):
                on_all = model.new_bool_var(f"runs_on_all{other}_{operator}")
                model.add_bool_or([on_all, ~runs, ~self.on_all[other]])
                model.add_bool_and(runs, self.on_all[other]).only_enforce_if(on_all)
            for r in resources:
                taken[r] += self._amount(other, r, runs, on_all)
        for amount, capacity in zip(taken, self.capacity, strict=True):
            if not isinstance(amount, int):
                model.add(amount <= capacity)

    def _amount(self, operator: int, resource: int, runs: Any, on_all: Any) -> Any:
        """Write what an operator takes of a resource if it runs, and if so on all cores."""
        single, intra = (self.demand[operator][mode][resource] for mode in (SINGLE, INTRA))
        if isinstance(on_all, int):
            return (intra if on_all else single) * runs
        return single * runs + (intra - single) * on_all

    def _add_areas(self) -> None:
        """Demands times durations fit into the makespan, which the solver is slow to see."""
        for r, capacity in enumerate(self.capacity):
            unit = max(1, capacity * self.horizon >> _AREA_BITS)
            area: Any = 0
            for i, lengths in enumerate(self.length):
                areas = [lengths[k] * self.demand[i][k][r] // unit for k in (SINGLE, INTRA)]
                area += areas[SINGLE] + (areas[INTRA] - areas[SINGLE]) * self.on_all[i]
            if not isinstance(area, int):
                self.model.add(area <= capacity * self.horizon // unit)

    def solve(self, effort: int) -> tuple[Plan | None, int]:
        """Return the best plan, if any was found, and a lower bound."""
        solved = minimise(
            self.model,
            self.makespan,
            self.hint,
            effort,
            cp_model_presolve=False,
            max_number_of_conflicts=max(1, effort // EFFORT_PER_CONFLICT),
        )
        if solved.denied:
            # The instance has no mode that only plans as long as the known one need.
            return None, proving_bound(self.horizon)
        return None if solved.values is None else self.read(solved), solved.bound


class Ranks(OrderModel):
    """Every operator has a rank among the starts, and runs up to the rank before which it ends."""

    def __init__(self, instance: Instance, horizon: int) -> None:
        super().__init__(instance, horizon)
        n, model = instance.size, self.model
        self.rank = [model.new_int_var(0, n - 1, f"rank{i}") for i in range(n)]
        self.until = [model.new_int_var(1, n, f"until{i}") for i in range(n)]
        model.add_all_different(self.rank)
        for i, j in self.pairs():
            starts, ends = self.starts_first[i, j], self.ends_first[i, j]
            self._add_if(starts, self.rank[i] + 1 <= self.rank[j])
            self._add_if(ends, self.until[i] <= self.rank[j])
            self._add_if(negated(ends), self.until[i] > self.rank[j])
        intervals = self._add_intervals()
        for r, capacity in enumerate(self.capacity):
            used = [
                (interval, self.demand[i][mode][r])
                for (i, mode), interval in intervals.items()
                if self.demand[i][mode][r] > 0
            ]
            if used:
                model.add_cumulative(*zip(*used, strict=True), capacity)

    def _add_if(self, literal: Any, constraint: Any) -> None:
        """Add a constraint that holds under a literal."""
        if literal is not False:
            added = self.model.add(constraint)
            if literal is not True:
                added.only_enforce_if(literal)

    def _add_intervals(self) -> dict[tuple[int, int], Any]:
        """Return the interval of every operator and mode."""
        model, intervals = self.model, {}
        for i, modes in enumerate(self.instance.modes):
            size = model.new_int_var(1, self.instance.size, f"size{i}")
            span = self.rank[i], size, self.until[i]
            for mode in modes:
                if len(modes) == 1:
                    model.add(self.rank[i] + size == self.until[i])
                    intervals[i, mode] = model.new_interval_var(*span, f"run{i}")
                else:
                    chosen = self.on_all[i] if mode == INTRA else ~self.on_all[i]
                    name = f"run{i}_{mode}"
                    intervals[i, mode] = model.new_optional_interval_var(*span, chosen, name)
        return intervals

    def solve(self, effort: int) -> tuple[Plan | None, bool]:
        """Return a plan within the horizon, if any was found, and whether there is proven none."""
        solved = decide(
            self.model, effort, max_number_of_conflicts=max(1, effort // EFFORT_PER_CONFLICT)
        )
        return None if solved.values is None else self.read(solved), solved.denied
