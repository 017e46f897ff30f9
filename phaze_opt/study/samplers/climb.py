"""Coordinate hill climbing with restarts."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from phaze_opt.spec.sampler_options import ClimbOptions
from phaze_opt.study.samplers.grid import Coordinates, Grid
from phaze_opt.study.samplers.replay import Cost

Item = TypeVar("Item")


class Climb:
    """The state of a climb after the trials so far.

    A neighbour differs by one step on one axis, or by one step up on one axis and one step down on
    another, so that the climb can walk along the edge of the area limit. The choices of a category
    are steps in the order in which the spec lists them. A summit is a point whose neighbours are
    all tried; the climb leaves it by a jump that draws half of the axes anew. The first points are
    random. The climb follows from the trials alone, so that any number of workers climb together.
    """

    def __init__(self, grid: Grid, options: ClimbOptions) -> None:
        self._grid = grid
        self._left_of_start = options.startup_trials
        # The best point since the last jump, its cost, and its neighbours that no trial has tried.
        self._centre: Coordinates | None = None
        self._cost: Cost | None = None
        self._untried: set[Coordinates] = set()
        # The point one more step in the direction that led to the centre.
        self._further: Coordinates = ()
        # The best point of all, and its cost.
        self._summit: Coordinates = ()
        self._lowest: Cost | None = None
        self._tried: set[Coordinates] = set()

    def copy(self) -> Climb:
        """Return a climb that changes independently of this one."""
        made = copy.copy(self)
        made._untried, made._tried = self._untried.copy(), self._tried.copy()
        return made

    def record(self, point: Coordinates, cost: Cost | None) -> None:
        """Take in a trial."""
        jumped = self._left_of_start <= 0 and not self._untried
        self._tried.add(point)
        self._untried.discard(point)
        if cost is None:
            return
        self._left_of_start -= 1
        if self._lowest is None or cost < self._lowest:
            self._lowest, self._summit = cost, point
        if self._cost is None or cost < self._cost or jumped:
            before = point if self._centre is None or jumped else self._centre
            self._cost, self._centre = cost, point
            self._further = tuple(2 * b - a for a, b in zip(before, point, strict=True))
            near = (*_single_steps(point), *_exchanges(point))
            self._untried = {move for move in near if _inside(move, self._grid.sizes)} - self._tried

    def propose(self, seed: int) -> Coordinates | None:
        """Return a neighbour, or a jump from a summit; ``None`` during the start.

        The last step is repeated if possible. Else the kind of the step is drawn first, so that the
        few single steps weigh as much as the many exchanges.
        """
        if self._left_of_start > 0 or self._centre is None:
            return None
        moves = np.random.default_rng(seed)
        if not self._untried:
            return self._grid.jumped(self._summit, moves)
        if self._further in self._untried:
            return self._further
        kinds = [
            [point for point in points if point in self._untried]
            for points in (_single_steps(self._centre), _exchanges(self._centre))
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
