"""Coordinate hill climbing with restarts."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from optuna.trial import FrozenTrial

from phaze_opt.spec.sampler_options import ClimbOptions
from phaze_opt.study.samplers.grid import Coordinates, Grid
from phaze_opt.study.samplers.replay import Cost, CostOf, Replay, Seen

Item = TypeVar("Item")


class Climb:
    """The climb of a study, as far as it has come.

    A neighbour differs by one step on one axis, or by one step up on one axis and one step down on
    another, so that the climb can walk along the edge of the area limit. The choices of a category
    are steps in the order in which the spec lists them. A summit is a point whose neighbours are
    all tried; the climb leaves it by a jump that draws half of the axes anew. The first points are
    random. The climb follows from the trials alone, so that any number of workers climb together.
    """

    def __init__(self, grid: Grid, cost: CostOf, options: ClimbOptions) -> None:
        self.grid = grid
        self._replay = Replay(grid, cost, _Climb(grid.sizes, options.startup_trials))

    def propose(self, trials: Sequence[FrozenTrial], seed: int) -> dict[str, Any]:
        """Propose a point; see `phaze_opt.study.samplers.replay.Proposer`."""
        moves = np.random.default_rng(seed)
        climb = self._replay.state(trials)
        if climb.is_starting or climb.centre is None:
            return {}
        if climb.untried:
            return self.grid.params(_neighbour(climb, moves))
        return self.grid.params(self.grid.jumped(climb.summit, moves))


class _Climb:
    """What follows from the trials of a climb.

    Attributes
    ----------
    centre
        Best point since the last jump.
    summit
        Best point of all.
    untried
        Neighbours of the centre that no trial has tried.
    further
        The point one more step in the direction that led to the centre.
    """

    def __init__(self, sizes: Sequence[int], startup_trials: int) -> None:
        self.centre: Coordinates | None = None
        self.summit: Coordinates = ()
        self.untried: set[Coordinates] = set()
        self.further: Coordinates = ()
        self._sizes = sizes
        self._left_of_start = startup_trials
        self._tried: set[Coordinates] = set()
        self._cost: Cost | None = None
        self._lowest: Cost | None = None

    def copy(self) -> _Climb:
        """Return a climb that can go on by itself."""
        made = copy.copy(self)
        made.untried, made._tried = self.untried.copy(), self._tried.copy()
        return made

    @property
    def is_starting(self) -> bool:
        """Whether the first random points are still being tried."""
        return self._left_of_start > 0

    def record(self, trial: Seen) -> None:
        """Take in a trial."""
        point, cost = trial.point, trial.cost
        jumped = not self.is_starting and not self.untried
        self._tried.add(point)
        self.untried.discard(point)
        if cost is None:
            return
        self._left_of_start -= 1
        if self._lowest is None or cost < self._lowest:
            self._lowest, self.summit = cost, point
        if self._cost is None or cost < self._cost or jumped:
            before = point if self.centre is None or jumped else self.centre
            self._cost, self.centre = cost, point
            self.further = tuple(2 * b - a for a, b in zip(before, point, strict=True))
            near = (*_single_steps(point), *_exchanges(point))
            self.untried = {move for move in near if _inside(move, self._sizes)} - self._tried


def _neighbour(climb: _Climb, moves: np.random.Generator) -> Coordinates:
    """Repeat the step that led here, else choose: single steps weigh as much as exchanges."""
    assert climb.centre is not None
    if climb.further in climb.untried:
        return climb.further
    kinds = [
        [point for point in points if point in climb.untried]
        for points in (_single_steps(climb.centre), _exchanges(climb.centre))
    ]
    return _choose(moves, _choose(moves, [kind for kind in kinds if kind]))


def _choose(rng: np.random.Generator, items: Sequence[Item]) -> Item:
    """Draw one item."""
    return items[int(rng.integers(len(items)))]


def _single_steps(centre: Coordinates) -> list[Coordinates]:
    """List the points one step away on one axis."""
    return [_shifted(centre, {axis: step}) for axis in range(len(centre)) for step in (-1, 1)]


def _exchanges(centre: Coordinates) -> list[Coordinates]:
    """List the points one step up on one axis and one step down on another."""
    pairs = itertools.permutations(range(len(centre)), 2)
    return [_shifted(centre, {up: 1, down: -1}) for up, down in pairs]


def _shifted(centre: Coordinates, steps: Mapping[int, int]) -> Coordinates:
    """Move along some axes."""
    return tuple(value + steps.get(axis, 0) for axis, value in enumerate(centre))


def _inside(point: Coordinates, sizes: Sequence[int]) -> bool:
    """Whether every index lies on its axis."""
    return all(0 <= index < size for index, size in zip(point, sizes, strict=True))
