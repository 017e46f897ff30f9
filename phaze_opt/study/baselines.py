"""Known accelerators for comparison, each at its best over all training options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.fields import chip_values
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.constraints import run_violation
from phaze_opt.spec.designs import Design, chip_of, params_of_design, values_of_design
from phaze_opt.spec.freezing import freeze
from phaze_opt.spec.frozen import Baseline, ResolvedStudy
from phaze_opt.spec.objectives import Measured
from phaze_opt.spec.run_inputs import RunInputs, run_inputs
from phaze_opt.spec.space import why_outside
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.store.caches import find_evaluations
from phaze_opt.store.storage import Storage
from phaze_opt.study.objective import (
    EvaluatedRun,
    best_of_runs,
    evaluation_key,
    evaluator_of,
    measured_run,
    objective_values,
)


@dataclass(frozen=True)
class BaselineRun:
    """One workload on a baseline, at its best.

    Attributes
    ----------
    params
        Values that name the design with its options.
    values
        Values on the axes of the space, which need not hold them.
    """

    design: Design
    params: Mapping[str, Scalar]
    values: Mapping[str, Scalar]
    measured: Measured
    evaluation: Evaluation


@dataclass(frozen=True)
class BaselineResult:
    """A baseline at its best over the training options and the placement, with its own HBM.

    Attributes
    ----------
    within_area
        Whether its area is within the limit of the study.
    outside
        Sentence about a value outside the space; ``None`` if a trial may find the baseline.
    runs
        By workload; ``None`` if the baseline is infeasible under every option.
    values
        By the objectives of the study; ``None`` if the baseline does not train every workload.
    """

    name: str
    area_mm2: float
    within_area: bool
    outside: str | None
    runs: tuple[BaselineRun | None, ...]
    values: tuple[float, ...] | None = None

    @property
    def measured(self) -> tuple[Measured, ...] | None:
        """The measures by workload; ``None`` if a workload is infeasible."""
        measured = [run.measured for run in self.runs if run is not None]
        return tuple(measured) if len(measured) == len(self.runs) else None


def train_at_best(spec: StudySpec, chips: Sequence[Accelerator]) -> list[BaselineRun | None]:
    """Train the model of a spec on chips, each at its best, as baselines of a study are.

    Nothing is stored, and a chip needs no area.

    Parameters
    ----------
    spec
        The run of one workload; its space has the training options to choose from. Other axes and
        the baselines are ignored.
    chips
        With their own HBM.

    Returns
    -------
    runs
        By chip; ``None`` if it is infeasible under every option.

    Raises
    ------
    InputError
        If the spec names something unknown.
    """
    study, workloads = freeze(spec)
    evaluate, schedules = evaluator_of(study), dict[str, Schedule]()
    best_runs = []
    for chip in chips:
        baseline = Baseline("chip", chip)
        evaluations = {
            key: evaluate(
                workloads[run.capture], run.accelerator, run.cluster, run.training, schedules
            )
            for key, run in baseline_inputs(study, baseline).items()
        }
        best_runs.append(_best_run(study, baseline, 0, evaluations))
    return best_runs


def baseline_inputs(study: ResolvedStudy, baseline: Baseline) -> dict[str, RunInputs]:
    """Return every run of a baseline, under all training options, by the key of its evaluation."""
    return {
        evaluation_key(study, inputs): inputs
        for run in range(len(study.spec.runs))
        for _, inputs in _options(study, baseline, run)
    }


def find_baselines(study: ResolvedStudy, storage: Storage) -> list[BaselineResult]:
    """Return the evaluated baselines, in the order of the spec."""
    inputs = {baseline.name: baseline_inputs(study, baseline) for baseline in study.baselines}
    evaluations = find_evaluations(storage, [key for keys in inputs.values() for key in keys])
    results = [
        _at_its_best(study, baseline, evaluations)
        for baseline in study.baselines
        if inputs[baseline.name].keys() <= evaluations.keys()
    ]
    reference = _reference(study, results)
    return [replace(result, values=_values(study, result, reference)) for result in results]


def find_reference(study: ResolvedStudy, storage: Storage) -> tuple[Measured, ...]:
    """Return the measures of the reference baseline; nothing if there is one workload.

    Raises
    ------
    InputError
        If a workload is infeasible on it under every option.
    """
    if len(study.spec.runs) == 1:
        return ()
    reference = _reference(study, find_baselines(study, storage))
    if reference is None:
        raise InputError(
            f"The baseline {study.spec.reference!r}, to which the values of the workloads are "
            "relative, does not train all of them; name another baseline with relative_to."
        )
    return reference


def _reference(
    study: ResolvedStudy, baselines: Sequence[BaselineResult]
) -> tuple[Measured, ...] | None:
    """Return the measures of the reference baseline; ``None`` if they are not known."""
    name = study.spec.reference
    return next((baseline.measured for baseline in baselines if baseline.name == name), None)


def _values(
    study: ResolvedStudy, baseline: BaselineResult, reference: Sequence[Measured] | None
) -> tuple[float, ...] | None:
    """Return the value of every objective on a baseline."""
    measured = baseline.measured
    if measured is None or (reference is None and len(study.spec.runs) > 1):
        return None
    return objective_values(study.spec, measured, reference or ())


def outside_space(study: ResolvedStudy, baseline: Baseline) -> str | None:
    """Return why no trial can find a baseline under any option; ``None`` if a trial can."""
    reasons = []
    for design, _ in _options(study, baseline, 0):
        values = values_of_design(study.spec.space, design)
        reason = why_not_found(study, design.accelerator, values)
        if reason is None:
            return None
        reasons.append(reason)
    return reasons[0] if reasons else "its options exclude each other"


def why_not_found(
    study: ResolvedStudy, chip: Accelerator, values: Mapping[str, Scalar]
) -> str | None:
    """Return the difference of a chip from every point of a study; ``None`` if it is a point.

    Parameters
    ----------
    study
        The study.
    chip
        The chip of a baseline.
    values
        Values of the design of the baseline on the axes of the space.
    """
    reason = why_outside(study.spec.space, values)
    if reason is not None:
        return reason
    own, there = chip_values(chip), chip_values(chip_of(study.base, values))
    for name, value in own.items():
        if there[name] != value:
            return f"{name} is {value}, but is not searched, and the base has {there[name]}"
    return None


def _options(study: ResolvedStudy, baseline: Baseline, run: int) -> list[tuple[Design, RunInputs]]:
    """Return a workload on a baseline under all options that do not exclude each other."""
    designs: list[tuple[Design, RunInputs]] = []
    solved = study.spec.space.solved
    for options in study.spec.space.training_options():
        if any(options[name] != axis.values[0] for name, axis in solved.items()):
            # Every evaluation tries the solved options by itself.
            continue
        design = study.baseline_design(baseline, options)
        try:
            designs += [(design, inputs) for inputs in run_inputs(study, run, design)]
        except InputError:
            continue
    return designs


def _at_its_best(
    study: ResolvedStudy, baseline: Baseline, evaluations: Mapping[str, Evaluation]
) -> BaselineResult:
    """Choose the best training option of every workload by the order of designs."""
    area_mm2 = baseline.accelerator.area_under(study.spec.area.model)
    area_mm2 += study.link_area_mm2(study.cluster)
    runs = tuple(
        _best_run(study, baseline, run, evaluations) for run in range(len(study.spec.runs))
    )
    within = area_mm2 <= study.area_limit_mm2
    return BaselineResult(baseline.name, area_mm2, within, outside_space(study, baseline), runs)


def _best_run(
    study: ResolvedStudy,
    baseline: Baseline,
    run: int,
    evaluations: Mapping[str, Evaluation],
) -> BaselineRun | None:
    """Choose the best training option of one workload."""
    area_mm2 = study.area_if_known_mm2(baseline.accelerator, study.cluster) or 0.0
    designs: dict[str, Design] = {}
    runs = []
    for design, inputs in _options(study, baseline, run):
        key = evaluation_key(study, inputs)
        violation = run_violation(study.spec.constraints, evaluations[key])
        runs.append(EvaluatedRun(inputs, key, evaluations[key], True, violation))
        designs.setdefault(key, design)
    if not runs:
        return None
    best = best_of_runs(study, runs, area_mm2)
    if best.violation is not None:
        return None
    design = designs[best.key]
    values = values_of_design(study.spec.space, design) | dict(best.inputs.chosen)
    return BaselineRun(
        design,
        params_of_design(design, values),
        values,
        measured_run(best, area_mm2),
        best.evaluation,
    )
