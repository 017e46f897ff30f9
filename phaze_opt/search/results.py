"""Results of a study: the best design, and the state of the search in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from phaze_opt.codec import to_builtins
from phaze_opt.evaluation import Evaluation, evaluation_to_json_dict
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.printing import PrintsAsTables
from phaze_opt.search.axes import Scalar
from phaze_opt.search.baselines import BaselineResult, find_baselines, outside_space
from phaze_opt.search.designs import Design, params_of_design
from phaze_opt.search.frozen import ResolvedStudy, current_version
from phaze_opt.search.pareto import front
from phaze_opt.search.proving import (
    PassProofs,
    chosen_inputs,
    further_key,
    pass_proofs,
    pass_proofs_to_json_dict,
    solve_further,
    with_further_keys,
)
from phaze_opt.search.space import DesignPoint
from phaze_opt.search.spec import StudySpec
from phaze_opt.search.store.caches import find_evaluations
from phaze_opt.search.store.stored_study import StoredStudy
from phaze_opt.search.store.tickets import TicketCounts
from phaze_opt.search.trials import Metrics, TrialRecord, best_trial, read_trials

StudyState = Literal["new", "running", "stopping", "stopped", "done", "proven", "failed"]


@dataclass(frozen=True, repr=False)
class BestDesign(PrintsAsTables, tables="phaze_opt.report.studies:best_tables"):
    """The best design of a study; prints as the tables of ``phaze-opt study best``.

    Among several objectives it is the best one by the first of them.

    Attributes
    ----------
    number
        Of the trial; ``None`` where an enumeration found it.
    spec
        Of the study.
    design
        Chip, network and options of the training runs.
    evaluations
        By workload; ``None`` where the stored one is damaged or lost.
    further
        The same with their open passes solved further, as the end of a run stores them; ``None``
        where nothing was open, or no run has ended.
    front
        The trials that no other one dominates, where there are several objectives.
    """

    number: int | None
    spec: StudySpec
    design: Design
    point: DesignPoint
    metrics: Metrics
    evaluations: tuple[Evaluation | None, ...]
    baselines: tuple[BaselineResult, ...]
    further: tuple[Evaluation | None, ...] = ()
    front: tuple[TrialRecord, ...] = ()

    @property
    def pass_proofs(self) -> tuple[PassProofs | None, ...]:
        """What is proven of its passes, by workload; ``None`` where its evaluation is damaged."""
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
        """Of the first workload."""
        return self.evaluations[0]

    @property
    def params(self) -> dict[str, Scalar]:
        """What names the design: cores, memories, main options and the values of its point.

        What every evaluation solved is among them where there is one workload.
        """
        chosen = self.metrics.runs[0].chosen if len(self.metrics.runs) == 1 else {}
        params = params_of_design(self.design, {**self.point.by_name, **chosen})
        unknown = self.spec.space.solved.keys() - chosen.keys()
        return {name: value for name, value in params.items() if name not in unknown}

    def ratio(self, baseline: BaselineResult) -> float | None:
        """Value of the first objective over a baseline's; ``None`` where the baseline has none."""
        return None if baseline.values is None else self.metrics.value / baseline.values[0]


@dataclass(frozen=True, repr=False)
class StudySummary(PrintsAsTables, tables="phaze_opt.report.studies:summary_table"):
    """The state of a study in numbers; prints as the table of ``phaze-opt study show``.

    Attributes
    ----------
    trials
        Numbers of complete trials, of infeasible ones among these, and of failed and running ones.
    target
        Complete trials that the study shall have: the number that the last run asked for, and
        before the first run that of the spec.
    left
        Trials that are missing from the target and neither complete nor failed; none where the best
        is proven.
    busy_s
        Time during which at least one trial ran.
    rate_per_s
        Complete trials per busy second; ``None`` before the first.
    cached_share
        Share of the evaluations that were stored before they were asked for.
    proven_schedule_share
        Share of the layers' schedules of all evaluated points that are proven optimal.
    quickly_proven_schedule_share
        Share of the different schedules that each new evaluation needed that were proven optimal
        without the exact search or in under 20 ms; ``None`` where no evaluation is new.
    why_infeasible
        Number of points that each limit ruled out.
    failures
        Why tickets failed for good, each reason once.
    outside
        By the name of a baseline that no trial can find: which of its values the space does not
        have.
    records
        The trials, by number.
    """

    name: str
    resolved: ResolvedStudy
    state: StudyState
    trials: Mapping[str, int]
    target: int
    left: int
    best: BestDesign | None
    busy_s: float
    rate_per_s: float | None
    cached_share: float | None
    proven_schedule_share: float | None
    quickly_proven_schedule_share: float | None
    why_infeasible: Mapping[str, int]
    failures: tuple[str, ...]
    outside: Mapping[str, str]
    records: tuple[TrialRecord, ...] = ()

    def __repr__(self) -> str:
        complete = self.trials["complete"]
        return f"StudySummary({self.name!r}, {self.state}, {complete} of {self.target} trials)"

    @property
    def is_outdated(self) -> bool:
        """Whether the study was made with another version of the cost model."""
        return self.resolved.cost_model_version != current_version()

    @property
    def next_command(self) -> str:
        """The command with which the study goes on until it has its target."""
        return next_command(self.name, self.target, self.resolved)

    @property
    def left_s(self) -> float | None:
        """Seconds until a running study is done, at the rate so far."""
        if self.state != "running" or self.rate_per_s is None:
            return None
        return self.left / self.rate_per_s


def next_command(name: str, total: int, resolved: ResolvedStudy) -> str:
    """Return the command with which a study goes on until it has ``total`` complete trials."""
    if resolved.cost_model_version != current_version():
        return f"phaze-opt study copy {name} NEW --current-version"
    option = "" if total == resolved.spec.search.trials else f" --trials {total}"
    return f"phaze-opt study run {name}{option}"


def best_design(study: StoredStudy, trials: Sequence[TrialRecord]) -> BestDesign | None:
    """Return the design of the best trial with its evaluation; see `trials.best_trial`."""
    best = best_trial(trials)
    if best is None or best.point is None or best.metrics is None:
        return None
    spec = study.resolved.spec
    found = design_of(study, best.number, best.point, best.metrics)
    return replace(found, front=tuple(front(spec, trials)) if len(spec.objectives) > 1 else ())


def design_of(
    study: StoredStudy, number: int | None, point: DesignPoint, metrics: Metrics
) -> BestDesign:
    """Return a feasible design with its evaluations and the baselines.

    Parameters
    ----------
    study
        The study.
    number
        Of the trial; ``None`` where an enumeration found it.
    point, metrics
        The design.
    """
    resolved = study.resolved
    keys = [run.evaluation_key for run in metrics.runs]
    evaluations = find_evaluations(study.storage, with_further_keys(keys))
    return BestDesign(
        number=number,
        spec=resolved.spec,
        design=resolved.design(point),
        point=point,
        metrics=metrics,
        evaluations=tuple(evaluations.get(key) for key in keys),
        baselines=tuple(find_baselines(resolved, study.storage)),
        further=tuple(evaluations.get(further_key(key)) for key in keys),
    )


def solve_best_further(study: StoredStudy, best: BestDesign) -> list[tuple[Evaluation, PassProofs]]:
    """Return the best design with its open passes solved further, by workload, and the proofs.

    What the end of a run has stored is taken from there; nothing is stored here.
    """
    found = []
    for run, evaluation in enumerate(best.evaluations):
        if evaluation is not None:
            further = best.further[run] if best.further else None
            if further is None:
                inputs = chosen_inputs(study.resolved, run, best.design, best.metrics.runs[run])
                further = solve_further(study, inputs, evaluation, {})
            found.append((further, pass_proofs(evaluation, further)))
    return found


def summarise(study: StoredStudy) -> StudySummary:
    """Read a study, count and average."""
    office = study.office()
    # Read before the trials, so that a study that is done has all its trials.
    counts, stopping, proven = office.counts(), office.stop_requested(), office.is_proven()
    # A study that an older program ran has tickets, but no target.
    target = office.target() or counts.done + counts.left or study.resolved.spec.search.trials
    trials = read_trials(study)
    complete = [trial for trial in trials if trial.kind in ("feasible", "infeasible")]
    metrics = [trial.metrics for trial in complete if trial.metrics is not None]
    asked = [each for each in metrics if each.evaluation_key is not None]
    busy_s = _busy_s(trials)
    return StudySummary(
        name=study.name,
        resolved=study.resolved,
        state=_state(counts, target, stopping, proven),
        trials={
            "complete": len(complete),
            "infeasible": sum(trial.kind == "infeasible" for trial in complete),
            "failed": sum(trial.kind == "failed" for trial in trials),
            # The trial of a worker that is gone is still marked as running until it is settled.
            "running": min(counts.running, sum(trial.kind == "running" for trial in trials)),
        },
        target=target,
        left=0 if proven else max(0, min(counts.left, target - len(complete))),
        best=best_design(study, trials),
        busy_s=busy_s,
        rate_per_s=len(complete) / busy_s if busy_s > 0 else None,
        cached_share=_share(sum(each.cached for each in asked), len(asked)),
        proven_schedule_share=_share(
            sum(each.proven_schedules for each in asked), sum(each.schedules for each in asked)
        ),
        quickly_proven_schedule_share=_share(
            sum(each.quickly_proven_schedules for each in asked),
            sum(each.needed_schedules for each in asked),
        ),
        why_infeasible=Counter(each.limit for each in metrics if each.limit is not None),
        outside={
            baseline.name: reason
            for baseline in study.resolved.baselines
            if (reason := outside_space(study.resolved, baseline)) is not None
        },
        failures=tuple(office.reasons()),
        records=tuple(trials),
    )


def best_to_json_dict(name: str, best: BestDesign) -> dict[str, Any]:
    """Return the answer as ``study best --json`` prints it."""
    evaluations = [
        None if one is None else evaluation_to_json_dict(one) for one in best.evaluations
    ]
    proofs = [None if one is None else pass_proofs_to_json_dict(one) for one in best.pass_proofs]
    plain: dict[str, Any] = {
        "study": name,
        "number": best.number,
        "params": best.params,
        "values": list(best.metrics.values),
        "objectives": list(best.spec.metric_names),
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
                "params": None if trial.point is None else trial.point.by_name,
                "values": None if trial.metrics is None else list(trial.metrics.values),
            }
            for trial in best.front
        ]
    return plain


def _baseline_to_json_dict(best: BestDesign, baseline: BaselineResult) -> dict[str, Any]:
    """Return a baseline beside the best design."""
    kinds = best.spec.objective_kinds
    # A throughput that a chip does not reach under any option is zero; an energy has no such word.
    nothing = [0.0 if kind.maximise else None for kind in kinds]
    params = [None if run is None else dict(run.params) for run in baseline.runs]
    plain: dict[str, Any] = {
        "name": baseline.name,
        "values": nothing if baseline.values is None else list(baseline.values),
        "ratio": best.ratio(baseline),
        "area_mm2": baseline.area_mm2,
        "params": params[0],
        "outside": baseline.outside,
    }
    if len(params) > 1:
        plain["workloads"] = params
    return plain


def summary_to_json_dict(summary: StudySummary) -> dict[str, Any]:
    """Return the state as ``study show --json`` prints it."""
    best = summary.best
    return {
        "study": summary.name,
        "state": summary.state,
        "trials": dict(summary.trials),
        "best": None if best is None else best_to_json_dict(summary.name, best),
        "rate_per_s": summary.rate_per_s,
        "cached_share": summary.cached_share,
        "proven_schedule_share": summary.proven_schedule_share,
        "quickly_proven_schedule_share": summary.quickly_proven_schedule_share,
        "cost_model_version": summary.resolved.cost_model_version,
        "spec_hash": summary.resolved.hash,
        "target": summary.target,
        "left": summary.left,
        "left_s": summary.left_s,
        "busy_s": summary.busy_s,
        "area_limit_mm2": summary.resolved.area_limit_mm2,
        "why_infeasible": dict(summary.why_infeasible),
        "failures": list(summary.failures),
        "outside": dict(summary.outside),
    }


def _state(counts: TicketCounts, target: int, stopping: bool, proven: bool) -> StudyState:
    """Name the state of a study; single failed trials are counted, and are not a state.

    A ticket whose lease has run out, or whose worker is known to be gone, keeps no study running.
    """
    if counts.running:
        return "stopping" if stopping else "running"
    if proven:
        return "proven"
    if counts.left and counts.done < target:
        return "stopped"
    if counts.done:
        return "done"
    return "failed" if counts.failed else "new"


def _share(part: int, whole: int) -> float | None:
    """Divide, where there is something to divide."""
    return part / whole if whole else None


def _busy_s(trials: Sequence[TrialRecord]) -> float:
    """Measure the union of the intervals in which trials ran."""
    intervals = sorted(
        (trial.started_s, trial.ended_s)
        for trial in trials
        if trial.started_s is not None and trial.ended_s is not None and trial.kind != "failed"
    )
    total, until = 0.0, float("-inf")
    for start, end in intervals:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
