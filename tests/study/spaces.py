"""Random spaces, and studies in memory over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import optuna
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from phaze_opt.spec.sampler_options import SamplerName, SamplerOptions
from phaze_opt.study.samplers.by_name import Samplers
from phaze_opt.study.samplers.grid import Grid
from phaze_opt.study.samplers.replay import Cost, CostOf

Space = Mapping[str, BaseDistribution]
Params = dict[str, Any]
Given = Sequence[Params]


def _integers(low: int, steps: int, step: int) -> IntDistribution:
    """Return integers, every ``step``-th."""
    return IntDistribution(low, low + steps * step, step=step)


def _floats(low: int, steps: int, step: float) -> FloatDistribution:
    """Return floats, every ``step``."""
    return FloatDistribution(low, round(low + steps * step, 9), step=step)


def axes(most: int = 6) -> st.SearchStrategy[BaseDistribution]:
    """Draw an axis of each kind, with one value or a few."""
    steps = st.integers(0, most - 1)
    choices: list[Any] = ["none", "full", 3, 2.5, True, None]
    return st.one_of(
        st.builds(_integers, st.integers(-5, 5), steps, st.sampled_from([1, 3])),
        st.builds(_floats, st.integers(-2, 2), steps, st.sampled_from([0.1, 0.25, 0.7])),
        st.integers(1, most).map(lambda number: CategoricalDistribution(choices[:number])),
    )


def spaces(largest: int = 5, most: int = 6) -> st.SearchStrategy[Space]:
    """Draw a space of some axes, in any order of names."""
    names = st.sampled_from("abcdefgh")
    return st.dictionaries(names, axes(most), min_size=1, max_size=largest)


def negative_value(trial: FrozenTrial) -> Cost:
    """Order finished trials by their value."""
    assert trial.values is not None
    return (-trial.values[0],)


def hill(grid: Grid, params: Params) -> float:
    """Return a value that is highest in the middle of the grid; some points are infeasible."""
    point = grid.coordinates(params)
    assert point is not None
    away = sum(abs(index - size // 2) for index, size in zip(point, grid.sizes, strict=True))
    return -float(away) if away > 6 else 10.0 - away


class Played:
    """A study in memory, whose processes can be replaced between any two trials.

    Attributes
    ----------
    study
        Optuna's.
    """

    def __init__(
        self,
        space: Space,
        name: SamplerName,
        given: Given = (),
        options: SamplerOptions | None = None,
        seed: int = 3,
        cost: CostOf = negative_value,
        value: Callable[[Params], float] | None = None,
    ) -> None:
        self.space = space
        self.grid = Grid.of(space)
        self.study = optuna.create_study(direction="maximize")
        self._new_process = partial(Samplers, name, seed, space, cost, options)
        self._given = given
        self._value = value or partial(hill, self.grid)
        self._process = self._new_process()

    def restart(self) -> None:
        """Go on in a new process, which knows only what the database holds."""
        self._process = self._new_process()
        self.study = optuna.load_study(
            study_name=self.study.study_name, storage=self.study._storage
        )

    def ask(self, ticket: int, given: Params | None = None) -> optuna.Trial:
        """Ask for the point of a ticket."""
        if given is None and ticket < len(self._given):
            given = self._given[ticket]
        self.study.sampler = self._process.for_ticket(ticket, given)
        return self.study.ask(dict(self.space))

    def tell(self, trial: optuna.Trial) -> None:
        """Evaluate a point."""
        value = self._value(trial.params)
        trial.set_constraint("violation", max(0.0, -value))
        self.study.tell(trial, value)

    def play(
        self,
        trials: int,
        restart: Callable[[int], bool] = lambda ticket: False,
        lose: Callable[[int], bool] = lambda ticket: False,
    ) -> None:
        """Run trials one after the other.

        Parameters
        ----------
        restart
            Whether a ticket is served by a new process.
        lose
            Whether the trial of a ticket fails, and another one takes over its parameters.
        """
        for ticket in range(trials):
            if restart(ticket):
                self.restart()
            trial = self.ask(ticket)
            if lose(ticket):
                self.study.tell(trial, state=TrialState.FAIL)
                self.restart()
                trial = self.ask(ticket, trial.params)
            self.tell(trial)

    @property
    def points(self) -> list[Params]:
        """The points of the complete trials, by number."""
        return [trial.params for trial in self.study.get_trials(states=(TrialState.COMPLETE,))]
