"""The objective: from a point to its metrics; the area comes first, then the cost model."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from phaze_opt.codec import to_builtins
from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate_one
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.point import Point
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.spec.constraints import (
    NOT_BUILDABLE,
    SMALLEST_VIOLATION,
    Violation,
    chip_violation,
    run_violation,
    worst,
)
from phaze_opt.spec.designs import Design
from phaze_opt.spec.frozen import ResolvedStudy, content_hash
from phaze_opt.spec.objectives import Measured, ObjectiveKind, aggregated
from phaze_opt.spec.ordering import Rank, best_of
from phaze_opt.spec.run_inputs import RunInputs, run_inputs
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import PlacementChoice, StudySpec
from phaze_opt.store.caches import EvaluationCache, ScheduleCache
from phaze_opt.study.trials import Metrics, RunMetrics
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload

Evaluator = Callable[
    [Workload, Accelerator, Cluster, Training, MutableMapping[str, Schedule]], Evaluation
]
"""Evaluates a point with a cache of schedules; tests replace it by a faster function."""


def evaluate_point(
    workload: Workload,
    accelerator: Accelerator,
    cluster: Cluster,
    training: Training,
    cache: MutableMapping[str, Schedule],
    *,
    placement: PlacementChoice = "solve",
    lane_rate: float = 1.0,
) -> Evaluation:
    """Evaluate a point with the cost model, by default at its best placement."""
    point = Point(workload, accelerator, cluster, training, placement, lane_rate=lane_rate)
    return evaluate_one(point, cache)


def evaluator_of(study: ResolvedStudy) -> Evaluator:
    """Return the evaluator with the placement and the lane rate of a study."""
    placement, lane_rate = study.spec.placement, study.lane_rate
    if placement == "solve" and lane_rate == 1.0:
        return evaluate_point
    return partial(evaluate_point, placement=placement, lane_rate=lane_rate)


@dataclass(frozen=True)
class EvaluatedRun:
    """A workload evaluated on a design.

    Attributes
    ----------
    cached
        Whether the evaluation was stored before.
    violation
        The limit that it violates; ``None`` if feasible.
    """

    inputs: RunInputs
    key: str
    evaluation: Evaluation
    cached: bool
    violation: Violation | None


@dataclass
class Objective:
    """Evaluates points of a study.

    Attributes
    ----------
    workloads
        Captured, in the order of `phaze_opt.spec.freezing.captures`.
    evaluations, schedules
        Caches of results.
    reference
        Measures of every workload on the reference baseline; empty if there is one workload.
    """

    study: ResolvedStudy
    workloads: Sequence[Workload]
    evaluations: EvaluationCache
    schedules: ScheduleCache
    evaluator: Evaluator = evaluate_point
    reference: Sequence[Measured] = ()

    def __call__(self, point: DesignPoint) -> Metrics:
        """Check chip and area, then evaluate the point unless its evaluation is stored."""
        started_s = time.monotonic()
        area_mm2: float | None = None
        runs: list[EvaluatedRun] = []
        self.schedules.take_effort()
        try:
            design = self.study.design(point)
            violation = chip_violation(self.study, design.accelerator, design.cluster)
            area_mm2 = self.study.area_if_known_mm2(design.accelerator, design.cluster)
            if violation is None:
                runs = [self.best_run(index, design) for index in range(len(self.study.spec.runs))]
                violation = worst(run.violation for run in runs if run.violation is not None)
        except InputError as error:
            # A point of the space, but its chip, network or options cannot exist.
            violation = Violation("options", NOT_BUILDABLE, str(error))
        effort = self.schedules.take_effort()
        metrics = self._metrics(runs, violation, area_mm2)
        return replace(
            metrics,
            evaluate_s=time.monotonic() - started_s,
            needed_schedules=effort.needed,
            quickly_proven_schedules=effort.quick,
        )

    def best_run(self, run: int, design: Design) -> EvaluatedRun:
        """Evaluate one workload on a design, at the best of the solved options.

        Raises
        ------
        InputError
            If the options exclude each other in every combination.
        """
        runs = [self.evaluate(inputs) for inputs in run_inputs(self.study, run, design)]
        area_mm2 = self.study.area_if_known_mm2(design.accelerator, design.cluster) or 0.0
        return best_of_runs(self.study, runs, area_mm2)

    def evaluate(self, inputs: RunInputs) -> EvaluatedRun:
        """Evaluate one workload, unless its evaluation is stored."""
        key = evaluation_key(self.study, inputs)

        def compute() -> Evaluation:
            return self.evaluator(
                self.workloads[inputs.capture],
                inputs.accelerator,
                inputs.cluster,
                inputs.training,
                self.schedules,
            )

        evaluation, cached = self.evaluations.get_or_compute(key, compute, self.schedules)
        violation = run_violation(self.study.spec.constraints, evaluation)
        return EvaluatedRun(inputs, key, evaluation, cached, violation)

    def _metrics(
        self, runs: Sequence[EvaluatedRun], violation: Violation | None, area_mm2: float | None
    ) -> Metrics:
        """Return the metrics of a point from its evaluations."""
        kinds = self.study.spec.objective_kinds
        if violation is None:
            measured = [measured_run(run, area_mm2 or 0.0) for run in runs]
            values = objective_values(self.study.spec, measured, self.reference)
            told = tuple(kind.told(value, 0.0) for kind, value in zip(kinds, values, strict=True))
        else:
            excess = max(violation.excess, SMALLEST_VIOLATION)
            violation = replace(violation, excess=excess)
            told = tuple(kind.told(0.0, excess) for kind in kinds)
        proofs = [
            proof.status == "optimal"
            for run in runs
            for layer in run.evaluation.layers
            for proof in (layer.forward_schedule, layer.backward_schedule)
        ]
        names = [run.name for run in self.study.spec.runs]
        return Metrics(
            feasible=violation is None,
            reason=None if violation is None else violation.reason,
            violation=0.0 if violation is None else violation.excess,
            values=told,
            area_mm2=area_mm2,
            runs=tuple(run_metrics(name, run) for name, run in zip(names, runs, strict=False)),
            cached=bool(runs) and all(run.cached for run in runs),
            proven_schedules=sum(proofs),
            schedules=len(proofs),
            evaluate_s=0.0,
            limit=None if violation is None else violation.limit,
        )


def best_of_runs(
    study: ResolvedStudy, runs: Sequence[EvaluatedRun], area_mm2: float
) -> EvaluatedRun:
    """Return the best run of a workload by the first objective and the order of designs.

    If all are infeasible, the run with the smallest violation.
    """
    kind = study.spec.objective_kinds[0]
    feasible = []
    for place, run in enumerate(runs):
        if run.violation is None:
            measured = measured_run(run, area_mm2)
            rank = Rank(
                value=kind.of(measured),
                hbm_bytes=run.inputs.accelerator.hbm_bytes,
                area_mm2=area_mm2,
                energy_j=run.evaluation.energy_j_per_batch,
                configuration=(place,),
                maximise=kind.maximise,
            )
            feasible.append((rank, run))
    best = best_of(feasible)
    if best is not None:
        return best
    return min(runs, key=lambda run: 0.0 if run.violation is None else run.violation.excess)


def measured_run(run: EvaluatedRun, area_mm2: float) -> Measured:
    """Return the measures of a feasible run for the objectives."""
    evaluation, inputs = run.evaluation, run.inputs
    throughput, tokens = evaluation.throughput_samples_per_s, evaluation.tokens_per_s_per_device
    return Measured(
        throughput_samples_per_s=throughput,
        tokens_per_s=throughput if tokens is None else tokens * inputs.cluster.devices,
        energy_j_per_sample=evaluation.energy_j_per_batch / inputs.training.global_batch,
        power_w_per_device=evaluation.power_w_per_device,
        area_mm2=area_mm2,
        devices=inputs.cluster.devices,
    )


def objective_values(
    spec: StudySpec,
    measured: Sequence[Measured],
    reference: Sequence[Measured],
    kinds: Sequence[ObjectiveKind] | None = None,
) -> tuple[float, ...]:
    """Return the value of every objective; several workloads are joined by the aggregate.

    Parameters
    ----------
    spec
        The study.
    measured, reference
        Measures of every workload on a design, and on the reference.
    kinds
        The objectives; ``None`` for those of the study.
    """
    kinds = spec.objective_kinds if kinds is None else kinds
    if len(spec.runs) == 1:
        return tuple(kind.of(measured[0]) for kind in kinds)
    weights = [run.weight for run in spec.runs]
    return tuple(aggregated(kind, spec.aggregate, measured, reference, weights) for kind in kinds)


def run_metrics(name: str, run: EvaluatedRun) -> RunMetrics:
    """Return the metrics of a run that its trial stores."""
    feasible = run.evaluation.feasible
    return RunMetrics(
        workload=name,
        throughput_samples_per_s=run.evaluation.throughput_samples_per_s,
        energy_j_per_batch=run.evaluation.energy_j_per_batch if feasible else None,
        evaluation_key=run.key,
        chosen=run.inputs.chosen,
    )


def evaluation_key(study: ResolvedStudy, inputs: RunInputs) -> str:
    """Hash all inputs of an evaluation and the version of the cost model."""
    hashed = {
        "workload": study.workload_hashes[inputs.capture],
        "accelerator": to_builtins(inputs.accelerator),
        "cluster": to_builtins(inputs.cluster),
        "training": to_builtins(inputs.training),
        "cost_model_version": study.cost_model_version,
    }
    if study.spec.placement != "solve":
        hashed["placement"] = study.spec.placement
    if study.lane_rate != 1.0:
        hashed["lane_rate"] = study.lane_rate
    return content_hash(hashed)
