"""Splits that need not be contiguous, and least latency, with integer programs for CP-SAT.

Least latency is left to the program only where `latency_search` has no proof.

The two programs are those of M. Tarnawski et al., "Efficient algorithms for device placement of
DNN graph operators" (NeurIPS 2020), sections 3 and 4. Costs are rounded down to integers, so that
the solver's bound holds for the costs without rounding, from which the reported value is computed.
CP-SAT's deterministic seconds limit the effort, so that equal inputs give equal answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.partitioning.dag import (
    Device,
    DeviceAssignment,
    describe_assignment,
    largest_load,
    share_bound,
    split_contiguous,
    why_infeasible,
)
from phaze_opt.partitioning.dnn_format import DnnProblem
from phaze_opt.partitioning.downsets import TooManyDownsetsError
from phaze_opt.partitioning.latency import CPU, finishes, greedy, latency_of, longest_path
from phaze_opt.partitioning.latency_search import STEPS_PER_S, search_latency
from phaze_opt.partitioning.unit_graph import UnitGraph, build_unit_graph

STEPS = 10**9
"""Integer steps in the value of the first known assignment: rounding loses less than 1e-6 of it."""

PROVEN = 1e-6
"""Relative gap up to which an assignment counts as proven, because of the rounding."""

_MOST_BYTES, _KEPT_BITS = 2**62, 48
"""Sizes are added up exactly up to this sum; else so many leading bits of the room are kept."""

DETERMINISTIC_S = 8.0
"""Default effort, in CP-SAT's deterministic seconds."""


def split_any(problem: DnnProblem, deterministic_s: float = DETERMINISTIC_S) -> DeviceAssignment:
    """Find the split with the least largest load, contiguous or not.

    Parameters
    ----------
    problem
        The file's content.
    deterministic_s
        Largest effort. The answer is never worse than the best contiguous split.

    Raises
    ------
    InfeasibleError
        If no split fits, or none is known and none was found within the effort.
    """
    began = time.perf_counter()
    graph = build_unit_graph(problem, contiguous=False)
    least = share_bound(graph)
    known = _contiguous_devices(problem, graph)
    value = None if known is None else largest_load(graph, _group_by_device(known))
    better, bound = None, least
    if value is None or value > least:
        model = _SplitModel(graph, value)
        model.minimise_load(least)
        better, proven = model.solve(known, deterministic_s)
        bound = max(proven, least)
    options = [_group_by_device(device) for device in (known, better) if device is not None]
    if not options:
        raise InfeasibleError(why_infeasible(graph))
    best = min(options, key=lambda devices: largest_load(graph, devices))
    return describe_assignment(graph, best, bound, began, rounding=PROVEN)


def least_latency(
    problem: DnnProblem, deterministic_s: float = DETERMINISTIC_S
) -> DeviceAssignment:
    """Find the placement of an inference graph with the least latency of one sample.

    Parameters
    ----------
    problem
        The file's content, without backward operators.
    deterministic_s
        Largest effort of the dynamic program over downsets, and of the integer program for what
        that leaves open. The answer is never worse than the greedy placements.

    Raises
    ------
    InputError
        If there are backward operators.
    InfeasibleError
        If no placement fits.
    """
    began = time.perf_counter()
    if any(node.backward for node in problem.nodes):
        raise InputError(
            "Latency is defined for inference graphs, but this one has backward nodes."
        )
    graph = build_unit_graph(problem)
    bound, options = longest_path(graph), [greedy(graph)]
    least = latency_of(graph, options[0])
    try:
        found, below = search_latency(graph, least, round(deterministic_s * STEPS_PER_S))
        bound = max(bound, below)
        options += [found] if found is not None else []
    except TooManyDownsetsError:
        pass
    best = _shortest(graph, options)
    if bound < latency_of(graph, best) * (1.0 - PROVEN):
        # What the exact search leaves open: as good a start as there is, then CP-SAT.
        contiguous = _contiguous_devices(problem, graph)
        if contiguous is not None:
            options.append([max(number, CPU) for number in contiguous])
        best = _shortest(graph, options)
        value = latency_of(graph, best)
        hint = best if math.isfinite(value) else None
        model = _SplitModel(graph, value if hint is not None else None)
        model.minimise_latency()
        better, below = model.solve(hint, deterministic_s)
        bound = max(bound, below)
        best = _shortest(graph, [best] if better is None else [best, better])
    if math.isinf(latency_of(graph, best)):
        raise InfeasibleError(why_infeasible(graph))
    return describe_assignment(
        graph,
        _group_by_device(best),
        bound,
        began,
        value=latency_of(graph, best),
        rounding=PROVEN,
    )


def _shortest(graph: UnitGraph, options: Sequence[list[int]]) -> list[int]:
    """Return the placement with the least latency, the first of equal ones."""
    return min(options, key=lambda device: latency_of(graph, device))


def _contiguous_devices(problem: DnnProblem, graph: UnitGraph) -> list[int] | None:
    """Return the device of every unit in the best contiguous split, or None."""
    contiguous = build_unit_graph(problem)
    try:
        split = split_contiguous(contiguous)
    except InfeasibleError:
        return None
    device_of: dict[int, int] = {}
    accelerators, cpus = 0, 0
    for kind, units in split.devices:
        # Accelerators are 1, 2, …; CPUs 0, −1, ….
        accelerators, cpus = accelerators + (kind != "cpu"), cpus + (kind == "cpu")
        number = accelerators if kind != "cpu" else 1 - cpus
        for unit in units:
            device_of.update(dict.fromkeys(contiguous.units[unit].members, number))
    return [device_of[unit.members[0]] for unit in graph.units]


def _group_by_device(device: Sequence[int]) -> list[Device]:
    """Group units by the number of their device; accelerators come first."""
    return [
        (
            "cpu" if number <= CPU else "accelerator",
            tuple(unit for unit, where in enumerate(device) if where == number),
        )
        for number in sorted(set(device), key=lambda number: (number <= CPU, abs(number)))
    ]


class _SplitModel:
    """One integer program: a boolean per unit and device, and the cost of the devices.

    Parameters
    ----------
    graph
        Units and devices.
    known
        Value of a known assignment, if there is one; it sets the length of an integer step.
    """

    def __init__(self, graph: UnitGraph, known: float | None) -> None:
        from ortools.sat.python import cp_model

        self.graph = graph
        self.cp_model = cp_model
        self.model: Any = cp_model.CpModel()
        largest = known if known is not None else self._worst()
        self.step = largest / STEPS if largest > 0 else 1.0
        self.horizon = STEPS if known is not None else 4 * STEPS
        self.on: list[dict[int, Any]] = []
        self.objective = self.model.new_int_var(0, self.horizon, "objective")
        self.moved: dict[tuple[int, int], Any] = {}
        self.times: dict[str, Any] = {}

    def _worst(self) -> float:
        """Return an upper bound on the value of the best assignment."""
        finite = [u.accelerator_latency for u in self.graph.units]
        total = sum(latency for latency in finite if math.isfinite(latency))
        total += sum(unit.cpu_latency for unit in self.graph.units)
        return total + 2 * sum(tensor.cost for tensor in self.graph.tensors)

    def _steps(self, cost: float) -> int:
        """Round a cost down to integer steps."""
        return int(min(cost / self.step, 8 * STEPS))

    def _add_devices(self, numbers: Sequence[int]) -> None:
        """Put every unit on exactly one device that supports it, within the memory."""
        for index, unit in enumerate(self.graph.units):
            possible = [n for n in numbers if n <= CPU or math.isfinite(unit.accelerator_latency)]
            self.on.append({n: self.model.new_bool_var(f"on{index}_{n}") for n in possible})
            self.model.add_exactly_one(self.on[-1].values())
        # Sizes are rounded up to bytes, so that the units of a solution fit.
        sizes, room = _within_64_bits(
            [math.ceil(unit.size_bytes) for unit in self.graph.units], int(self.graph.memory_bytes)
        )
        for number in numbers:
            if number > CPU:
                held = sum(
                    s * on[number] for s, on in zip(sizes, self.on, strict=True) if number in on
                )
                self.model.add(held <= room)

    def _transfer_steps(self, number: int) -> Any:
        """Return one transfer of each tensor with ends inside and outside an accelerator."""
        terms = []
        for index, tensor in enumerate(self.graph.tensors):
            steps = self._steps(tensor.cost)
            if steps == 0:
                continue
            moved = self.model.new_bool_var(f"moved{index}_{number}")
            made = self.on[tensor.producer].get(number, 0)
            for unit in tensor.consumers:
                used = self.on[unit].get(number, 0)
                self.model.add(moved >= made - used)
                self.model.add(moved >= used - made)
            self.moved[index, number] = moved
            terms.append(steps * moved)
        return sum(terms)

    def _work_steps(self, number: int) -> Any:
        """Return the latency of the units on a device."""
        latencies = [
            unit.cpu_latency if number <= CPU else unit.accelerator_latency
            for unit in self.graph.units
        ]
        return sum(
            self._steps(latency) * on[number]
            for latency, on in zip(latencies, self.on, strict=True)
            if number in on
        )

    def minimise_load(self, bound: float) -> None:
        """Minimise the largest load."""
        accelerators = list(range(1, self.graph.accelerators + 1))
        cpus = [-number for number in range(self.graph.cpus)]
        self._add_devices(accelerators + cpus)
        for number in accelerators:
            load = self._work_steps(number) + self._transfer_steps(number)
            self.model.add(load <= self.objective)
        for number in cpus:
            self.model.add(self._work_steps(number) <= self.objective)
        lost = len(self.graph.units) + len(self.graph.tensors)
        self.model.add(self.objective >= max(0, self._steps(bound) - lost))
        self.model.minimize(self.objective)

    def minimise_latency(self) -> None:
        """Minimise the time at which the output of the last unit is available."""
        accelerators = list(range(1, self.graph.accelerators + 1))
        self._add_devices(accelerators + ([CPU] if self.graph.cpus else []))
        times = self.times = {
            name: self.model.new_int_var(0, self.horizon, name)
            for name in [f"start{number}" for number in accelerators]
            + [f"finish{number}" for number in accelerators]
            + [f"ready{unit}" for unit in range(len(self.on))]
        }
        for number in accelerators:
            work = self._work_steps(number) + self._transfer_steps(number)
            finish = times[f"finish{number}"]
            self.model.add(finish == times[f"start{number}"] + work)
            for unit, on in enumerate(self.on):
                if number in on:
                    self.model.add(times[f"ready{unit}"] == finish).only_enforce_if(on[number])
        for source, destination in self.graph.edges:
            self._add_precedence(source, destination, times)
        for unit, on in enumerate(self.on):
            ready = times[f"ready{unit}"]
            self.model.add(ready <= self.objective)
            if CPU in on:
                latency = self._steps(self.graph.units[unit].cpu_latency)
                self.model.add(ready >= latency).only_enforce_if(on[CPU])
        self.model.minimize(self.objective)

    def _add_precedence(self, source: int, destination: int, times: dict[str, Any]) -> None:
        """Let a unit on the CPUs, or the subgraph of its accelerator, wait for a predecessor."""
        before = times[f"ready{source}"]
        for number, here in self.on[destination].items():
            if number == CPU:
                latency = self._steps(self.graph.units[destination].cpu_latency)
                after = times[f"ready{destination}"]
                self.model.add(after >= before + latency).only_enforce_if(here)
                continue
            conditions = [here]
            if number in self.on[source]:
                conditions.append(self.on[source][number].negated())
            self.model.add(times[f"start{number}"] >= before).only_enforce_if(*conditions)

    def solve(
        self, hint: Sequence[int] | None, deterministic_s: float
    ) -> tuple[list[int] | None, float]:
        """Return the best device of every unit, or None, and a bound in the file's unit."""
        if hint is not None:
            self._add_hint(hint)
        status, solver = self._run(deterministic_s)
        if status not in (self.cp_model.OPTIMAL, self.cp_model.FEASIBLE):
            return None, 0.0
        device = [
            next(number for number, variable in on.items() if solver.value(variable))
            for on in self.on
        ]
        bound = max(0.0, solver.best_objective_bound)
        closes = solver.objective_value - bound <= PROVEN * bound
        if closes and not self._is_confirmed(bound, deterministic_s):
            bound = 0.0
        return device, bound * self.step

    def _is_confirmed(self, bound: float, deterministic_s: float) -> bool:
        """Whether nothing below a bound exists, by a search that takes the program as it stands.

        The solver's presolve has proven optima that were none, see
        `phaze_opt.scheduling.cp_sat_exact`: what closes a gap is proven once more without it.
        """
        self.model.clear_objective()
        self.model.clear_hints()
        self.model.add(self.objective < math.ceil(bound))
        status, _ = self._run(deterministic_s, cp_model_presolve=False)
        return bool(status == self.cp_model.INFEASIBLE)

    def _run(self, deterministic_s: float, **parameters: Any) -> tuple[Any, Any]:
        """Run the solver with one worker; equal programs and efforts give equal answers."""
        solver = self.cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        # With interleaving, one worker alternates reproducibly between neighbourhood searches and
        # the proof. With symmetry breaking among equal devices, the hint would be infeasible.
        solver.parameters.interleave_search = True
        solver.parameters.symmetry_level = 0
        solver.parameters.max_deterministic_time = deterministic_s
        for name, value in parameters.items():
            setattr(solver.parameters, name, value)
        return solver.solve(self.model), solver

    def _add_hint(self, device: Sequence[int]) -> None:
        """Hint at a known assignment, with the value of every variable."""
        for on, where in zip(self.on, device, strict=True):
            for number, variable in on.items():
                self.model.add_hint(variable, number == where)
        for (index, number), variable in self.moved.items():
            tensor = self.graph.tensors[index]
            inside = {device[unit] == number for unit in (tensor.producer, *tensor.consumers)}
            self.model.add_hint(variable, len(inside) > 1)
        if not self.times:
            return
        known = finishes(self.graph, device, self._steps)
        for number in range(1, self.graph.accelerators + 1):
            start, finish = map(int, known.get(-number, (0, 0)))
            self.model.add_hint(self.times[f"start{number}"], start)
            self.model.add_hint(self.times[f"finish{number}"], finish)
        for unit, where in enumerate(device):
            ready = int(known[unit if where == CPU else -where][1])
            self.model.add_hint(self.times[f"ready{unit}"], ready)
        self.model.add_hint(self.objective, int(max(finish for _, finish in known.values())))


def _within_64_bits(sizes: Sequence[int], room: int) -> tuple[Sequence[int], int]:
    """Scale down sizes whose sums, or a room that, 64 bits cannot hold; what fits then fits."""
    if sum(sizes) <= _MOST_BYTES and room <= _MOST_BYTES:
        return sizes, room
    room = min(room, sum(sizes))
    shift = max(0, room.bit_length() - _KEPT_BITS)
    room >>= shift
    # Rounded up; what is larger than the room need not be known.
    return [min(-(-size >> shift), room + 1) for size in sizes], room
