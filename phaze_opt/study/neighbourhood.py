"""Steps from the best design: one step on one axis, with all other axes kept.

The values of an axis have the order of the space. Every step solves its placement and the solved
options anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from phaze_opt.errors import InputError
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.frozen import ResolvedStudy, current_version
from phaze_opt.spec.run_inputs import run_inputs
from phaze_opt.spec.space import DesignPoint, Space, point_at
from phaze_opt.store.caches import (
    EvaluationCache,
    NotStoredError,
    ReadOnlyCache,
    ScheduleCache,
)
from phaze_opt.store.failures import DatabaseError
from phaze_opt.store.leases import DEFAULT_LEASE_S, LeaseKeeper, new_token
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.study.best_design import BestDesign
from phaze_opt.study.objective import Evaluator, Objective, evaluation_key
from phaze_opt.study.trials import Metrics


@dataclass(frozen=True)
class DesignStep:
    """One step from a design along one axis.

    Attributes
    ----------
    axis, up
        The axis, and whether the step leads to the next or to the previous value.
    value
        Value after the step; ``None`` if the axis ends.
    followers
        Derived axes whose values also change.
    metrics
        Metrics after the step; ``None`` if the axis ends, or the design is not evaluated.
    """

    axis: str
    up: bool
    value: Scalar | None = None
    followers: tuple[str, ...] = ()
    metrics: Metrics | None = None


def points_around(
    space: Space, point: DesignPoint
) -> Iterator[tuple[str, bool, DesignPoint | None]]:
    """Yield axis, direction (up) and point of every step; the point is ``None`` beyond an end."""
    indices = {name: axis.values.index(point[name]) for name, axis in space.searched.items()}
    for name, axis in space.searched.items():
        if len(axis.values) == 1:
            continue
        for up in (False, True):
            index = indices[name] + (1 if up else -1)
            inside = 0 <= index < len(axis.values)
            yield name, up, point_at(space, {**indices, name: index}) if inside else None


def keys_around(study: ResolvedStudy, point: DesignPoint) -> set[str]:
    """Return the keys of all evaluations of the steps from a point."""
    keys = set()
    for _, _, there in points_around(study.spec.space, point):
        # No evaluation for an impossible chip, or for options that exclude each other.
        with suppress(InputError):
            if there is not None:
                design = study.design(there)
                for run in range(len(study.spec.runs)):
                    inputs = run_inputs(study, run, design)
                    keys |= {evaluation_key(study, of_options) for of_options in inputs}
    return keys


def known_steps(study: StoredStudy, best: BestDesign) -> tuple[DesignStep, ...]:
    """Return the steps from the best design with their stored metrics; nothing is computed."""
    objective = Objective(
        study.resolved, (), ReadOnlyCache(study.storage), ScheduleCache(study.storage)
    )
    return _steps(objective, best)


def evaluated_steps(
    study: StoredStudy, evaluator: Evaluator, best: BestDesign
) -> tuple[DesignStep, ...]:
    """Return the steps from the best design, each evaluated and stored if it was not before.

    If the database cannot be written, nothing is stored; in a study of another version of the cost
    model, nothing is evaluated.
    """
    if study.resolved.cost_model_version != current_version():
        return known_steps(study, best)
    token = new_token()
    stored = EvaluationCache(study.storage, token, DEFAULT_LEASE_S)
    schedules = ScheduleCache(study.storage)
    objective = Objective(study.resolved, study.workloads(), stored, schedules, evaluator)
    try:
        with LeaseKeeper([stored], token, DEFAULT_LEASE_S):
            return _steps(objective, best)
    except DatabaseError:
        reading = ReadOnlyCache(study.storage, computes=True)
        return _steps(replace(objective, evaluations=reading), best)


def _steps(objective: Objective, best: BestDesign) -> tuple[DesignStep, ...]:
    """Return the steps from a design with the metrics of an objective.

    No steps if the reference of several workloads is damaged.
    """
    space, runs = objective.study.spec.space, objective.study.spec.runs
    if len(runs) > 1:
        name = objective.study.spec.reference
        measured = {baseline.name: baseline.measured for baseline in best.baselines}
        reference = measured.get(name)
        if reference is None:
            return ()
        objective = replace(objective, reference=reference)
    steps = []
    for name, up, there in points_around(space, best.point):
        if there is None:
            steps.append(DesignStep(name, up))
            continue
        metrics = None
        with suppress(NotStoredError):
            metrics = objective(there)
        followers = tuple(axis for axis in space.derived if there[axis] != best.point[axis])
        steps.append(DesignStep(name, up, there[name], followers, metrics))
    return tuple(steps)
