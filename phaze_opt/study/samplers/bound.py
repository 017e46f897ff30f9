"""Best bound first: the points of a space in the order of the least cost that each may have.

Bounds make a search short: it begins with the points that may be the best, and ends as soon as no
other point can be better than the best evaluated point. That point is then proven, by the rule of
branch and bound (Land and Doig, Econometrica 1960).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState

from phaze_opt.study.samplers.grid import Coordinates, Grid
from phaze_opt.study.samplers.likely import Guess, LikelyFirst, Look
from phaze_opt.study.samplers.replay import Cost, CostOf, TrialReplay

if TYPE_CHECKING:
    from optuna.study import Study


BoundedParams = tuple[Mapping[str, Any], Cost]
"""The parameters of a point, and a lower bound of the first parts of its cost."""


class BestBoundFirst:
    """The points of a study that no trial has tried, and the proof by its trials.

    Parameters
    ----------
    grid
        All axes.
    points
        All points that may be feasible, in the order of their least costs; read as far as needed.
        A further iteration must continue after the last point.
    cost
        Order of finished trials. Costs are compared part by part, up to the shorter cost.
    guess, look
        Guess and find out costs of points where bounds say little about the order, see
        `LikelyFirst`; ``None`` for bounds alone. They decide what is tried first, never what is
        proven.

    Attributes
    ----------
    replay
        Takes in the trials.
    """

    def __init__(
        self,
        grid: Grid,
        points: Iterable[BoundedParams],
        cost: CostOf,
        guess: Guess | None = None,
        look: Look | None = None,
    ) -> None:
        self.grid = grid
        self._likely = None
        if guess is not None and look is not None:
            self._likely = LikelyFirst(self._all, guess, look)
        self._points = points
        self._rest = iter(points)
        self._opened: list[tuple[Coordinates, Mapping[str, Any], Cost]] = []
        self._closed = 0
        self.replay = TrialReplay(grid, cost, _Tried())
        self._tried = _Tried()

    def read(self, trials: Sequence[FrozenTrial]) -> None:
        """Read all trials of the study, or those after the settled ones, by number."""
        self._tried = self.replay.state(trials)

    @property
    def is_proven(self) -> bool:
        """Whether no other point can be better than the best evaluated point."""
        complete = self._tried.complete
        for place, point, _, least in self._from(self._closed):
            if point not in complete:
                return self._is_worse(least)
            self._closed = place + 1
        return True

    def next_points(
        self,
        number: int,
        is_taken: Callable[[Mapping[str, Any]], bool] = lambda params: False,
        *,
        beyond: bool = False,
    ) -> list[Mapping[str, Any]]:
        """Return the parameters of the first points without a trial.

        Parameters
        ----------
        number
            Largest number of points.
        is_taken
            Whether a point is taken, by its parameters, although no trial has it yet.
        beyond
            Whether to continue with points that cannot be better than the best so far.
        """
        left = self._left(is_taken, beyond=beyond)
        if self._likely is None:
            return [params for _, params in islice(left, number)]
        return self._likely.first(left, number, self._tried.lowest)

    def _all(self) -> Iterator[tuple[Coordinates, Mapping[str, Any]]]:
        """Yield all points."""
        return ((point, params) for _, point, params, _ in self._from(0))

    def _left(
        self, is_taken: Callable[[Mapping[str, Any]], bool], *, beyond: bool
    ) -> Iterator[tuple[Coordinates, Mapping[str, Any]]]:
        """Yield the points without a trial; see `next_points`."""
        for _, point, params, least in self._from(self._closed):
            if not beyond and self._is_worse(least):
                return
            if point not in self._tried and not is_taken(params):
                yield point, params

    def _is_worse(self, least: Cost) -> bool:
        """Whether a point with this least cost surely comes after the best so far."""
        best = self._tried.lowest
        if best is None:
            return False
        parts = min(len(best), len(least))
        return least[:parts] > best[:parts]

    def _from(self, start: int) -> Iterator[tuple[int, Coordinates, Mapping[str, Any], Cost]]:
        """Yield the points from a place on, each with its place; open points as needed."""
        place = start
        while place < len(self._opened) or self._open():
            yield (place, *self._opened[place])
            place += 1

    def _open(self) -> bool:
        """Read one more point; False after the last one."""
        try:
            bounded = next(self._rest, None)
        except BaseException:
            # A generator that raised is at its end: a new one continues, if somebody asks again.
            self._rest = iter(self._points)
            raise
        if bounded is None:
            return False
        point = self.grid.coordinates(bounded[0])
        assert point is not None, "a bounded point lies in the space"
        self._opened.append((point, *bounded))
        return True


class _Tried:
    """The points that trials have, and the lowest cost of a finished one."""

    def __init__(self) -> None:
        self.complete: set[Coordinates] = set()
        self.lowest: Cost | None = None
        self._running: set[Coordinates] = set()

    def copy(self) -> _Tried:
        """Return a state that changes independently of this one."""
        made = _Tried()
        made.complete, made.lowest = self.complete.copy(), self.lowest
        return made

    def record(self, point: Coordinates, cost: Cost | None) -> None:
        """Take in a trial."""
        if cost is None:
            self._running.add(point)
            return
        self.complete.add(point)
        if self.lowest is None or cost < self.lowest:
            self.lowest = cost

    def __contains__(self, point: Coordinates) -> bool:
        return point in self.complete or point in self._running


class BoundSampler(RandomSampler):
    """Optuna's sampler of the best bounds first; random after all points are tried.

    In a single process it proposes no point twice; several processes can propose a point at the
    same time. Under ``study.optimize`` it stops the study as soon as the best is proven. A point
    whose trial failed is not tried again; then there is no proof.

    Parameters
    ----------
    search
        The points of the study.
    """

    def __init__(self, search: BestBoundFirst, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self._search = search
        self._proposed: list[Mapping[str, Any]] = []
        self._lock = threading.Lock()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return all axes."""
        return dict(self._search.grid.axes)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose the point with the best bound."""
        trials = study.get_trials(deepcopy=False)
        with self._lock:
            self._search.read(trials)
            points = self._search.next_points(1, self._proposed.__contains__, beyond=True)
            self._proposed += points
        return dict(points[0]) if points else {}

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Stop ``study.optimize`` if the trial, which is about to end, proves the best."""
        super().after_trial(study, trial, state, values)
        trials = list(study.get_trials(deepcopy=False))
        trials[trial.number] = _ended(trial, state, values)
        with self._lock:
            self._search.read(trials)
            if not self._search.is_proven:
                return
        with suppress(RuntimeError):  # raised under ask and tell, where nothing can be stopped
            study.stop()


def _ended(trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> FrozenTrial:
    """Return a copy of a trial with its final state and values."""
    ended = copy.copy(trial)
    ended.state = state
    ended.values = None if values is None else list(values)
    return ended
