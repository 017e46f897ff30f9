"""The objective: from a point to its metrics; the area comes first, then the cost model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from phaze_opt.codec import to_builtins
from phaze_opt.economics.choices import STANDARD, Economics
from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate_one
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.point import Point
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.spec.axes import Scalar
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
from phaze_opt.spec.objectives import RATE_OBJECTIVES, Measured, ObjectiveKind, aggregated
from phaze_opt.spec.ordering import Rank, best_of, head_of, least_merit
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

TakesLonger = Callable[[RunInputs, float], bool]
"""Whether a workload surely takes longer per batch than so many seconds, however it is placed."""

_ROUNDING = 1e-9
"""Relative margin of a time, so that no rounding decides between options."""


def evaluate_point(
    workload: Workload,
    accelerator: Accelerator,
    cluster: Cluster,
    training: Training,
    cache: MutableMapping[str, Schedule],
    *,
    placement: PlacementChoice = "solve",
    lane_rate: float = 1.0,
    economics: Economics = STANDARD,
) -> Evaluation:
    """Evaluate a point with the cost model, by default at its best placement."""
    point = Point(
        workload,
        accelerator,
        cluster,
        training,
        placement,
        lane_rate=lane_rate,
        economics=economics,
    )
    return evaluate_one(point, cache)


def evaluator_of(study: ResolvedStudy) -> Evaluator:
    """Return the evaluator with the placement, the lane rate and the economics of a study."""
    placement, lane_rate, economics = study.spec.placement, study.lane_rate, study.spec.economics
    if placement == "solve" and lane_rate == 1.0 and economics == STANDARD:
        return evaluate_point
    return partial(evaluate_point, placement=placement, lane_rate=lane_rate, economics=economics)


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
    _likely
        Solved options of each workload that were the best on the last design.
    """

    study: ResolvedStudy
    workloads: Sequence[Workload]
    evaluations: EvaluationCache
    schedules: ScheduleCache
    evaluator: Evaluator = evaluate_point
    reference: Sequence[Measured] = ()
    _likely: dict[int, Mapping[str, Scalar]] = field(default_factory=dict)

    def __call__(self, point: DesignPoint, takes_longer: TakesLonger | None = None) -> Metrics:
        """Check chip and area, then evaluate the point unless its evaluation is stored.

        Parameters
        ----------
        point
            Of the study's space.
        takes_longer
            See `best_run`.
        """
        started_s = time.monotonic()
        area_mm2: float | None = None
        runs: list[EvaluatedRun] = []
        self.schedules.take_effort()
        try:
            design = self.study.design(point)
            violation = chip_violation(self.study, design.accelerator, design.cluster)
            area_mm2 = self.study.area_if_known_mm2(design.accelerator, design.cluster)
            if violation is None:
                count = len(self.study.spec.runs)
                runs = [self.best_run(index, design, takes_longer) for index in range(count)]
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

    def best_run(
        self, run: int, design: Design, takes_longer: TakesLonger | None = None
    ) -> EvaluatedRun:
        """Evaluate one workload on a design, at the best of the solved options.

        Parameters
        ----------
        run, design
            Workload and design.
        takes_longer
            If it is given, options are not evaluated that surely take longer than others with which
            they would count as equal. The answer is the same.

        Raises
        ------
        InputError
            If the options exclude each other in every combination.
        """
        every = run_inputs(self.study, run, design)
        area_mm2 = self.study.area_if_known_mm2(design.accelerator, design.cluster) or 0.0
        kind = self.study.spec.objective_kinds[0]
        if takes_longer is None or kind.name not in RATE_OBJECTIVES:
            return best_of_runs(self.study, [self.evaluate(inputs) for inputs in every], area_mm2)
        # Mostly the same options are the best as on the last design.
        order = sorted(
            range(len(every)), key=lambda place: every[place].chosen != self._likely.get(run)
        )
        runs: dict[int, EvaluatedRun] = {}
        equal_s = math.inf
        for place in order:
            if equal_s < math.inf and takes_longer(every[place], equal_s):
                continue
            runs[place] = self.evaluate(every[place])
            if runs[place].violation is None:
                equal_s = min(equal_s, _longest_as_good_s(kind, runs[place], area_mm2))
        best = best_of_runs(self.study, [runs[place] for place in sorted(runs)], area_mm2)
        self._likely[run] = best.inputs.chosen
        return best

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
        violation = run_violation(self.study.spec, evaluation)
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


def _longest_as_good_s(kind: ObjectiveKind, run: EvaluatedRun, area_mm2: float) -> float:
    """Return the time of a batch from which on other options are worse than a run by a rate.

    Up to there they may count as equal to it (`phaze_opt.spec.ordering.VALUE_BIN`).
    """
    value = kind.of(measured_run(run, area_mm2))
    equal = least_merit(head_of(value, 0, 0.0))
    batch_s = run.inputs.training.global_batch / run.evaluation.throughput_samples_per_s
    return batch_s * value / equal * (1.0 + _ROUNDING)


def measured_run(run: EvaluatedRun, area_mm2: float) -> Measured:
    """Return the measures of a feasible run for the objectives."""
    evaluation, inputs = run.evaluation, run.inputs
    throughput, tokens = evaluation.throughput_samples_per_s, evaluation.tokens_per_s_per_device
    devices, bill = inputs.cluster.devices, evaluation.bill
    paid: dict[str, float] = {}
    if bill is not None:
        paid["usd_per_sample"] = bill.cost_usd_per_million_samples.central / 1e6
        wall_w = devices * bill.wall_power_w_per_device.central
        paid["wall_j_per_sample"] = wall_w / throughput
    return Measured(
        throughput_samples_per_s=throughput,
        tokens_per_s=throughput if tokens is None else tokens * devices,
        energy_j_per_sample=evaluation.energy_j_per_batch / inputs.training.global_batch,
        power_w_per_device=evaluation.power_w_per_device,
        area_mm2=area_mm2,
        devices=devices,
        **paid,
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
    if study.spec.economics != STANDARD:
        hashed["economics"] = to_builtins(study.spec.economics)
    return content_hash(hashed)
