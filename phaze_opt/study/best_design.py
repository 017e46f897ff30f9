"""The best design of a study with its evaluations, its proofs and the baselines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from phaze_opt.codec import to_builtins
from phaze_opt.evaluation import Evaluation
from phaze_opt.evaluation_json import evaluation_to_json_dict
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.printing import PrintsAsTables
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.designs import Design, params_of_design
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.store.caches import find_evaluations
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.study.baselines import BaselineResult, find_baselines
from phaze_opt.study.proving import (
    PassProofs,
    chosen_inputs,
    further_key,
    pass_proofs,
    pass_proofs_to_json_dict,
    solve_further,
    with_further_keys,
)
from phaze_opt.study.standing import Standing
from phaze_opt.study.trials import Metrics, TrialRecord


@dataclass(frozen=True, repr=False)
class BestDesign(PrintsAsTables):
    """The best design of a study; prints as the tables of ``phaze-opt study best``.

    With several objectives it is the best by the first objective.

    Attributes
    ----------
    number
        Number of the trial; ``None`` if an enumeration found the design.
    resolved
        The study.
    design
        Chip, network and options of the training runs.
    evaluations
        By workload; ``None`` if the stored evaluation is damaged or lost.
    further
        Evaluations with their open passes solved further, as the end of a run stores them; ``None``
        if no pass was open, or no run has ended.
    front
        The trials of the Pareto front, if there are several objectives.
    """

    number: int | None
    resolved: ResolvedStudy
    design: Design
    point: DesignPoint
    metrics: Metrics
    evaluations: tuple[Evaluation | None, ...]
    baselines: tuple[BaselineResult, ...]
    further: tuple[Evaluation | None, ...] = ()
    front: tuple[TrialRecord, ...] = ()

    @property
    def spec(self) -> StudySpec:
        """The spec of the study."""
        return self.resolved.spec

    @property
    def pass_proofs(self) -> tuple[PassProofs | None, ...]:
        """The proofs of its passes by workload; ``None`` if the evaluation is damaged."""
        further = self.further or (None,) * len(self.evaluations)
        return tuple(
            None if evaluation is None else pass_proofs(evaluation, solved)
            for evaluation, solved in zip(self.evaluations, further, strict=True)
        )

    def __repr__(self) -> str:
        return f"BestDesign(trial {self.number}, {self.metrics}, {self.point!r})"

    @property
    def accelerator(self) -> Accelerator:
        """The chip."""
        return self.design.accelerator

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation of the first workload."""
        return self.evaluations[0]

    @property
    def params(self) -> dict[str, Scalar]:
        """The values that name the design; see `named_params`."""
        return named_params(self.resolved, self.point, self.metrics)

    def ratio(self, baseline: BaselineResult) -> float | None:
        """Return the first objective over a baseline's; ``None`` if the baseline has no value."""
        return None if baseline.values is None else self.metrics.value / baseline.values[0]


def named_params(
    resolved: ResolvedStudy, point: DesignPoint, metrics: Metrics
) -> dict[str, Scalar]:
    """Return the values that name a design: cores, memories, main options, and its point.

    The solved options are among them if there is one workload.
    """
    chosen = metrics.runs[0].chosen if len(metrics.runs) == 1 else {}
    params = params_of_design(resolved.design(point), {**point.by_name, **chosen})
    unknown = resolved.spec.space.solved.keys() - chosen.keys()
    return {name: value for name, value in params.items() if name not in unknown}


def best_design(study: StoredStudy, standing: Standing) -> BestDesign | None:
    """Return the design of the best trial with its evaluations, and the front."""
    best = standing.best
    if best is None or best.point is None or best.metrics is None:
        return None
    design = design_of(study, best.number, best.point, best.metrics)
    return replace(design, front=standing.front)


def design_of(
    study: StoredStudy, number: int | None, point: DesignPoint, metrics: Metrics
) -> BestDesign:
    """Return a feasible design with its evaluations and the baselines.

    Parameters
    ----------
    study
        The study.
    number
        Number of the trial; ``None`` if an enumeration found the design.
    point, metrics
        The design.
    """
    resolved = study.resolved
    keys = [run.evaluation_key for run in metrics.runs]
    evaluations = find_evaluations(study.storage, with_further_keys(keys))
    return BestDesign(
        number=number,
        resolved=resolved,
        design=resolved.design(point),
        point=point,
        metrics=metrics,
        evaluations=tuple(evaluations.get(key) for key in keys),
        baselines=tuple(find_baselines(resolved, study.storage)),
        further=tuple(evaluations.get(further_key(key)) for key in keys),
    )


def solve_best_further(study: StoredStudy, best: BestDesign) -> list[tuple[Evaluation, PassProofs]]:
    """Return the evaluations of the best design, solved further, and their proofs by workload.

    Evaluations that the end of a run has stored are read; nothing is stored here.
    """
    solved = []
    for run, evaluation in enumerate(best.evaluations):
        if evaluation is not None:
            further = best.further[run] if best.further else None
            if further is None:
                inputs = chosen_inputs(study.resolved, run, best.design, best.metrics.runs[run])
                further = solve_further(study, inputs, evaluation, {})
            solved.append((further, pass_proofs(evaluation, further)))
    return solved


def best_to_json_dict(name: str, best: BestDesign) -> dict[str, Any]:
    """Return the answer as ``study best --json`` prints it."""
    evaluations = [
        None if evaluation is None else evaluation_to_json_dict(evaluation)
        for evaluation in best.evaluations
    ]
    proofs = [
        None if proven is None else pass_proofs_to_json_dict(proven) for proven in best.pass_proofs
    ]
    plain: dict[str, Any] = {
        "study": name,
        "number": best.number,
        "params": best.params,
        "values": list(best.metrics.values),
        "objectives": list(best.spec.metric_names),
        "area_mm2": best.metrics.area_mm2,
        "area_model": best.spec.area.model,
        "evaluation": evaluations[0],
        "pass_proofs": proofs[0],
        "baselines": [_baseline_to_json_dict(best, baseline) for baseline in best.baselines],
    }
    if len(best.spec.runs) > 1:
        plain["workloads"] = [
            {**to_builtins(metrics), "evaluation": evaluation, "pass_proofs": proven}
            for metrics, evaluation, proven in zip(
                best.metrics.runs, evaluations, proofs, strict=True
            )
        ]
    if best.front:
        plain["front"] = [
            {
                "number": trial.number,
                "params": named_params(best.resolved, trial.point, trial.metrics),
                "values": list(trial.metrics.values),
                "area_mm2": trial.metrics.area_mm2,
                "area_model": best.spec.area.model,
            }
            for trial in best.front
            if trial.point is not None and trial.metrics is not None
        ]
    return plain


def _baseline_to_json_dict(best: BestDesign, baseline: BaselineResult) -> dict[str, Any]:
    """Return a baseline as JSON, compared with the best design."""
    kinds = best.spec.objective_kinds
    # A chip that trains the model under no option has throughput 0, but no energy.
    infeasible = [0.0 if kind.maximise else None for kind in kinds]
    params = [None if run is None else dict(run.params) for run in baseline.runs]
    plain: dict[str, Any] = {
        "name": baseline.name,
        "values": infeasible if baseline.values is None else list(baseline.values),
        "ratio": best.ratio(baseline),
        "area_mm2": baseline.area_mm2,
        "area_model": best.spec.area.model,
        "params": params[0],
        "outside": baseline.outside,
    }
    if len(params) > 1:
        plain["workloads"] = params
    return plain
