"""The exact model for CP-SAT, in a formulation that is safe on the supported versions.

Two optional intervals that share start *and end* variables made ortools 9.15 answer "infeasible" on
valid models. Here every operator has one start variable and one Boolean (its mode); its end is the
affine expression ``start + p0 + (p1 - p0) * b``, and each mode is an optional interval of fixed
size. Ortools is imported when needed, because that takes a third of a second.
"""

from __future__ import annotations

from typing import Any

from phaze_opt.scheduling.bounds import Bounds
from phaze_opt.scheduling.instance import INTRA, SINGLE, Instance
from phaze_opt.scheduling.plan import Plan, replay_units
from phaze_opt.scheduling.reduction import bits

_SCALE = 1 << 12
"""Time units in one of CP-SAT's: its products of time and demand must fit 64 bits."""


def improve(
    instance: Instance, bounds: Bounds, incumbent: Plan, deterministic_s: float
) -> tuple[Plan, int]:
    """Search for the shortest schedule.

    Parameters
    ----------
    instance
        What to schedule.
    bounds
        Its heads and tails.
    incumbent
        A schedule: hint and horizon.
    deterministic_s
        Effort in CP-SAT's deterministic seconds (not the clock's).

    Returns
    -------
    The best schedule known, and a lower bound in time units.
    """
    from ortools.sat.python import cp_model

    # Durations are rounded up, so that what CP-SAT finds is a schedule; its bound is corrected.
    duration = [[-(-p // _SCALE) for p in pair] for pair in instance.duration]
    model: Any = cp_model.CpModel()
    starts, intras = _add_operators(model, instance, bounds, incumbent, duration)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = deterministic_s
    solver.parameters.linearization_level = 0
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        # A schedule always exists; whatever else CP-SAT says, the incumbent stands.
        return incumbent, bounds.makespan
    start = [solver.value(variable) for variable in starts]
    mode = [int(solver.value(variable)) for variable in intras]
    end = [begin + duration[i][mode[i]] for i, begin in enumerate(start)]
    exact = [instance.duration[i][mode[i]] for i in range(instance.size)]
    plan = replay_units(start, mode, end, exact)
    proven = round((solver.best_objective_bound - instance.size) * _SCALE)
    best = plan if plan.makespan < incumbent.makespan else incumbent
    return best, max(bounds.makespan, proven)


def _add_operators(
    model: Any, instance: Instance, bounds: Bounds, incumbent: Plan, duration: list[list[int]]
) -> tuple[list[Any], list[Any]]:
    """Build the model; return the start and mode variables."""
    horizon = -(-incumbent.makespan // _SCALE) + instance.size
    makespan = model.new_int_var(bounds.makespan // _SCALE, horizon, "makespan")
    starts: list[Any] = []
    intras: list[Any] = []
    ends: list[Any] = []
    optional: list[tuple[Any, Any]] = []
    for index, (single, intra) in enumerate(duration):
        latest = horizon - bounds.tail[index] // _SCALE
        start = model.new_int_var(bounds.head[index] // _SCALE, latest, f"start{index}")
        mode = model.new_bool_var(f"intra{index}")
        if len(instance.modes[index]) == 1:
            model.add(mode == instance.modes[index][0])
        end = start + single + (intra - single) * mode
        model.add(end <= makespan)
        for other in bits(instance.ancestors[index]):
            model.add(ends[other] <= start)
        optional.append(
            (
                model.new_optional_fixed_size_interval_var(start, single, ~mode, f"single{index}"),
                model.new_optional_fixed_size_interval_var(start, intra, mode, f"all{index}"),
            )
        )
        model.add_hint(start, min(latest, incumbent.start[index] // _SCALE + index))
        model.add_hint(mode, incumbent.mode[index])
        starts.append(start)
        intras.append(mode)
        ends.append(end)
    _add_resources(model, instance, optional)
    model.minimize(makespan)
    return starts, intras


def _add_resources(model: Any, instance: Instance, optional: list[tuple[Any, Any]]) -> None:
    """Let no resource be overdrawn."""
    for resource, capacity in enumerate(instance.capacity):
        intervals, demands = [], []
        for index, pair in enumerate(optional):
            for mode in (SINGLE, INTRA):
                if demand := instance.demand[index][mode][resource]:
                    intervals.append(pair[mode])
                    demands.append(demand)
        model.add_cumulative(intervals, demands, capacity)
