"""The joint problem of order, levels and residency as a CP-SAT model.

Operators run one at a time without idle time, so the makespan is the sum of their durations, and
of the order only who precedes whom matters: a Boolean for every pair of operators that the
precedences leave open, and a position for every operator. A tensor has a Boolean for residency; at
an operator it is present if it is resident, an access of it is at or before the operator, and one
is at or after it. For every operator, the bytes of the tensors present and the working bytes of its
level must fit the global buffer. Its duration is at least the other time of its level, and at least
the HBM time of its level less what the resident tensors save.

The solver runs without probing in its presolve: with it, and one search instead of several that
alternate, ortools 9.15.6755 proved a bound above the optimum for 3 of 2,000 small problems.

This is the cumulative resource of bytes in time, written for one operator at a time: with serial
operators nothing depends on start times, and the sums have strong linear relaxations.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

from phaze_opt.scheduling.cp_sat import SolverAnswer, minimise, new_model
from phaze_opt.scheduling.cp_sat_positions import ancestors_of
from phaze_opt.scheduling.residency import (
    EvaluatedPlan,
    Residency,
    ResidencyPlan,
    evaluate_plan,
)
from phaze_opt.scheduling.residency_search import search_order

TIME_UNITS = 2**30
"""Integer time units in the makespan of the hint. Times that operators take are rounded down and
times that residency saves up, so the model's optimum is never above the true one; the rounding is
below 1e-6 of a makespan of 100 operators."""


class _ResidencyModel:
    """The variables of one problem.

    Attributes
    ----------
    before
        ``[one, other]``: whether an operator comes before another; True or False where the
        precedences say so.
    resident
        Boolean of every tensor.
    at_level
        Boolean of every operator and level.
    """

    def __init__(self, residency: Residency, known: EvaluatedPlan) -> None:
        self.residency = residency
        self.known = known
        self.model = new_model()
        self.unit_s = known.makespan_s / TIME_UNITS
        self.place = {operator: position for position, operator in enumerate(known.plan.order)}
        self.hint: list[tuple[Any, int]] = []
        self._add_order()
        self._add_residency()
        self._add_levels()
        self._add_memory()
        self.duration = [self._add_duration(i) for i in range(residency.graph.operators)]

    def _boolean(self, name: str, hint: bool) -> Any:
        """Add a Boolean with its value in the known plan."""
        variable = self.model.new_bool_var(name)
        self.hint.append((variable, int(hint)))
        return variable

    def _add_order(self) -> None:
        """Order every pair of operators; positions exclude cycles."""
        graph, model = self.residency.graph, self.model
        n = graph.operators
        ancestors = ancestors_of(self.residency, self.known.plan.order)
        descendants = [sum(ancestors[j] >> i & 1 for j in range(n)) for i in range(n)]
        position = []
        for i in range(n):
            lowest, highest = ancestors[i].bit_count(), n - 1 - descendants[i]
            position.append(model.new_int_var(lowest, highest, f"position{i}"))
            self.hint.append((position[i], self.place[i]))
        self.position = position
        self.before: dict[tuple[int, int], Any] = {}
        for source, target in set(graph.edges):
            model.add(position[source] + 1 <= position[target])
        for earlier, other in combinations(range(n), 2):
            if ancestors[other] >> earlier & 1:
                first: Any = True
            elif ancestors[earlier] >> other & 1:
                first = False
            else:
                first = self._boolean(
                    f"before{earlier}_{other}", self.place[earlier] < self.place[other]
                )
                model.add(position[earlier] + 1 <= position[other]).only_enforce_if(first)
                model.add(position[other] + 1 <= position[earlier]).only_enforce_if(~first)
            self.before[earlier, other] = first
            self.before[other, earlier] = (not first) if isinstance(first, bool) else ~first

    def _add_residency(self) -> None:
        """Add a Boolean per tensor; of the readers of a resident input the first one loads it."""
        graph = self.residency.graph
        self.resident = []
        self.loads: dict[tuple[int, int], Any] = {}
        for i, tensor in enumerate(graph.tensors):
            stays = self.known.plan.resident[i]
            resident = self._boolean(f"resident{i}", stays)
            self.resident.append(resident)
            if tensor.producer is not None:
                continue
            first = min(tensor.readers, key=self.place.__getitem__)
            loads = {
                reader: self._boolean(f"loads{i}_{reader}", stays and reader == first)
                for reader in tensor.readers
            }
            self.model.add_bool_or([*loads.values(), ~resident])
            for reader, variable in loads.items():
                for other in tensor.readers:
                    if other != reader:
                        self.model.add_implication(variable, self.before[reader, other])
                self.loads[i, reader] = variable

    def _add_levels(self) -> None:
        """Choose one level of every operator."""
        self.at_level = []
        for i, level in enumerate(self.known.plan.levels):
            choices = [
                self._boolean(f"level{i}_{k}", k == level) for k in range(self.residency.levels)
            ]
            self.model.add_exactly_one(choices)
            self.at_level.append(choices)

    def _add_memory(self) -> None:
        """Keep resident tensors and working bytes within the global buffer."""
        graph, working = self.residency.graph, self.residency.working_bytes
        sizes = [self.residency.glb_bytes, *graph.tensor_bytes.tolist()]
        # Levels that never fit keep their size, which only has to exceed the buffer.
        scale = math.gcd(*sizes, *working.reshape(-1).tolist()) or 1
        for i in range(graph.operators):
            terms = [
                int(working[i, k]) // scale * chosen for k, chosen in enumerate(self.at_level[i])
            ]
            for number, tensor in enumerate(graph.tensors):
                present = self._present(number, i)
                if present is not None:
                    terms.append(tensor.bytes // scale * present)
            self.model.add(sum(terms) <= self.residency.glb_bytes // scale)

    def _present(self, number: int, operator: int) -> Any:
        """Return the literal that a tensor occupies the buffer at an operator, or None if never."""
        tensor = self.residency.graph.tensors[number]
        resident = self.resident[number]
        if operator in tensor.accesses:
            return resident
        openers = tensor.readers if tensor.producer is None else (tensor.producer,)
        opened = [self.before[opener, operator] for opener in openers]
        open_still = [self.before[operator, reader] for reader in tensor.readers]
        starts = [literal for literal in opened if literal is not False]
        ends = [literal for literal in open_still if literal is not False]
        if not starts or not ends:
            return None
        if any(literal is True for literal in starts) and any(literal is True for literal in ends):
            return resident
        here = self._boolean(f"present{number}_{operator}", self._is_present(number, operator))
        starts = [True] if any(literal is True for literal in starts) else starts
        ends = [True] if any(literal is True for literal in ends) else ends
        for start in starts:
            for end in ends:
                conditions = [literal for literal in (start, end) if literal is not True]
                self.model.add_bool_or([~resident, here, *[~literal for literal in conditions]])
        return here

    def _is_present(self, number: int, operator: int) -> bool:
        """Whether a tensor occupies the buffer at an operator of the known plan."""
        positions = [self.place[access] for access in self.residency.graph.tensors[number].accesses]
        stays = min(positions) <= self.place[operator] <= max(positions)
        return stays and self.known.plan.resident[number]

    def _add_duration(self, operator: int) -> Any:
        """Add the duration of an operator, without its constant overhead."""
        residency, model = self.residency, self.model
        graph, chosen = residency.graph, self.at_level[operator]
        per_unit = residency.hbm_bytes_per_s * self.unit_s
        other = [int(seconds / self.unit_s) for seconds in residency.other_s[operator].tolist()]
        flow = [int(size_bytes / per_unit) for size_bytes in residency.hbm_bytes[operator].tolist()]
        flow_terms = [units * level for units, level in zip(flow, chosen, strict=True)]
        most = max(flow)
        first, numbers = graph.accesses_by_operator
        for number in numbers[first[operator] : first[operator + 1]].tolist():
            i = int(graph.access_tensor[number])
            row = residency.effective_saved_bytes[number].tolist()
            saved = [math.ceil(size_bytes / per_unit) for size_bytes in row]
            # What every level saves needs no product of two Booleans.
            least = min(saved)
            flow_terms.append(-least * self.resident[i])
            for k, units in enumerate(saved):
                if units > least:
                    both = self._boolean(
                        f"saves{number}_{k}",
                        self.known.plan.resident[i] and self.known.plan.levels[operator] == k,
                    )
                    model.add_implication(both, self.resident[i])
                    model.add_implication(both, chosen[k])
                    flow_terms.append((least - units) * both)
            if (i, operator) in self.loads:
                load = int(graph.tensors[i].bytes / per_unit)
                flow_terms.append(load * self.loads[i, operator])
                most += load
        duration = model.new_int_var(0, max(*other, most), f"duration{operator}")
        model.add(
            duration >= sum(units * level for units, level in zip(other, chosen, strict=True))
        )
        model.add(duration >= sum(flow_terms))
        return duration

    def solve(self, effort: int) -> tuple[EvaluatedPlan, float]:
        """Return the best plan and a lower bound in seconds."""
        overhead_s = float(self.residency.overhead_s.sum())
        solved = minimise(
            self.model,
            sum(self.duration),
            self.hint,
            effort,
            # One worker alternates reproducibly between searches that prove and that improve.
            interleave_search=True,
            cp_model_probing_level=0,
        )
        bound_s = solved.bound * self.unit_s + overhead_s
        best = self.known
        if solved.values is not None:
            best = min(best, self._read(solved), key=lambda plan: plan.rank)
        # A bound above a plan that exists is an error of the solver, and proves nothing.
        return best, bound_s if bound_s <= best.makespan_s * (1.0 + 1e-6) else 0.0

    def _read(self, solved: SolverAnswer) -> EvaluatedPlan:
        """Read the plan; in its order, the fast method may find one with fewer HBM bytes."""
        n = self.residency.graph.operators
        order = tuple(sorted(range(n), key=lambda i: solved.value(self.position[i])))
        levels = [
            next(k for k, level in enumerate(chosen) if solved.value(level))
            for chosen in self.at_level
        ]
        resident = [bool(solved.value(variable)) for variable in self.resident]
        read = evaluate_plan(self.residency, ResidencyPlan(order, tuple(levels), tuple(resident)))
        again = search_order(self.residency, order)
        return read if again is None else min(again, read, key=lambda plan: plan.rank)


def improve_jointly(
    residency: Residency, known: EvaluatedPlan, effort: int
) -> tuple[EvaluatedPlan, float]:
    """Improve a plan with CP-SAT.

    Parameters
    ----------
    residency
        The joint problem.
    known
        The best plan known, which is the solver's hint.
    effort
        Deterministic time to spend; a million stand for about a second.

    Returns
    -------
    The best plan, never worse than the known one, and a lower bound in seconds.
    """
    if known.makespan_s <= 0.0:
        return known, 0.0
    return _ResidencyModel(residency, known).solve(effort)
