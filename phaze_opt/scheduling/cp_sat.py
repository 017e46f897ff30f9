"""CP-SAT, called so that a result can be repeated: one worker, one seed, no clock.

The solver is imported only where it is used, because that takes a third of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

EFFORT_PER_SECOND = 1_000_000
"""Effort that stands for one second of the solver's deterministic time, as for the exact search."""


@dataclass(frozen=True)
class Solved:
    """What the solver found: values of the model's variables, and a bound on the objective.

    Attributes
    ----------
    values
        Value of every variable by its index, or None if the solver found no solution.
    bound
        Lower bound on the objective.
    """

    values: Sequence[int] | None
    bound: int

    def value(self, variable: Any) -> int:
        """Return the value of one variable."""
        assert self.values is not None
        return int(self.values[variable.index])


def new_model() -> Any:
    """Make an empty model."""
    from ortools.sat.python import cp_model

    return cp_model.CpModel()


def minimise(
    model: Any, objective: Any, hint: Iterable[tuple[Any, int]], effort: int, **parameters: int
) -> Solved:
    """Solve a model.

    Parameters
    ----------
    model, objective
        What to minimise.
    hint
        Variables with their values in a known solution.
    effort
        Deterministic time to spend, in millionths of the solver's second.
    **parameters
        Further parameters of the solver.
    """
    from ortools.sat.python import cp_model

    model.minimize(objective)
    for variable, value in hint:
        model.add_hint(variable, value)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = effort / EFFORT_PER_SECOND
    for name, setting in parameters.items():
        setattr(solver.parameters, name, setting)
    status = solver.solve(model)
    # Every model that is built here has a solution: a solver that denies it has proven nothing.
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        bound = 0 if status == cp_model.INFEASIBLE else max(0, int(solver.best_objective_bound))
        return Solved(None, bound)
    values = list(solver.response_proto.solution)
    return Solved(values, round(solver.best_objective_bound))
