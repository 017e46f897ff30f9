"""Samplers propose the next point; every trial gets a new one, seeded with (seed, trial).

A sampler that lives longer carries a random state that is lost when a study is stopped. One that is
made anew for each trial proposes the same points whether or not the study was stopped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from phaze_opt.search.spec import SamplerName

if TYPE_CHECKING:
    from optuna.study import Study

_TPE_CANDIDATES = 128
_FINISHED = (TrialState.COMPLETE,)
_OCCUPIED = (TrialState.COMPLETE, TrialState.RUNNING)


Cost = tuple[Any, ...]
"""Orders finished trials: the best has the smallest."""

Item = TypeVar("Item")
Coordinates = tuple[int, ...]
"""A point as one index per axis, counted from the axis's lower end."""


def sampler_for(
    name: SamplerName,
    seed: int,
    trial: int,
    cost: Callable[[FrozenTrial], Cost],
    fixed: Mapping[str, Any] | None = None,
) -> BaseSampler:
    """Return the sampler of one trial.

    Parameters
    ----------
    name
        ``random``; ``tpe`` (tree-structured Parzen estimator, Bergstra et al., NeurIPS 2011);
        ``climb`` (coordinate hill climbing with restarts); ``nsga2`` (Deb et al., 2002).
    seed, trial
        Of the study, and the number of the trial.
    cost
        Order of finished trials, for samplers that can use more than the value.
    fixed
        Parameters that the trial must take.
    """
    if fixed is not None:
        return FixedSampler(fixed)
    number = int(np.random.SeedSequence([seed, trial]).generate_state(1)[0])
    if name == "tpe":
        return TPESampler(seed=number, n_ei_candidates=_TPE_CANDIDATES)
    if name == "climb":
        return ClimbSampler(number, cost)
    if name == "nsga2":
        return NSGAIISampler(seed=number)
    return RandomSampler(seed=number)


class FixedSampler(RandomSampler):
    """Gives the parameters that it was made with."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(seed=0)
        self._params = dict(params)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the given value."""
        return self._params[param_name]


class ClimbSampler(RandomSampler):
    """Coordinate hill climbing: an untried neighbour of the best point, and restarts at summits.

    A neighbour differs by one step on one axis, or by one step up on one axis and one step down on
    another, so that the climb can walk along the edge of the area limit. A summit is a point whose
    neighbours are all tried; the climb leaves it by a jump that draws half of the axes anew. The
    state of the climb follows from the finished trials alone, so that any number of workers climb
    together, and a stopped study goes on as if it had not been stopped. The first points are
    random.
    """

    def __init__(
        self,
        seed: int,
        cost: Callable[[FrozenTrial], Cost],
        startup_trials: int = 8,
    ) -> None:
        super().__init__(seed=seed)
        self._cost = cost
        self._moves = np.random.default_rng(seed)
        self._startup_trials = startup_trials

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Take the axes of the finished trials, which all have the same."""
        finished = study.get_trials(deepcopy=False, states=_FINISHED)
        return dict(sorted(finished[0].distributions.items())) if finished else {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose a point; nothing during the start, where the random sampler proposes."""
        if not search_space:
            return {}
        sizes = [_axis_size(axis) for axis in search_space.values()]
        climb = _Climb(sizes, self._startup_trials)
        for other in study.get_trials(deepcopy=False, states=_OCCUPIED):
            if set(search_space) <= set(other.params):
                cost = self._cost(other) if other.values else None
                climb.record(_coordinates(other.params, search_space), cost)
        if climb.is_starting or climb.centre is None:
            return {}
        proposed = self._neighbour(climb) if climb.untried else self._jump(climb.summit, sizes)
        return _values(proposed, search_space)

    def _neighbour(self, climb: _Climb) -> Coordinates:
        """Repeat the step that led here, else choose: single steps weigh as much as exchanges."""
        assert climb.centre is not None
        if climb.further in climb.untried:
            return climb.further
        kinds = [
            [point for point in points if point in climb.untried]
            for points in (_single_steps(climb.centre), _exchanges(climb.centre))
        ]
        points = _choose(self._moves, [kind for kind in kinds if kind])
        return _choose(self._moves, points)

    def _jump(self, summit: Coordinates, sizes: Sequence[int]) -> Coordinates:
        """Draw half of the axes anew."""
        moved = set(self._moves.permutation(len(sizes))[: len(sizes) // 2].tolist())
        return tuple(
            int(self._moves.integers(size)) if axis in moved else index
            for axis, (index, size) in enumerate(zip(summit, sizes, strict=True))
        )


class _Climb:
    """Replays the finished trials of a climb.

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

    @property
    def is_starting(self) -> bool:
        """Whether the first random points are still being tried."""
        return self._left_of_start > 0

    def record(self, point: Coordinates, cost: Cost | None) -> None:
        """Take in a trial, in the order of the numbers; one that still runs has no cost."""
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


def _axis_size(axis: BaseDistribution) -> int:
    """Count the values of an axis."""
    if isinstance(axis, CategoricalDistribution):
        return len(axis.choices)
    assert isinstance(axis, IntDistribution)
    return axis.high - axis.low + 1


def _coordinates(params: Mapping[str, Any], space: Mapping[str, BaseDistribution]) -> Coordinates:
    """Turn parameters into indices."""
    result = []
    for name, axis in space.items():
        if isinstance(axis, CategoricalDistribution):
            result.append(axis.choices.index(params[name]))
        else:
            assert isinstance(axis, IntDistribution)
            result.append(params[name] - axis.low)
    return tuple(result)


def _values(point: Coordinates, space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Turn indices into parameters; the inverse of `_coordinates`."""
    result: dict[str, Any] = {}
    for (name, axis), index in zip(space.items(), point, strict=True):
        if isinstance(axis, CategoricalDistribution):
            result[name] = axis.choices[index]
        else:
            assert isinstance(axis, IntDistribution)
            result[name] = axis.low + index
    return result
