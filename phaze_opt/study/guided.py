"""The sampler ``bound`` of a study: its points, best bound first.

In a run, a ticket gives a point to its trial (`worker`); `bound_sampler` returns a sampler for any
Optuna study over the space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial

from phaze_opt.bounds.best_first import BestFirst
from phaze_opt.bounds.bounding import SpacePart, bound_parts
from phaze_opt.bounds.needless_memory import NeedlessMemory
from phaze_opt.bounds.point_grid import PointGrid
from phaze_opt.bounds.study_bounds import StudyBounds, check_bounded
from phaze_opt.on_demand import cached_property
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.objectives import Measured
from phaze_opt.spec.ordering import head_of, value_bin
from phaze_opt.spec.space import distributions, params_of, point_of
from phaze_opt.store.caches import NoEvaluations, ScheduleCache
from phaze_opt.store.enumerations import BoundStore
from phaze_opt.study.objective import Objective, evaluator_of
from phaze_opt.study.samplers.bound import BestBoundFirst, BoundedParams, BoundSampler
from phaze_opt.study.samplers.grid import Grid
from phaze_opt.study.samplers.likely import Look
from phaze_opt.study.samplers.replay import Cost, CostOf
from phaze_opt.workload.graph import Workload

_LIKELY = 1.03
"""The first careful guess of the power is larger by this factor, the second by its third power, the
third by its sixth."""


def best_bound_first(
    study: ResolvedStudy,
    workloads: Sequence[Workload],
    reference: Sequence[Measured],
    store: BoundStore | None,
    cost: CostOf,
) -> BestBoundFirst:
    """Return the points of a study, best bound first, and the proof by its trials.

    Parameters
    ----------
    study, workloads, reference
        See `phaze_opt.study.objective.Objective`.
    store
        Keeps bounds, so that only one process computes each; ``None`` to keep none.
    cost
        Order of finished trials; see `phaze_opt.study.trials.trial_cost`.

    Raises
    ------
    InputError
        If no bound of the objective is known, or the space is too large.
    """
    check_bounded(study.spec.objectives)
    points = _PointsByBound(study, workloads, reference, store)
    guess, look = None, None
    if study.spec.constraints.limits_power:
        # The best bounds are of chips that take just as much, and most of these take more.
        guess, look = points.guess, _look(study, workloads, reference)
    return BestBoundFirst(Grid.of(distributions(study.spec.space)), points, cost, guess, look)


def _look(
    study: ResolvedStudy, workloads: Sequence[Workload], reference: Sequence[Measured]
) -> Look:
    """Return a function that evaluates points of a study without a trial, and stores nothing."""
    kept = NoEvaluations(), ScheduleCache(None)
    objective = Objective(study, workloads, *kept, evaluator_of(study), reference)

    def look(params: Mapping[str, Any]) -> Cost:
        point = point_of(study.spec.space, params)
        metrics = objective(point)
        return (0, *metrics.rank(study, point).key) if metrics.feasible else (1,)

    return look


def bound_sampler(
    study: ResolvedStudy,
    workloads: Sequence[Workload],
    reference: Sequence[Measured] = (),
    store: BoundStore | None = None,
) -> BoundSampler:
    """Return a sampler for any Optuna study over a space that has the study's objective.

    Its trials suggest the parameters of `phaze_opt.spec.space.distributions`; their values are
    those of the objective; of an infeasible point as `ObjectiveKind.told` says.

    Parameters
    ----------
    study, workloads
        From `phaze_opt.spec.freezing.freeze`.
    reference, store
        See `best_bound_first`.
    """
    (kind, *_) = study.spec.objective_kinds

    def cost_of_value(trial: FrozenTrial) -> Cost:
        """Order finished trials by the bins of their values: they have no other data."""
        assert trial.values is not None
        value = trial.values[0]
        if not 0.0 < value < kind.ceiling:
            return (1, abs(value))
        return (0, -value_bin(value) if kind.maximise else value_bin(value))

    search = best_bound_first(study, workloads, reference, store, cost_of_value)
    return BoundSampler(search, study.spec.search.seed)


class _PointsByBound:
    """All points that may be feasible, in the order of their best possible ranks.

    Points with `NeedlessMemory` are left out: an equally fast point with a smaller HBM comes first.
    A further iteration continues after the last point.
    """

    def __init__(
        self,
        study: ResolvedStudy,
        workloads: Sequence[Workload],
        reference: Sequence[Measured],
        store: BoundStore | None,
    ) -> None:
        self._study = study
        self._study_bounds = StudyBounds(study, workloads, reference)
        self._store = store
        self._places: dict[tuple[Any, ...], tuple[int, int, int]] = {}

    @cached_property
    def _points(self) -> BestFirst:
        """The points; their chips are listed when the first point is needed."""
        return BestFirst(PointGrid.of(self._study), self._study_bounds, self._store)

    @cached_property
    def _needless(self) -> NeedlessMemory:
        """Finds the sizes of the HBM that change nothing."""
        return NeedlessMemory(self._study, self._study_bounds, self._points.grid.chips)

    def __iter__(self) -> Iterator[BoundedParams]:
        for bounded in self._points:
            if not self._needless.has(bounded.point):
                params = params_of(self._study.spec.space, bounded.point)
                self._places[_key(params)] = bounded.place
                # Costs of feasible trials begin with 0, and go on with the key of their rank.
                yield params, (0, *bounded.head)

    def guess(self, points: Sequence[Mapping[str, Any]], care: int) -> list[Cost]:
        """Guess the costs of points by their least times, and the power that these take.

        Parameters
        ----------
        points
            Parameters that were yielded before.
        care
            How much larger the power is guessed.
        """
        likely = replace(self._study_bounds, likely=_LIKELY ** (care * (care + 1) / 2))
        grid, costs = self._points.grid, dict[int, Cost]()
        maximise = self._study_bounds.bounded.maximise
        places = np.array([self._places[_key(params)] for params in points]).reshape(-1, 3)
        for option in np.unique(places[:, 0]).tolist():
            where = np.flatnonzero(places[:, 0] == option)
            rows, column = np.unique(places[where, 2], return_inverse=True)
            part = SpacePart(option, tuple((row, row + 1) for row in rows.tolist()))
            (merits,) = bound_parts(grid, likely, [part])
            hbm_bytes, areas_mm2 = grid.chips.hbm_bytes(rows), grid.chips.areas_mm2(rows)
            for index, size, row in zip(where, places[where, 1], column.reshape(-1), strict=True):
                merit = float(merits[size, row])
                area_mm2 = float(areas_mm2[row])
                costs[int(index)] = (1,)
                if merit > 0.0:
                    costs[int(index)] = (
                        0,
                        *head_of(merit, int(hbm_bytes[size, row]), area_mm2, maximise),
                    )
        return [costs[index] for index in range(len(points))]


def _key(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return parameters as a key."""
    return tuple(params.values())
