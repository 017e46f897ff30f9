"""The samplers of Optuna, and two of phaze-opt, on the tables of the benchmark."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from phaze_opt.study.samplers.by_name import Samplers
from phaze_opt.study.samplers.gaussian_process import GaussianProcessSampler
from phaze_opt.study.worker import CONSTRAINT_KEY
from studies.benchmark.problem import Problem, checksum
from studies.work import Work

BOUND = "bound"
"""Its order is bundled: it knows the cost model, and is the same for every seed."""


@dataclass(frozen=True)
class Budget:
    """What a search may take: different seeds, and trials of each."""

    seeds: int
    trials: int


MOST = {"tpe": Budget(10, 200), "gp": Budget(2, 50)}
"""Of samplers that take long themselves: of ``gp`` the time grows with the cube of the trials."""


@dataclass(frozen=True)
class Searched:
    """Regrets of a sampler on a problem.

    Attributes
    ----------
    regrets
        After each trial, by seed; after a proof they stay as they are.
    """

    problem: str
    sampler: str
    regrets: tuple[tuple[float, ...], ...]

    @property
    def curves(self) -> NDArray[np.float64]:
        """The regrets, seeds × trials."""
        return np.array(self.regrets)


SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "qmc": lambda seed: optuna.samplers.QMCSampler(seed=seed, warn_independent_sampling=False),
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    "gp": lambda seed: GaussianProcessSampler(seed, 10),
}
"""Those of Optuna with its defaults, by seed; ``gp`` on one thread."""

CLIMB: Final = "climb"
"""The hill climbing of phaze-opt, which sees values alone here."""


def search_all(work: Work, problem: Problem, sampler: str, budget: Budget) -> Searched:
    """Search a problem with every seed, unless that was done.

    Parameters
    ----------
    sampler
        Of `SAMPLERS`, `CLIMB` or `BOUND`.
    budget
        Seeds and trials; of some samplers at most `MOST`.
    """
    most = MOST.get(sampler, budget)
    budget = Budget(min(budget.seeds, most.seeds), min(budget.trials, most.trials))
    if sampler == BOUND:
        told = problem.values.ravel()[list(problem.bound_order[: budget.trials])]
        told = np.pad(told, (0, budget.trials - len(told)), mode="edge")
        return Searched(problem.name, sampler, (tuple(problem.regret(told).tolist()),))
    question = [problem.name, checksum(problem.values), sampler, budget, optuna.__version__]

    def search() -> Searched:
        regrets = (
            search_once(problem, sampler, seed, budget.trials) for seed in range(budget.seeds)
        )
        return Searched(problem.name, sampler, tuple(tuple(each.tolist()) for each in regrets))

    return work.answer(f"search-{problem.name}-{sampler}", question, Searched, search)


def search_once(problem: Problem, sampler: str, seed: int, trials: int) -> NDArray[np.float64]:
    """Search a problem with one seed; return the regret after each trial.

    An infeasible point is told as less than every feasible one, by its violation, which is told as
    a constraint too. A point that was tried before is a trial like any other.
    """
    study = optuna.create_study(direction="maximize")
    told: list[float] = []
    with warnings.catch_warnings():
        # Of samplers that are new, and of those that see infeasible values but no constraints.
        warnings.simplefilter("ignore")
        of_ticket = _of_ticket(problem, sampler, seed)
        for ticket in range(trials):
            study.sampler = of_ticket(ticket)
            trial = study.ask()
            point = problem.suggest(trial)
            value, violation = problem.evaluate(point), problem.violation(point)
            told.append(-violation if math.isnan(value) else value)
            trial.set_constraint(CONSTRAINT_KEY, violation)
            study.tell(trial, told[-1])
    return problem.regret(told)


def _of_ticket(problem: Problem, sampler: str, seed: int) -> Callable[[int], BaseSampler]:
    """Return the sampler of every trial by its number: of Optuna one for all of them."""
    if sampler == CLIMB:
        space = {
            axis.name: IntDistribution(0, len(axis.choices) - 1)
            if axis.kind == "ordered"
            else CategoricalDistribution(axis.choices)
            for axis in problem.axes
        }
        return Samplers(CLIMB, seed, space, _cost).for_ticket
    one = SAMPLERS[sampler](seed)
    return lambda ticket: one


def _cost(trial: FrozenTrial) -> tuple[float]:
    """Order finished trials by their values."""
    return (-(trial.values or [-math.inf])[0],)
