"""From a point to what the search is told: area first, then the cost model, then one number.

An infeasible point is told a negative value, the relative excess of what does not fit, beside its
constraint: samplers then know in which direction the feasible points lie, and no viewer that looks
at values alone takes an infeasible point for the best one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

from phaze_opt.codec import from_builtins, to_builtins
from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.search.frozen import ResolvedStudy, content_hash
from phaze_opt.search.ordering import Rank
from phaze_opt.search.space import DesignPoint
from phaze_opt.search.store.caches import EvaluationCache, ScheduleCache
from phaze_opt.training import Training
from phaze_opt.units import GIB
from phaze_opt.workload.graph import Workload

_SMALLEST_VIOLATION = 1e-9

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


@dataclass(frozen=True)
class Metrics:
    """What a trial keeps about its point; the one user attribute of a trial.

    Attributes
    ----------
    violation
        Relative excess of what does not fit; 0 if feasible.
    evaluation_key
        Of the full evaluation in the database; ``None`` where the area ruled the point out first.
    cached
        Whether the evaluation was there already.
    proven_schedules, schedules
        How many of the layers' schedules are proven optimal.
    evaluate_s
        Time it took on this worker's clock.
    needed_schedules, quickly_proven_schedules
        See `phaze_opt.search.store.caches.ProofEffort`; none where the evaluation was there
        already.
    """

    feasible: bool
    reason: str | None
    violation: float
    throughput_samples_per_s: float
    area_mm2: float
    energy_j_per_batch: float | None
    evaluation_key: str | None
    cached: bool
    proven_schedules: int
    schedules: int
    evaluate_s: float
    needed_schedules: int = 0
    quickly_proven_schedules: int = 0

    def __post_init__(self) -> None:
        numbers = (self.violation, self.throughput_samples_per_s, self.area_mm2, self.evaluate_s)
        known = all(map(math.isfinite, numbers)) and self.value != 0
        if not known or self.feasible != (self.value > 0):
            raise InputError(f"{self} are not the metrics of a point.")

    @property
    def value(self) -> float:
        """What the search maximises."""
        return self.throughput_samples_per_s if self.feasible else -self.violation

    def rank(self, point: DesignPoint) -> Rank:
        """Return the place of a feasible design in the total order."""
        return Rank(
            throughput_samples_per_s=self.throughput_samples_per_s,
            hbm_bytes=point.hbm_gib * GIB,
            area_mm2=self.area_mm2,
            energy_j=self.energy_j_per_batch,
            configuration=point.configuration,
        )


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
        """Check the area, then evaluate unless that was done before."""
        started_s = time.monotonic()
        accelerator = self.study.accelerator(point)
        area_mm2 = accelerator.area_under(self.study.spec.area.model)
        too_much = area_violation(self.study, point, area_mm2)
        if too_much is not None:
            violation, reason = too_much
            return Metrics(
                feasible=False,
                reason=reason,
                violation=max(violation, _SMALLEST_VIOLATION),
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


def area_violation(
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
    """Hash everything that decides an evaluation."""
    return content_hash(
        {
            "workload": study.workload_hash,
            "accelerator": to_builtins(accelerator),
            "cluster": to_builtins(study.cluster),
            "training": to_builtins(training),
            "cost_model_version": study.cost_model_version,
        }
    )


def metrics_of(
    evaluation: Evaluation, key: str, cached: bool, area_mm2: float, evaluate_s: float
) -> Metrics:
    """Take from an evaluation what the search and its reports need."""
    proofs = [
        proof.status == "optimal"
        for layer in evaluation.layers
        for proof in (layer.forward_schedule, layer.backward_schedule)
    ]
    feasible = evaluation.feasible
    return Metrics(
        feasible=feasible,
        reason=evaluation.reason,
        violation=0.0 if feasible else max(evaluation.violation, _SMALLEST_VIOLATION),
        throughput_samples_per_s=evaluation.throughput_samples_per_s,
        area_mm2=area_mm2,
        energy_j_per_batch=evaluation.energy_j_per_batch if feasible else None,
        evaluation_key=key,
        cached=cached,
        proven_schedules=sum(proofs),
        schedules=len(proofs),
        evaluate_s=evaluate_s,
    )


def metrics_from_plain(plain: object) -> Metrics | None:
    """Read the user attribute of a trial; ``None`` where it is not one of ours."""
    if not isinstance(plain, Mapping):
        return None
    try:
        return from_builtins(dict(plain), Metrics, "metrics of a trial")
    except InputError:
        return None


def metrics_to_plain(metrics: Metrics) -> dict[str, Any]:
    """Write metrics as the user attribute of a trial."""
    plain: dict[str, Any] = to_builtins(metrics)
    return plain
