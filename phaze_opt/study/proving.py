"""Proves the best design of a study: passes that the search left open are solved further."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from phaze_opt.codec import to_builtins
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.passes.scheduled import ScheduleProof
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.scheduling.solve_schedule import DEFAULT_EFFORT
from phaze_opt.spec.designs import Design
from phaze_opt.spec.frozen import ResolvedStudy, content_hash
from phaze_opt.spec.run_inputs import RunInputs, run_inputs
from phaze_opt.store.caches import EvaluationCache, ScheduleCache, find_evaluations
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.study.standing import find_best
from phaze_opt.study.trials import RunMetrics
from phaze_opt.workload.graph import Workload


@dataclass(frozen=True)
class PassProofs:
    """The proofs of the passes of the distinct layers of a design.

    Attributes
    ----------
    passes, proven
        Number of passes, and of passes whose schedule is proven optimal.
    methods
        Number of proven passes by `phaze_opt.scheduling.schedule_problem.ScheduleMethod`.
    gap
        Largest relative gap between a makespan and its bound.
    effort
        Effort for each part of an open pass; see
        `phaze_opt.scheduling.solve_schedule.solve_schedule`. ``None`` if only the search, with its
        fast methods, has solved the passes.
    throughput_samples_per_s
        Throughput with these schedules.
    """

    passes: int
    proven: int
    methods: Mapping[str, int]
    gap: float
    effort: int | None
    throughput_samples_per_s: float


def proofs_of(evaluation: Evaluation) -> list[ScheduleProof]:
    """Return the proofs of all passes of the distinct layers."""
    return [
        proof
        for layer in evaluation.layers
        for proof in (layer.forward_schedule, layer.backward_schedule, layer.recompute_schedule)
        if proof is not None
    ]


def pass_proofs(evaluation: Evaluation, further: Evaluation | None) -> PassProofs:
    """Summarise the proofs of the passes of a design.

    Parameters
    ----------
    evaluation
        The evaluation of the search.
    further
        The evaluation with open passes solved further; ``None`` if there is none.
    """
    known = evaluation if further is None else further
    proofs = proofs_of(known)
    methods = Counter(proof.method for proof in proofs if _is_proven(proof))
    solved = further is not None or all(map(_is_proven, proofs))
    return PassProofs(
        passes=len(proofs),
        proven=methods.total(),
        methods=dict(methods.most_common()),
        gap=max([proof.gap for proof in proofs], default=0.0),
        effort=DEFAULT_EFFORT if solved else None,
        throughput_samples_per_s=known.throughput_samples_per_s,
    )


def pass_proofs_to_json_dict(proofs: PassProofs) -> dict[str, Any]:
    """Return the proofs as plain data."""
    plain: dict[str, Any] = to_builtins(proofs)
    return plain


def further_key(key: str) -> str:
    """Return the key under which an evaluation is stored with its open passes solved further."""
    return content_hash(["solved further", key, DEFAULT_EFFORT])


def with_further_keys(keys: Iterable[str]) -> set[str]:
    """Return the keys of evaluations, and their keys solved further."""
    return {stored for key in keys for stored in (key, further_key(key))}


def chosen_inputs(
    resolved: ResolvedStudy, run: int, design: Design, metrics: RunMetrics
) -> RunInputs:
    """Return the inputs of the evaluation of a workload with the best solved options."""
    options = run_inputs(resolved, run, design)
    return next(inputs for inputs in options if inputs.chosen == metrics.chosen)


def solve_further(
    study: StoredStudy,
    inputs: RunInputs,
    evaluation: Evaluation,
    cache: MutableMapping[str, Schedule],
) -> Evaluation:
    """Evaluate a feasible design at its tensor degree, with open passes solved further.

    Parameters
    ----------
    study, inputs
        The study, and the inputs of the evaluation.
    evaluation
        The evaluation of the search.
    cache
        Schedules by content; new schedules are added.
    """
    return evaluate(
        chosen_workload(study, inputs, evaluation),
        inputs.accelerator,
        inputs.cluster,
        inputs.training,
        study.resolved.spec.placement,
        cache=cache,
        prove=True,
    )


def chosen_workload(study: StoredStudy, inputs: RunInputs, evaluation: Evaluation) -> Workload:
    """Return the captured workload of a feasible design, at its tensor degree only."""
    assert evaluation.placement is not None
    workload, degree = study.workloads()[inputs.capture], evaluation.placement.tensor
    variants = tuple(variant for variant in workload.variants if variant.tensor_parallel == degree)
    return replace(workload, variants=variants)


def prove_best(study: StoredStudy, evaluations: EvaluationCache) -> None:
    """Solve the open passes of the best design further, and store the evaluations, once.

    The trial keeps its values, and its evaluations keep the schedules of the search. If several
    programs end a run of the study, one of them solves, and the others wait for it.
    """
    best = find_best(study)
    if best is None or best.point is None or best.metrics is None:
        return
    schedules = ScheduleCache(study.storage)
    design = study.resolved.design(best.point)
    runs = best.metrics.runs
    searched = find_evaluations(study.storage, [run.evaluation_key for run in runs])
    for index, metrics in enumerate(runs):
        evaluation = searched.get(metrics.evaluation_key)
        if evaluation is None or all(map(_is_proven, proofs_of(evaluation))):
            continue
        inputs = chosen_inputs(study.resolved, index, design, metrics)
        evaluations.get_or_compute(
            further_key(metrics.evaluation_key),
            partial(solve_further, study, inputs, evaluation, schedules),
            schedules,
        )


def _is_proven(proof: ScheduleProof) -> bool:
    """Whether the schedule of a pass is proven optimal."""
    return proof.status == "optimal"
