"""A second CP-SAT model of the joint problem: whether any plan is shorter than the best one known.

It checks what `cp_sat_residency` proves, and is built in another way: operators and resident
tensors are intervals over the positions of the order, in one cumulative constraint of bytes. What
the precedences alone say about the tensors that an operator finds in the buffer is written as sums
too, without which the solver proves little. It runs without presolve, see `cp_sat_exact`.
"""

from __future__ import annotations

import logging
import math
from itertools import combinations
from typing import Any

from phaze_opt.scheduling.cp_sat import SolverAnswer, decide, new_model
from phaze_opt.scheduling.residency import (
    EvaluatedPlan,
    Residency,
    ResidencyPlan,
    evaluate_plan,
)

_TIME_UNITS = 2**30
"""Integer time units in the makespan of the best plan; rounding makes no plan longer."""

_log = logging.getLogger(__name__)


class _PositionsModel:
    """Plans of at most some seconds.

    Attributes
    ----------
    position
        Of every operator in the order.
    resident
        Boolean of every tensor.
    at_level
        Boolean of every operator and level.
    held
        For every operator, the bytes that are in the buffer with it in every order.
    """

    def __init__(self, residency: Residency, known: EvaluatedPlan, limit_s: float) -> None:
        self.residency = residency
        self.model = new_model()
        self.unit_s = known.makespan_s / _TIME_UNITS
        graph, levels = residency.graph, range(residency.levels)
        sizes = [residency.glb_bytes, *graph.tensor_bytes.tolist()]
        # Levels that never fit keep their size, which only has to exceed the buffer.
        self.scale = math.gcd(*sizes, *residency.working_bytes.reshape(-1).tolist()) or 1
        self.ancestors = ancestors_of(residency, known.plan.order)
        self._add_order()
        self.resident = [self._boolean() for _ in graph.tensors]
        self.at_level = [[self._boolean() for _ in levels] for _ in self.position]
        self.loads: dict[tuple[int, int], Any] = {}
        self.intervals: list[tuple[Any, int]] = []
        self.held: list[list[Any]] = [[] for _ in self.position]
        for i in range(graph.operators):
            self._add_levels(i)
        for number in range(len(graph.tensors)):
            self._add_tensor(number)
        room = residency.glb_bytes // self.scale
        if self.intervals:
            self.model.add_cumulative(*zip(*self.intervals, strict=True), room)
        for held in self.held:
            if held:
                self.model.add(sum(held) <= room)
        busy_s = limit_s - float(residency.overhead_s.sum())
        self.most = max(0, math.ceil(busy_s / self.unit_s) - 1)
        durations = [self._add_duration(i) for i in range(graph.operators)]
        self.model.add(sum(durations) <= self.most)

    def _boolean(self) -> Any:
        """Add a Boolean."""
        return self.model.new_bool_var("")

    def _add_order(self) -> None:
        """Give every operator a position of its own, as the precedences allow."""
        model, ancestors = self.model, self.ancestors
        n = len(ancestors)
        self.position = [
            model.new_int_var(
                ancestors[i].bit_count(), n - 1 - sum(mask >> i & 1 for mask in ancestors), ""
            )
            for i in range(n)
        ]
        model.add_all_different(self.position)
        for source, target in set(self.residency.graph.edges):
            model.add(self.position[source] < self.position[target])
        for i, j in combinations(range(n), 2):
            if not (ancestors[i] >> j | ancestors[j] >> i) & 1:
                first = self._boolean()
                model.add(self.position[i] < self.position[j]).only_enforce_if(first)
                model.add(self.position[j] < self.position[i]).only_enforce_if(~first)

    def _occupy(self, interval: Any, size: int) -> None:
        """Let an interval take bytes of the buffer."""
        if size:
            self.intervals.append((interval, size // self.scale))

    def _add_levels(self, operator: int) -> None:
        """Choose one level of an operator, whose working bytes take a unit of the order."""
        model, position = self.model, self.position[operator]
        model.add_exactly_one(self.at_level[operator])
        for chosen, size in zip(
            self.at_level[operator], self.residency.working_bytes[operator].tolist(), strict=True
        ):
            if size > self.residency.glb_bytes:
                model.add(chosen == 0)
                continue
            self._occupy(model.new_optional_fixed_size_interval_var(position, 1, chosen, ""), size)
            self.held[operator].append(size // self.scale * chosen)

    def _add_tensor(self, number: int) -> None:
        """Let a resident tensor take its bytes from its first access to its last."""
        model, graph = self.model, self.residency.graph
        tensor, resident = graph.tensors[number], self.resident[number]
        n = graph.operators
        if tensor.producer is not None:
            start = self.position[tensor.producer]
        else:
            start = model.new_int_var(0, n - 1, "")
            for reader in tensor.readers:
                loads = self._boolean()
                self.loads[number, reader] = loads
                model.add(start <= self.position[reader])
                model.add(start == self.position[reader]).only_enforce_if(loads)
            # One reader, the first, loads a resident input.
            model.add(sum(self.loads[number, reader] for reader in tensor.readers) == resident)
        if tensor.bytes > self.residency.glb_bytes:
            model.add(resident == 0)
            return
        size, end = model.new_int_var(1, n, ""), model.new_int_var(1, n, "")
        model.add(start + size == end)
        for access in tensor.accesses:
            model.add(end > self.position[access])
        self._occupy(model.new_optional_interval_var(start, size, end, resident, ""), tensor.bytes)
        for i in range(n):
            if i in tensor.accesses or self._spans(number, i):
                self.held[i].append(tensor.bytes // self.scale * resident)

    def _spans(self, number: int, operator: int) -> bool:
        """Whether accesses of a tensor must come before and after an operator."""
        accesses = self.residency.graph.tensors[number].accesses
        before = any(self.ancestors[operator] >> access & 1 for access in accesses)
        return before and any(self.ancestors[access] >> operator & 1 for access in accesses)

    def _add_duration(self, operator: int) -> Any:
        """Add the duration of an operator, without its constant overhead."""
        residency, model, chosen = self.residency, self.model, self.at_level[operator]
        graph = residency.graph
        per_unit = residency.hbm_bytes_per_s * self.unit_s
        other = [int(seconds / self.unit_s) for seconds in residency.other_s[operator].tolist()]
        flow = sum(
            int(size / per_unit) * level
            for size, level in zip(residency.hbm_bytes[operator].tolist(), chosen, strict=True)
        )
        first, numbers = graph.accesses_by_operator
        for access in numbers[first[operator] : first[operator + 1]].tolist():
            number = int(graph.access_tensor[access])
            # The tensor is resident at one of the levels, or not at all.
            stays = [self._boolean() for _ in chosen]
            model.add(sum(stays) == self.resident[number])
            saved = residency.effective_saved_bytes[access].tolist()
            for here, level, size_bytes in zip(stays, chosen, saved, strict=True):
                model.add_implication(here, level)
                flow -= math.ceil(size_bytes / per_unit) * here
            if (number, operator) in self.loads:
                flow += int(graph.tensors[number].bytes / per_unit) * self.loads[number, operator]
        duration = model.new_int_var(0, self.most, "")
        model.add(duration >= sum(time * level for time, level in zip(other, chosen, strict=True)))
        model.add(duration >= flow)
        return duration

    def read(self, solved: SolverAnswer) -> EvaluatedPlan:
        """Read the plan."""
        places = [solved.value(variable) for variable in self.position]
        plan = ResidencyPlan(
            tuple(sorted(range(len(places)), key=places.__getitem__)),
            tuple(
                next(k for k, level in enumerate(chosen) if solved.value(level))
                for chosen in self.at_level
            ),
            tuple(bool(solved.value(variable)) for variable in self.resident),
        )
        return evaluate_plan(self.residency, plan)


def check_proof(
    residency: Residency, best: EvaluatedPlan, claim_s: float, limit_s: float, effort: int
) -> tuple[EvaluatedPlan, float]:
    """Ask a second model whether a plan is the shortest.

    Parameters
    ----------
    residency
        The joint problem.
    best
        The best plan known.
    claim_s
        CP-SAT's lower bound.
    limit_s
        The claim proves that no plan is shorter than this.
    effort
        Deterministic time to spend; a million stand for about a second.

    Returns
    -------
    The best plan, and the bound, which is 0 unless the second model confirms it.
    """
    model = _PositionsModel(residency, best, limit_s)
    solved = decide(model.model, effort)
    if solved.denied:
        return best, claim_s
    if solved.values is not None:
        shorter = model.read(solved)
        if shorter.makespan_s < limit_s:
            _log.warning(
                "CP-SAT's bound of %r s for %d operators is wrong: its second model has a "
                "schedule of %r s. The bound is dropped.",
                claim_s,
                residency.graph.operators,
                shorter.makespan_s,
            )
            best = shorter
    return best, 0.0


def ancestors_of(residency: Residency, order: tuple[int, ...]) -> list[int]:
    """Give the operators that must precede each operator, as bit masks.

    Parameters
    ----------
    residency
        The joint problem.
    order
        Any order that its precedences allow.
    """
    before: list[list[int]] = [[] for _ in order]
    for source, target in residency.graph.edges:
        before[target].append(source)
    ancestors = [0] * len(order)
    for operator in order:
        for other in before[operator]:
            ancestors[operator] |= ancestors[other] | 1 << other
    return ancestors
