"""States of a search that follow from the trials so far; no complete trial is read twice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from optuna.distributions import BaseDistribution
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState

from phaze_opt.study.samplers.grid import Coordinates, Grid

if TYPE_CHECKING:
    from optuna.study import Study

Cost = tuple[Any, ...]
"""Orders finished trials: the best has the smallest."""

Replayed = tuple[Coordinates, Cost | None]
"""A trial as a search sees it: its point, and its cost unless it still runs."""

CostOf = Callable[[FrozenTrial], Cost]


class State(Protocol):
    """The state of a search; it follows from the trials in the order of their numbers."""

    def record(self, point: Coordinates, cost: Cost | None) -> None:
        """Take in the next trial; its cost is ``None`` while it runs."""

    def copy(self) -> Self:
        """Return a state that changes independently of this one."""


class ProposingState(State, Protocol):
    """The state of a search that proposes the next point."""

    def propose(self, seed: int) -> Coordinates | None:
        """Return a point; ``None`` during the start, where points are random."""


S_co = TypeVar("S_co", bound=State, covariant=True)


class TrialReplay(Generic[S_co]):
    """Replays complete and running trials in the order of their numbers.

    The trials before the first one that still runs are settled, and the state takes them in once.
    A copy of the state takes in the trials after it, each time anew: they may end in any order. One
    worker has no such trials. The result equals that of a replay from the beginning.

    Parameters
    ----------
    grid
        All axes.
    cost
        Order of finished trials.
    start
        The state before the first trial.
    """

    def __init__(self, grid: Grid, cost: CostOf, start: S_co) -> None:
        self.grid = grid
        self._cost = cost
        self._settled = start
        self._settled_trials = 0
        self._complete: dict[int, Replayed | None] = {}

    def settle(self, replayed: Iterable[Replayed | None]) -> None:
        """Take in the next finished trials, each as point and cost, or ``None`` without them."""
        for trial in replayed:
            if trial is not None:
                self._settled.record(*trial)
            self._settled_trials += 1

    def state(self, trials: Sequence[FrozenTrial]) -> S_co:
        """Return the state after all trials of the study.

        Parameters
        ----------
        trials
            By number; those that are settled may be left out.
        """
        first = bisect_left(trials, self._settled_trials, key=lambda trial: trial.number)
        while first < len(trials) and self._is_next(trials[first]):
            self.settle([self._read(trials[first])])
            self._complete.pop(trials[first].number, None)
            first += 1
        unsettled = [self._read(trial) for trial in trials[first:]]
        state = self._settled
        for replayed in filter(None, unsettled):
            state = state.copy() if state is self._settled else state
            state.record(*replayed)
        return state

    def _is_next(self, trial: FrozenTrial) -> bool:
        """Whether a trial is finished, and none before it is missing."""
        return trial.number == self._settled_trials and trial.state.is_finished()

    def _read(self, trial: FrozenTrial) -> Replayed | None:
        """Return point and cost of a trial; ``None`` if it failed or its point is not on the grid.

        A complete trial is read once.
        """
        if trial.number in self._complete:
            return self._complete[trial.number]
        if trial.state not in (TrialState.COMPLETE, TrialState.RUNNING):
            return None
        point = self.grid.coordinates(trial.params)
        cost = self._cost(trial) if trial.values else None
        replayed = None if point is None else (point, cost)
        if trial.state == TrialState.COMPLETE:
            self._complete[trial.number] = replayed
        return replayed


class ReplaySampler(RandomSampler):
    """The next point of a search, or a random point during its start."""

    def __init__(self, seed: int, replay: TrialReplay[ProposingState]) -> None:
        super().__init__(seed=seed)
        self._seed = seed
        self._replay = replay

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return all axes."""
        return dict(self._replay.grid.axes)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose a point; nothing during the start, where the random sampler proposes."""
        point = self._replay.state(study.get_trials(deepcopy=False)).propose(self._seed)
        return {} if point is None else self._replay.grid.params(point)
