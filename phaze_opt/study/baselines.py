"""Known accelerators to compare with, each at its best over all training options."""

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
        What names the design with its options.
    values
        On the axes of the study's space, inside it or not.
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
        Which of its values the space does not have; ``None`` where a trial may find it.
    runs
        By workload; ``None`` where the baseline fits under no option.
    values
        By the objectives of the study; ``None`` where it does not train every workload.
    """

    name: str
    area_mm2: float
    within_area: bool
    outside: str | None
    runs: tuple[BaselineRun | None, ...]
    values: tuple[float, ...] | None = None

    @property
    def measured(self) -> tuple[Measured, ...] | None:
        """What the objectives take, by workload; ``None`` where one does not fit."""
        found = [run.measured for run in self.runs if run is not None]
        return tuple(found) if len(found) == len(self.runs) else None


def train_at_best(spec: StudySpec, chips: Sequence[Accelerator]) -> list[BaselineRun | None]:
    """Train the model of a spec on some chips, each at its best as baselines of a study are.

    Nothing is stored, and a chip needs no area.

    Parameters
    ----------
    spec
        The run of one workload, with the options among which each chip has its best in the space;
        its other axes, and its baselines, are not looked at.
    chips
        With their own HBM.

    Returns
    -------
    runs
        By chip; ``None`` where it fits under no option.

    Raises
    ------
    InputError
        If the spec names something unknown.
    """
    study, workloads = freeze(spec)
    evaluate, schedules = evaluator_of(study), dict[str, Schedule]()
    found = []
    for chip in chips:
        baseline = Baseline("chip", chip)
        evaluations = {
            key: evaluate(
                workloads[one.capture], one.accelerator, one.cluster, one.training, schedules
            )
            for key, one in baseline_inputs(study, baseline).items()
        }
        found.append(_best_run(study, baseline, 0, evaluations))
    return found


def baseline_inputs(study: ResolvedStudy, baseline: Baseline) -> dict[str, RunInputs]:
    """Return every run of a baseline, under all training options, by the key of its evaluation."""
    return {
        evaluation_key(study, inputs): inputs
        for run in range(len(study.spec.runs))
        for _, inputs in _options(study, baseline, run)
    }


def find_baselines(study: ResolvedStudy, storage: Storage) -> list[BaselineResult]:
    """Return the baselines that are evaluated already, in the order of the spec."""
    keys = {baseline.name: baseline_inputs(study, baseline) for baseline in study.baselines}
    evaluations = find_evaluations(storage, [key for each in keys.values() for key in each])
    found = [
        _at_its_best(study, baseline, evaluations)
        for baseline in study.baselines
        if keys[baseline.name].keys() <= evaluations.keys()
    ]
    reference = _reference(study, found)
    return [replace(one, values=_values(study, one, reference)) for one in found]


def find_reference(study: ResolvedStudy, storage: Storage) -> tuple[Measured, ...]:
    """Return what the values of several workloads are relative to; nothing where there is one.

    Raises
    ------
    InputError
        If the baseline trains one of the workloads under no option.
    """
    if len(study.spec.runs) == 1:
        return ()
    reference = _reference(study, find_baselines(study, storage))
    if reference is None:
        raise InputError(
            f"The baseline {study.spec.reference!r}, to which the values of the workloads are "
            "relative, does not train all of them; name another one with relative_to."
        )
    return reference


def _reference(
    study: ResolvedStudy, baselines: Sequence[BaselineResult]
) -> tuple[Measured, ...] | None:
    """Return what the values of several workloads are relative to, if it is known."""
    name = study.spec.reference
    return next((one.measured for one in baselines if one.name == name), None)


def _values(
    study: ResolvedStudy, baseline: BaselineResult, reference: Sequence[Measured] | None
) -> tuple[float, ...] | None:
    """Return the value of every objective on a baseline."""
    measured = baseline.measured
    if measured is None or (reference is None and len(study.spec.runs) > 1):
        return None
    return objective_values(study.spec, measured, reference or ())


def outside_space(study: ResolvedStudy, baseline: Baseline) -> str | None:
    """Say why no trial can find a baseline, under whatever training option; ``None`` if one can."""
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
    """Say in what a chip differs from every point of a study; ``None`` where it is one.

    Parameters
    ----------
    study
        The study.
    chip
        Of a baseline.
    values
        Of the baseline's design on the axes of the space.
    """
    reason = why_outside(study.spec.space, values)
    if reason is not None:
        return reason
    own, found = chip_values(chip), chip_values(chip_of(study.base, values))
    for name, value in own.items():
        if found[name] != value:
            return f"{name} is {value}, but is not searched, and the base has {found[name]}"
    return None


def _options(study: ResolvedStudy, baseline: Baseline, run: int) -> list[tuple[Design, RunInputs]]:
    """Return a workload on a baseline under every option of the space that is possible."""
    found = []
    solved = study.spec.space.solved
    for options in study.spec.space.training_options():
        if any(options[name] != axis.values[0] for name, axis in solved.items()):
            # Every evaluation tries these by itself.
            continue
        design = study.baseline_design(baseline, options)
        try:
            found += [(design, inputs) for inputs in run_inputs(study, run, design)]
        except InputError:
            continue
    return found


def _at_its_best(
    study: ResolvedStudy, baseline: Baseline, evaluations: Mapping[str, Evaluation]
) -> BaselineResult:
    """Choose the best training option of every workload by the order of designs."""
    area_mm2 = baseline.accelerator.area_under(study.spec.area.model)
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
    area_mm2 = study.area_if_known_mm2(baseline.accelerator) or 0.0
    designs: dict[int, Design] = {}
    evaluated = []
    for design, inputs in _options(study, baseline, run):
        key = evaluation_key(study, inputs)
        violation = run_violation(study.spec.constraints, evaluations[key])
        one = EvaluatedRun(inputs, key, evaluations[key], True, violation)
        designs[id(one)] = design
        evaluated.append(one)
    if not evaluated:
        return None
    best = best_of_runs(study, evaluated, area_mm2)
    if best.violation is not None:
        return None
    design = designs[id(best)]
    values = values_of_design(study.spec.space, design) | dict(best.inputs.chosen)
    return BaselineRun(
        design,
        params_of_design(design, values),
        values,
        measured_run(best, area_mm2),
        best.evaluation,
    )
