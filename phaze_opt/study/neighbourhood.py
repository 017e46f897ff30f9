"""What one step from the best design brings on each axis, the others kept: what the design needs.

The order of the values of an axis is that of the space; what an evaluation solves, the placement
among it, is solved for every step anew.
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
class Step:
    """One step from a design along one axis.

    Attributes
    ----------
    axis, up
        Which axis, and whether to the next value or to the one before.
    value
        Where it leads; ``None`` where the axis ends.
    followers
        Axes that follow from this one, and have another value too.
    metrics
        Of the design there; ``None`` where there is none, or nobody has evaluated it.
    """

    axis: str
    up: bool
    value: Scalar | None = None
    followers: tuple[str, ...] = ()
    metrics: Metrics | None = None


def points_around(
    space: Space, point: DesignPoint
) -> Iterator[tuple[str, bool, DesignPoint | None]]:
    """Yield the axis, whether it goes up, and the point of every step; ``None`` beyond an end."""
    at = {name: axis.values.index(point[name]) for name, axis in space.searched.items()}
    for name, axis in space.searched.items():
        if len(axis.values) == 1:
            continue
        for up in (False, True):
            index = at[name] + (1 if up else -1)
            inside = 0 <= index < len(axis.values)
            yield name, up, point_at(space, {**at, name: index}) if inside else None


def keys_around(study: ResolvedStudy, point: DesignPoint) -> set[str]:
    """Return the keys of all evaluations that the steps from a point may need."""
    keys = set()
    for _, _, there in points_around(study.spec.space, point):
        # A step may lead to no chip, or to options that exclude each other: nothing is evaluated.
        with suppress(InputError):
            if there is not None:
                design = study.design(there)
                for run in range(len(study.spec.runs)):
                    keys |= {evaluation_key(study, one) for one in run_inputs(study, run, design)}
    return keys


def known_steps(study: StoredStudy, best: BestDesign) -> tuple[Step, ...]:
    """Return the steps from the best design as far as they are evaluated; nothing is computed."""
    objective = Objective(
        study.resolved, (), ReadOnlyCache(study.storage), ScheduleCache(study.storage)
    )
    return _steps(objective, best)


def evaluated_steps(study: StoredStudy, evaluator: Evaluator, best: BestDesign) -> tuple[Step, ...]:
    """Return the steps from the best design; what nobody has evaluated yet is evaluated and stored.

    In a database that cannot be written it is evaluated only, and in a study of another version of
    the cost model not even that.
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


def _steps(objective: Objective, best: BestDesign) -> tuple[Step, ...]:
    """Return the steps from a design with the metrics that an objective finds, or has.

    Nothing where what the values of several workloads are relative to is damaged.
    """
    space, runs = objective.study.spec.space, objective.study.spec.runs
    if len(runs) > 1:
        name = objective.study.spec.reference
        reference = next((one.measured for one in best.baselines if one.name == name), None)
        if reference is None:
            return ()
        objective = replace(objective, reference=reference)
    found = []
    for name, up, there in points_around(space, best.point):
        if there is None:
            found.append(Step(name, up))
            continue
        metrics = None
        with suppress(NotStoredError):
            metrics = objective(there)
        followers = tuple(one for one in space.derived if there[one] != best.point[one])
        found.append(Step(name, up, there[name], followers, metrics))
    return tuple(found)
