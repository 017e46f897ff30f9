"""Parameters that no sampler draws: baselines, old best points, and points by ticket number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseGASampler, RandomSampler
from optuna.trial import FrozenTrial

if TYPE_CHECKING:
    from optuna.study import Study


class GivenSampler(RandomSampler):
    """Returns given parameters.

    Parameters
    ----------
    params
        The parameters.
    population
        Genetic sampler whose generation counts the trial; ``None`` for no generation.
    """

    def __init__(self, params: Mapping[str, Any], population: BaseGASampler | None = None) -> None:
        super().__init__(seed=0)
        self._params = dict(params)
        self._population = population

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Count the trial in its generation."""
        if self._population is not None:
            self._population.get_trial_generation(study, trial)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the given value."""
        return self._params[param_name]
