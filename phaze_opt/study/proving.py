"""Proves the passes of a study's best design: what the search left open is solved further."""

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
from phaze_opt.study.trials import RunMetrics, best_trial, read_trials
from phaze_opt.workload.graph import Workload


@dataclass(frozen=True)
class PassProofs:
    """What is proven of the passes of the distinct layers of a design.

    Attributes
    ----------
    passes, proven
        Number of the passes, and of those whose schedule is proven optimal.
    methods
        Number of the proven ones by `phaze_opt.scheduling.schedule_problem.ScheduleMethod`.
    gap
        Largest relative gap between a makespan and its bound.
    effort
        What was spent on each part of an open pass; see
        `phaze_opt.scheduling.solve_schedule.solve_schedule`. ``None`` where only the search, with
        its fast methods, has looked at them.
    throughput_samples_per_s
        With these schedules.
    """

    passes: int
    proven: int
    methods: Mapping[str, int]
    gap: float
    effort: int | None
    throughput_samples_per_s: float


def proofs_of(evaluation: Evaluation) -> list[ScheduleProof]:
    """List the proofs of all passes of the distinct layers."""
    return [
        proof
        for layer in evaluation.layers
        for proof in (layer.forward_schedule, layer.backward_schedule, layer.recompute_schedule)
        if proof is not None
    ]


def pass_proofs(evaluation: Evaluation, further: Evaluation | None) -> PassProofs:
    """Say what is proven of a design.

    Parameters
    ----------
    evaluation
        As the search evaluated it.
    further
        With its open passes solved further; ``None`` where nobody has done that.
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
    """Return what is proven as plain data."""
    plain: dict[str, Any] = to_builtins(proofs)
    return plain


def further_key(key: str) -> str:
    """Return the key under which an evaluation is stored with its open passes solved further."""
    return content_hash(["solved further", key, DEFAULT_EFFORT])


def with_further_keys(keys: Iterable[str]) -> set[str]:
    """Add to the keys of evaluations those under which they are stored solved further."""
    return {each for key in keys for each in (key, further_key(key))}


def chosen_inputs(
    resolved: ResolvedStudy, run: int, design: Design, metrics: RunMetrics
) -> RunInputs:
    """Return what decides the evaluation of a workload, with the options that it found best."""
    options = run_inputs(resolved, run, design)
    return next(one for one in options if one.chosen == metrics.chosen)


def solve_further(
    study: StoredStudy,
    inputs: RunInputs,
    evaluation: Evaluation,
    cache: MutableMapping[str, Schedule],
) -> Evaluation:
    """Evaluate a feasible design with its open passes solved further, at its own tensor width.

    Parameters
    ----------
    study, inputs
        What decides the evaluation.
    evaluation
        As the search evaluated it.
    cache
        Schedules by content; solved ones are added.
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
    """Return the captured workload of a feasible design, at its tensor width only."""
    assert evaluation.placement is not None
    workload, width = study.workloads()[inputs.capture], evaluation.placement.tensor
    of_width = tuple(one for one in workload.variants if one.tensor_parallel == width)
    return replace(workload, variants=of_width)


def prove_best(study: StoredStudy, evaluations: EvaluationCache) -> None:
    """Solve the open passes of the best design further, and store what comes of it, once.

    The trial keeps its values, and its evaluations the schedules of the search. Where several
    programs end the run of a study, one of them solves, and the others wait for it.
    """
    best = best_trial(read_trials(study))
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
    """Whether no schedule of the pass is shorter."""
    return proof.status == "optimal"
