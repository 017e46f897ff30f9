"""CP-SAT, called so that a result can be repeated: one worker, one seed, no clock.

What it proves is not believed at once: ortools 9.15 proves wrong optima of some models, most often
in its presolve. A bound that proves a plan optimal counts only if a second model, built in another
way and solved without presolve, confirms that there is no shorter plan.

The solver is imported only where it is used, because that takes a third of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EFFORT_PER_SECOND = 1_000_000
"""Effort that stands for one second of the solver's deterministic time, as for the exact search."""


@dataclass(frozen=True)
class SolverAnswer:
    """What the solver found: values of the model's variables, and a bound on the objective.

    Attributes
    ----------
    values
        Value of every variable by its index, or None if the solver found no solution.
    bound
        Lower bound on the objective.
    denied
        Whether the solver says that there is no solution.
    """

    values: Sequence[int] | None
    bound: int
    denied: bool = False

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
) -> SolverAnswer:
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
    status, solver = _solve(model, effort, parameters)
    if status == cp_model.INFEASIBLE:
        return SolverAnswer(None, 0, denied=True)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return SolverAnswer(None, max(0, int(solver.best_objective_bound)))
    return SolverAnswer(list(solver.response_proto.solution), round(solver.best_objective_bound))


def decide(model: Any, effort: int, **parameters: int) -> SolverAnswer:
    """Find any solution of a model, or prove that there is none.

    Parameters
    ----------
    model, effort, **parameters
        As for `minimise`; without presolve.
    """
    from ortools.sat.python import cp_model

    status, solver = _solve(model, effort, {"cp_model_presolve": False, **parameters})
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return SolverAnswer(list(solver.response_proto.solution), 0)
    return SolverAnswer(None, 0, denied=status == cp_model.INFEASIBLE)


def _solve(model: Any, effort: int, parameters: Mapping[str, int]) -> tuple[Any, Any]:
    """Run the solver, and return its status and the solver."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = effort / EFFORT_PER_SECOND
    for name, setting in parameters.items():
        setattr(solver.parameters, name, setting)
    return solver.solve(model), solver
