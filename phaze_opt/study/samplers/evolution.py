"""CMA-ES: a normal distribution that moves towards better points and adapts to their shape."""

from __future__ import annotations

import copy

import numpy as np
from cmaes import CMA, CMAwM

from phaze_opt.arrays import FloatArray
from phaze_opt.spec.sampler_options import EvolutionOptions
from phaze_opt.study.samplers.grid import Coordinates, Grid
from phaze_opt.study.samplers.replay import Cost


class Evolution:
    """The normal distribution of a study, as the finished trials have shaped it.

    CMA-ES with margin (Hamano et al., GECCO 2022) keeps a probability for the neighbours on every
    axis: plain CMA-ES was as good after 200 trials on the same grid, but repeated up to a quarter
    of its points.

    Every axis has the length 1, and the optimizer is told the places of the points on the grid, so
    that its state follows from the parameters of the trials. A category is an axis with its choices
    in the order of the spec. Only the order of costs counts; an infeasible point comes after every
    feasible point.

    The first points are random; the distribution starts at the best of them. (From the middle of
    the space it found designs a quarter slower in 60 trials.) If it is so narrow that half of a
    generation repeats, it starts anew at the best point of all, with half of the axes drawn anew.
    """

    def __init__(self, grid: Grid, seed: int, options: EvolutionOptions) -> None:
        self._grid = grid
        self._last = np.array(grid.sizes) - 1
        self._searched = np.flatnonzero(self._last)
        self._seed = seed
        self._options = options
        self._starts = 0
        self._optimizer: CMAwM | None = None
        self._best: tuple[Cost, Coordinates] | None = None
        self._told: list[tuple[Cost, Coordinates]] = []

    def copy(self) -> Evolution:
        """Return a search that changes independently of this one."""
        made = copy.copy(self)
        made._told = self._told.copy()
        if self._optimizer is not None:
            made._optimizer = _copied(self._optimizer)
        return made

    def record(self, point: Coordinates, cost: Cost | None) -> None:
        """Take in a trial; a running trial changes nothing."""
        if cost is None or not self._searched.size:
            return
        self._told.append((cost, point))
        if self._best is None or cost < self._best[0]:
            self._best = cost, point
        if self._optimizer is None:
            if len(self._told) == self._options.startup_trials:
                self._start_at(self._best[1])
        elif len(self._told) == self._optimizer.population_size:
            self._end_generation(self._optimizer, self._best[1])

    def propose(self, seed: int) -> Coordinates | None:
        """Draw a point; ``None`` during the start."""
        if self._optimizer is None:
            return None
        self._optimizer.reseed_rng(seed)
        shares, _ = self._optimizer.ask()
        point = np.zeros_like(self._last)
        point[self._searched] = np.rint(shares * self._last[self._searched])
        return tuple(point.tolist())

    def _end_generation(self, optimizer: CMAwM, best: Coordinates) -> None:
        """Tell the optimizer a whole generation, or replace it if too many points repeat."""
        if 2 * len({point for _, point in self._told}) <= len(self._told):
            draws = np.random.default_rng([self._seed, self._starts])
            self._start_at(self._grid.jumped(best, draws))
            return
        order = sorted(self._told, key=lambda told: told[0])
        optimizer.tell([(self._shares(point), place) for place, (_, point) in enumerate(order)])
        self._told = []

    def _start_at(self, point: Coordinates) -> None:
        """Start a new distribution around a point."""
        axes = len(self._searched)
        self._optimizer = CMAwM(
            mean=self._shares(point),
            sigma=self._options.sigma,
            bounds=np.column_stack([np.zeros(axes), np.ones(axes)]),
            steps=1 / self._last[self._searched],
            population_size=self._options.population_size,
        )
        self._starts += 1
        self._told = []

    def _shares(self, point: Coordinates) -> FloatArray:
        """Return the place of a point, 0 to 1, on every axis with several values."""
        shares: FloatArray = np.array(point)[self._searched] / self._last[self._searched]
        return shares


def _copied(optimizer: CMAwM) -> CMAwM:
    """Copy an optimizer exactly; its pickled state keeps only half of the covariance matrix."""
    made: CMAwM = copy.copy(optimizer)
    made._A = optimizer._A.copy()
    made._cma = object.__new__(CMA)
    vars(made._cma).update(copy.deepcopy(vars(optimizer._cma)))
    return made
