"""Parameters that come from outside: baselines, old best points, and points by ticket number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseGASampler, RandomSampler
from optuna.trial import FrozenTrial

if TYPE_CHECKING:
    from optuna.study import Study


class GivenSampler(RandomSampler):
    """Gives the parameters that it was made with.

    Parameters
    ----------
    params
        The parameters.
    population
        Genetic sampler to whose generation the trial shall belong.
    """

    def __init__(self, params: Mapping[str, Any], population: BaseGASampler | None = None) -> None:
        super().__init__(seed=0)
        self._params = dict(params)
        self._population = population

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Count the trial to its generation."""
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
