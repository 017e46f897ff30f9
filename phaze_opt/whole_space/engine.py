"""The engine that bounds and evaluates the points of one study, once in every process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.bounding import SpacePart, bound_parts
from phaze_opt.bounds.point_grid import Place, PointGrid
from phaze_opt.bounds.study_bounds import StudyBounds
from phaze_opt.spec.objectives import OBJECTIVES, ObjectiveName
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.variations import Variation, varied
from phaze_opt.store.caches import EvaluationCache, NoEvaluations, ScheduleCache
from phaze_opt.store.leases import LeaseKeeper, new_token
from phaze_opt.store.opening import open_storage
from phaze_opt.store.stored_study import StoredStudy, find_study
from phaze_opt.study.baselines import find_reference
from phaze_opt.study.objective import Evaluator, Objective, TakesLonger
from phaze_opt.study.trials import Metrics

LEASE_S = 10.0
"""Lease of the points of a process, in seconds; after it, others evaluate the points."""


class Engine:
    """Bounds and evaluates points of a stored study, with the caches of its database.

    Parameters
    ----------
    study
        A study whose baselines are evaluated.
    evaluator
        Evaluates one workload on one chip.
    bounded
        What is bounded; ``None`` for the first objective of the study.
    keeps
        Whether the database keeps evaluations and schedules, and gives those that it has.
    """

    def __init__(
        self,
        study: StoredStudy,
        evaluator: Evaluator,
        bounded: ObjectiveName | None = None,
        *,
        keeps: bool = True,
    ) -> None:
        resolved, workloads = study.resolved, study.workloads()
        reference = find_reference(resolved.nominal, study.storage)
        self.token = new_token()
        self.objective = Objective(
            resolved,
            workloads,
            EvaluationCache(study.storage, self.token, LEASE_S) if keeps else NoEvaluations(),
            ScheduleCache(study.storage if keeps else None),
            evaluator,
            reference,
        )
        self.grid = PointGrid.of(resolved)
        kind = None if bounded is None else OBJECTIVES[bounded]
        self.rule = StudyBounds(resolved, workloads, reference, kind)

    def bound(self, parts: Sequence[SpacePart]) -> list[FloatArray]:
        """Bound the architectures of each part; see `phaze_opt.bounds.bounding.Bounder`."""
        return bound_parts(self.grid, self.rule, parts)

    def evaluate(
        self, points: Sequence[DesignPoint], places: Sequence[Place] = ()
    ) -> list[Metrics]:
        """Evaluate points.

        Parameters
        ----------
        points
            Of the study's space.
        places
            Where they are in the grid: solved options that surely lose are not evaluated then.
            Without them every option is; the answer is the same.
        """
        evaluations = self.objective.evaluations
        with LeaseKeeper([evaluations], self.token, LEASE_S):
            if not places:
                return [self.objective(point) for point in points]
            bounded = zip(points, map(self._takes_longer, places), strict=True)
            return [self.objective(point, takes_longer) for point, takes_longer in bounded]

    def _takes_longer(self, place: Place) -> TakesLonger:
        """Return what bounds the options of a point."""
        _, size, row = place
        chip = BoundedChips.of(self.grid.chips, np.array([row]))
        return partial(self.rule.takes_longer, chip, size)


@dataclass(frozen=True)
class EngineJob:
    """The study of an engine, as another process receives it.

    Attributes
    ----------
    url
        URL of the database; ``None`` if the environment holds it.
    study
        Name of the study.
    bounded
        See `Engine`.
    variation
        Variation of a constant of the cost model, if any.
    """

    url: str | None
    study: str
    evaluator: Evaluator
    bounded: ObjectiveName | None = None
    variation: Variation | None = None


@lru_cache(maxsize=1)
def engine_of(job: EngineJob) -> Engine:
    """Return the engine of a study in this process."""
    study = find_study(job.study, open_storage(job.url))
    if job.variation is not None:
        study.resolved = varied(study.resolved, job.variation)
    return Engine(study, job.evaluator, job.bounded)


def bound_there(job: EngineJob, parts: Sequence[SpacePart]) -> list[FloatArray]:
    """Bound parts of a space, in whatever process this runs."""
    return engine_of(job).bound(parts)


def evaluate_there(
    job: EngineJob, points: Sequence[DesignPoint], places: Sequence[Place] = ()
) -> list[Metrics]:
    """Evaluate points, in whatever process this runs."""
    return engine_of(job).evaluate(points, places)
