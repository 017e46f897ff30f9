"""What bounds and evaluates the points of one study, once in every process that does so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.bounding import SpacePart, bound_parts
from phaze_opt.bounds.point_grid import PointGrid
from phaze_opt.bounds.study_bounds import StudyBounds
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.variations import Variation, varied
from phaze_opt.store.caches import EvaluationCache, ScheduleCache
from phaze_opt.store.leases import LeaseKeeper, new_token
from phaze_opt.store.opening import open_storage
from phaze_opt.store.stored_study import StoredStudy, find_study
from phaze_opt.study.baselines import find_reference
from phaze_opt.study.objective import Evaluator, Objective
from phaze_opt.study.trials import Metrics

LEASE_S = 10.0
"""Seconds without a sign of life after which others evaluate the points of a process."""


class Engine:
    """Bounds and evaluates points of a stored study, with the caches of its database.

    Parameters
    ----------
    study
        Its baselines are evaluated.
    evaluator
        Evaluates one workload on one chip.
    """

    def __init__(self, study: StoredStudy, evaluator: Evaluator) -> None:
        resolved, workloads = study.resolved, study.workloads()
        reference = find_reference(resolved.nominal, study.storage)
        self.token = new_token()
        self.objective = Objective(
            resolved,
            workloads,
            EvaluationCache(study.storage, self.token, LEASE_S),
            ScheduleCache(study.storage),
            evaluator,
            reference,
        )
        self.grid = PointGrid.of(resolved)
        self.rule = StudyBounds(resolved, workloads, reference)

    def bound(self, parts: Sequence[SpacePart]) -> list[FloatArray]:
        """Bound the architectures of each part; see `phaze_opt.bounds.bounding.Bounder`."""
        return bound_parts(self.grid, self.rule, parts)

    def evaluate(self, points: Sequence[DesignPoint]) -> list[Metrics]:
        """Evaluate some points."""
        evaluations = self.objective.evaluations
        with LeaseKeeper([evaluations], self.token, LEASE_S):
            return [self.objective(point) for point in points]


@dataclass(frozen=True)
class EngineJob:
    """Names the study of an engine to another process.

    Attributes
    ----------
    url
        Of its database; ``None`` where the environment has it.
    variation
        Of the constants of its cost model, if any.
    """

    url: str | None
    study: str
    evaluator: Evaluator
    variation: Variation | None = None


@lru_cache(maxsize=1)
def engine_of(job: EngineJob) -> Engine:
    """Return this process's engine of a study."""
    study = find_study(job.study, open_storage(job.url))
    if job.variation is not None:
        study.resolved = varied(study.resolved, job.variation)
    return Engine(study, job.evaluator)


def bound_there(job: EngineJob, parts: Sequence[SpacePart]) -> list[FloatArray]:
    """Bound parts of a space; runs in any process."""
    return engine_of(job).bound(parts)


def evaluate_there(job: EngineJob, points: Sequence[DesignPoint]) -> list[Metrics]:
    """Evaluate points; runs in any process."""
    return engine_of(job).evaluate(points)
