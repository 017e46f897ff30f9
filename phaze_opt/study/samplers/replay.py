"""What follows from the trials of a study so far, without reading them all again for each one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from optuna.distributions import BaseDistribution
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState

from phaze_opt.study.samplers.grid import Coordinates, Grid

if TYPE_CHECKING:
    from optuna.study import Study

Cost = tuple[Any, ...]
"""Orders finished trials: the best has the smallest."""

CostOf = Callable[[FrozenTrial], Cost]


@dataclass(frozen=True)
class Seen:
    """A trial as a sampler sees it.

    Attributes
    ----------
    cost
        ``None`` while the trial runs.
    """

    point: Coordinates
    cost: Cost | None


class State(Protocol):
    """What follows from trials in the order of their numbers."""

    def record(self, trial: Seen) -> None:
        """Take in the next trial."""

    def copy(self) -> Self:
        """Return a state that can go on by itself."""


S = TypeVar("S", bound=State)


class Replay(Generic[S]):
    """Replays complete and running trials in the order of their numbers.

    The trials before the first that still runs are settled and taken in once. Those after it are
    taken in by a copy, each time anew: they may end in any order, and with one worker there are
    none. The answer is that of a replay from the beginning.
    """

    def __init__(self, grid: Grid, cost: CostOf, start: S) -> None:
        self._grid = grid
        self._cost = cost
        self._settled = start
        self._settled_trials = 0
        self._seen: dict[int, Seen | None] = {}

    def state(self, trials: Sequence[FrozenTrial]) -> S:
        """Return what follows from all trials of the study, given in the order of their numbers."""
        while self._is_settled(trials):
            seen = self._see(trials[self._settled_trials])
            if seen is not None:
                self._settled.record(seen)
            self._seen.pop(self._settled_trials, None)
            self._settled_trials += 1
        unsettled = [self._see(trial) for trial in trials[self._settled_trials :]]
        state = self._settled
        for seen in filter(None, unsettled):
            state = state.copy() if state is self._settled else state
            state.record(seen)
        return state

    def _is_settled(self, trials: Sequence[FrozenTrial]) -> bool:
        """Whether the next trial is finished, and none before it is missing."""
        number = self._settled_trials
        if number >= len(trials):
            return False
        return trials[number].number == number and trials[number].state.is_finished()

    def _see(self, trial: FrozenTrial) -> Seen | None:
        """Read one trial, unless it failed or is no point of the space; a complete one once."""
        if trial.number in self._seen:
            return self._seen[trial.number]
        if trial.state not in (TrialState.COMPLETE, TrialState.RUNNING):
            return None
        point = self._grid.coordinates(trial.params)
        cost = self._cost(trial) if trial.values else None
        seen = None if point is None else Seen(point, cost)
        if trial.state == TrialState.COMPLETE:
            self._seen[trial.number] = seen
        return seen


class Proposer(Protocol):
    """Proposes points by what follows from the trials so far.

    Attributes
    ----------
    grid
        All axes.
    """

    grid: Grid

    def propose(self, trials: Sequence[FrozenTrial], seed: int) -> dict[str, Any]:
        """Propose a point; nothing during the start, where points are random.

        Parameters
        ----------
        trials
            All of the study, by number.
        seed
            Of this proposal.
        """


class ReplaySampler(RandomSampler):
    """The next point of a `Proposer`, or a random one."""

    def __init__(self, seed: int, proposer: Proposer) -> None:
        super().__init__(seed=seed)
        self._seed = seed
        self._proposer = proposer

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Take all axes."""
        return dict(self._proposer.grid.axes)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose a point; nothing during the start, where the random sampler proposes."""
        return self._proposer.propose(study.get_trials(deepcopy=False), self._seed)
