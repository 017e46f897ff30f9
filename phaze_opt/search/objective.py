"""The objective: from a point to its metrics, by the area first and then by the cost model."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace

from phaze_opt.codec import to_builtins
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.search.frozen import ResolvedStudy, content_hash
from phaze_opt.search.space import DesignPoint
from phaze_opt.search.store.caches import EvaluationCache, ScheduleCache
from phaze_opt.search.trials import SMALLEST_VIOLATION, Metrics, metrics_of
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload

Evaluator = Callable[
    [Workload, Accelerator, Cluster, Training, MutableMapping[str, Schedule]], Evaluation
]
"""Evaluates one point with a cache of schedules; tests put a faster one in its place."""


def evaluate_point(
    workload: Workload,
    accelerator: Accelerator,
    cluster: Cluster,
    training: Training,
    cache: MutableMapping[str, Schedule],
) -> Evaluation:
    """Evaluate a point with the cost model, at its best placement."""
    return evaluate(workload, accelerator, cluster, training, cache=cache)


@dataclass
class Objective:
    """Evaluates points of one study.

    Attributes
    ----------
    evaluations, schedules
        Where results are looked up and kept.
    """

    study: ResolvedStudy
    workload: Workload
    evaluations: EvaluationCache
    schedules: ScheduleCache
    evaluator: Evaluator = evaluate_point

    def __call__(self, point: DesignPoint) -> Metrics:
        """Check the area, then evaluate the point unless its evaluation is stored."""
        started_s = time.monotonic()
        accelerator = self.study.accelerator(point)
        area_mm2 = accelerator.area_under(self.study.spec.area.model)
        too_much = _area_excess(self.study, point, area_mm2)
        if too_much is not None:
            violation, reason = too_much
            return Metrics(
                feasible=False,
                reason=reason,
                violation=max(violation, SMALLEST_VIOLATION),
                throughput_samples_per_s=0.0,
                area_mm2=area_mm2,
                energy_j_per_batch=None,
                evaluation_key=None,
                cached=False,
                proven_schedules=0,
                schedules=0,
                evaluate_s=time.monotonic() - started_s,
            )
        training = self.study.training(point.microbatch, point.recompute)
        self.schedules.take_effort()
        key, evaluation, cached = self.evaluate(accelerator, training)
        metrics = metrics_of(evaluation, key, cached, area_mm2, time.monotonic() - started_s)
        effort = self.schedules.take_effort()
        return replace(
            metrics, needed_schedules=effort.needed, quickly_proven_schedules=effort.quick
        )

    def evaluate(
        self, accelerator: Accelerator, training: Training
    ) -> tuple[str, Evaluation, bool]:
        """Return an evaluation with its key, and whether it was stored already."""
        key = evaluation_key(self.study, accelerator, training)

        def compute() -> Evaluation:
            return self.evaluator(
                self.workload, accelerator, self.study.cluster, training, self.schedules
            )

        evaluation, cached = self.evaluations.get_or_compute(key, compute)
        if not cached:
            self.schedules.flush()
        return key, evaluation, cached


def _area_excess(
    study: ResolvedStudy, point: DesignPoint, area_mm2: float
) -> tuple[float, str] | None:
    """Return relative excess and sentence where a chip is too large (or, if asked, too small)."""
    limit_mm2 = study.area_limit_mm2
    if area_mm2 > limit_mm2:
        return (
            area_mm2 / limit_mm2 - 1.0,
            f"The area of {area_mm2:.6g} mm² is above the limit of {limit_mm2:.6g} mm².",
        )
    least_mm2 = study.spec.area.min_share * limit_mm2
    # The paper exempts chips with a single core of either kind from its lower bound.
    if area_mm2 < least_mm2 and point.num_tc > 1 and point.num_vc > 1:
        return (
            least_mm2 / area_mm2 - 1.0,
            f"The area of {area_mm2:.6g} mm² is below the least of {least_mm2:.6g} mm².",
        )
    return None


def evaluation_key(study: ResolvedStudy, accelerator: Accelerator, training: Training) -> str:
    """Hash all inputs of an evaluation, the version of the cost model included."""
    return content_hash(
        {
            "workload": study.workload_hash,
            "accelerator": to_builtins(accelerator),
            "cluster": to_builtins(study.cluster),
            "training": to_builtins(training),
            "cost_model_version": study.cost_model_version,
        }
    )
