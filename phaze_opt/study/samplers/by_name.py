"""The sampler of a ticket, by the name that a spec gives.

Samplers that need scipy or torch are imported only if a spec names them: each takes a second.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import (
    BaseGASampler,
    BaseSampler,
    NSGAIIISampler,
    NSGAIISampler,
    RandomSampler,
    TPESampler,
)
from optuna.search_space import IntersectionSearchSpace

from phaze_opt.spec.sampler_options import (
    ClimbOptions,
    EvolutionOptions,
    GaussianProcessOptions,
    GeneticOptions,
    SamplerName,
    SamplerOptions,
    TpeOptions,
    sampler_options,
)
from phaze_opt.study.samplers.brute_force import BruteForce
from phaze_opt.study.samplers.climb import Climb
from phaze_opt.study.samplers.given import GivenSampler
from phaze_opt.study.samplers.grid import Grid
from phaze_opt.study.samplers.replay import CostOf, ProposingState, ReplaySampler, TrialReplay

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


class Samplers:
    """Makes the samplers of one study, a new one for each ticket.

    Parameters
    ----------
    name
        ``bound`` (best bound first: tickets have its points, random after the last; see
        `phaze_opt.study.guided`); ``random``; ``tpe`` (tree-structured Parzen estimator, Bergstra
        et al., NeurIPS 2011);
        ``climb`` (coordinate hill climbing with restarts); ``nsga2`` (Deb et al., 2002) and
        ``nsga3`` (Deb and Jain, 2014); ``cmaes`` (Hansen, 2016); ``gp`` (Gaussian process, slow);
        ``qmc`` (Sobol' sequence); ``brute-force`` (every point once).
    seed
        Seed of the study.
    space
        The axes of the study, equal in all its workers.
    cost
        Order of finished trials, for samplers that can use more than the value.
    options
        Options of this sampler; ``None`` for the defaults.

    Attributes
    ----------
    replay
        Takes in the trials of a sampler that needs only their points and costs; ``None`` of others.
        Those of Optuna (``tpe``, ``nsga2``, ``nsga3``, ``gp``) need all trials, and a run of many
        begins by reading them.
    """

    def __init__(
        self,
        name: SamplerName,
        seed: int,
        space: Mapping[str, BaseDistribution],
        cost: CostOf,
        options: SamplerOptions | None = None,
    ) -> None:
        self._seed = seed
        options = options or sampler_options(name, {})
        self.replay = _replay(seed, space, cost, options)
        self._make = _maker(name, seed, space, self.replay, options)

    def for_ticket(self, ticket: int, given: Mapping[str, Any] | None = None) -> BaseSampler:
        """Return the sampler of one trial.

        Parameters
        ----------
        ticket
            Number of the ticket of the trial; a lost trial and its replacement share it.
        given
            Parameters that the trial must take.
        """
        own_seed = int(np.random.SeedSequence([self._seed, ticket]).generate_state(1)[0])
        sampler = self._make(own_seed, ticket)
        if given is None:
            return sampler
        return GivenSampler(given, sampler if isinstance(sampler, BaseGASampler) else None)


def _replay(
    seed: int,
    space: Mapping[str, BaseDistribution],
    cost: CostOf,
    options: SamplerOptions,
) -> TrialReplay[ProposingState] | None:
    """Return the replay of a search that follows from the trials alone; ``None`` of others."""
    match options:
        case ClimbOptions():
            grid = Grid.of(space)
            return TrialReplay(grid, cost, Climb(grid, options))
        case EvolutionOptions():
            from phaze_opt.study.samplers.evolution import Evolution

            grid = Grid.of(space)
            return TrialReplay(grid, cost, Evolution(grid, seed, options))
    return None


def _maker(
    name: SamplerName,
    seed: int,
    space: Mapping[str, BaseDistribution],
    replay: TrialReplay[ProposingState] | None,
    options: SamplerOptions,
) -> Callable[[int, int], BaseSampler]:
    """Return a function of seed and ticket of a trial that makes its sampler."""
    # Optuna's samplers search all trials for common axes; a shared object reads only new trials.
    axes = IntersectionSearchSpace()
    match options:
        case TpeOptions():
            return lambda own_seed, ticket: _tpe(own_seed, axes, options)
        case GeneticOptions():
            return lambda own_seed, ticket: _genetic(name, own_seed, axes, options)
        case GaussianProcessOptions():
            return lambda own_seed, ticket: _gaussian_process(own_seed, axes, options)
    if replay is not None:
        return lambda own_seed, ticket: ReplaySampler(own_seed, replay)
    if name in ("random", "bound"):
        return lambda own_seed, ticket: RandomSampler(seed=own_seed)
    points = _points_by_ticket(name, seed, Grid.of(space))
    return lambda own_seed, ticket: GivenSampler(points(ticket))


def _points_by_ticket(
    name: SamplerName, seed: int, grid: Grid
) -> Callable[[int], Mapping[str, Any]]:
    """Return a function that proposes the point of a ticket from its number alone."""
    if name == "brute-force":
        return BruteForce(grid, seed).propose
    from phaze_opt.study.samplers.quasi_random import QuasiRandom

    return QuasiRandom(grid, seed).propose


def _tpe(seed: int, axes: IntersectionSearchSpace, options: TpeOptions) -> BaseSampler:
    """Make a tree-structured Parzen estimator."""
    sampler = TPESampler(
        seed=seed,
        n_startup_trials=options.startup_trials,
        n_ei_candidates=options.n_ei_candidates,
    )
    sampler._search_space = axes
    return sampler


def _genetic(
    name: SamplerName, seed: int, axes: IntersectionSearchSpace, options: GeneticOptions
) -> BaseSampler:
    """Make a genetic sampler; generations and parents are in the database, not in the sampler."""
    kind = NSGAIISampler if name == "nsga2" else NSGAIIISampler
    with _no_warnings():
        sampler = kind(seed=seed, population_size=options.population_size)
    sampler._search_space = axes
    return sampler


def _gaussian_process(
    seed: int, axes: IntersectionSearchSpace, options: GaussianProcessOptions
) -> BaseSampler:
    """Make a Gaussian process."""
    from phaze_opt.study.samplers.gaussian_process import GaussianProcessSampler

    with _no_warnings():
        sampler = GaussianProcessSampler(seed, options.startup_trials)
    sampler._intersection_search_space = axes
    return sampler


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Suppress warnings about options that Optuna may change: its version is pinned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield
