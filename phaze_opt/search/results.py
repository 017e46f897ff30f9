"""Results of a study: the best design, and the state of the search in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from phaze_opt.codec import to_builtins
from phaze_opt.evaluation import Evaluation, evaluate, evaluation_to_json_dict
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.printing import PrintsAsTables
from phaze_opt.search.baselines import BaselineResult, find_baselines
from phaze_opt.search.frozen import ResolvedStudy, current_version
from phaze_opt.search.ordering import best_of
from phaze_opt.search.space import DesignPoint
from phaze_opt.search.store.caches import find_evaluations
from phaze_opt.search.store.stored_study import StoredStudy
from phaze_opt.search.store.tickets import TicketCounts
from phaze_opt.search.trials import Metrics, TrialRecord, read_trials

StudyState = Literal["new", "running", "stopping", "stopped", "done", "failed"]


@dataclass(frozen=True, repr=False)
class BestDesign(PrintsAsTables, tables="phaze_opt.report.studies:best_tables"):
    """The best design of a study; prints as the tables of ``phaze-opt study best``.

    Attributes
    ----------
    accelerator
        The chip of the design.
    evaluation
        ``None`` where the stored one is damaged or lost.
    """

    number: int
    accelerator: Accelerator
    point: DesignPoint
    metrics: Metrics
    evaluation: Evaluation | None
    baselines: tuple[BaselineResult, ...]

    def __repr__(self) -> str:
        return f"BestDesign(trial {self.number}, {self.metrics}, {self.point!r})"

    def ratio(self, baseline: BaselineResult) -> float | None:
        """Throughput over a baseline's; ``None`` where the baseline fits nowhere."""
        if baseline.throughput_samples_per_s == 0.0:
            return None
        return self.metrics.throughput_samples_per_s / baseline.throughput_samples_per_s


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
        Trials that are missing from the target and neither complete nor failed.
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
    """Choose the best feasible trial by the order of designs; of equal ones the first."""
    best = best_of((rank, trial) for trial in trials if (rank := trial.rank) is not None)
    if best is None or best.point is None or best.metrics is None:
        return None
    key = best.metrics.evaluation_key or ""
    evaluation = find_evaluations(study.storage, [key]).get(key)
    baselines = tuple(find_baselines(study.resolved, study.storage))
    chip = study.resolved.accelerator(best.point)
    return BestDesign(best.number, chip, best.point, best.metrics, evaluation, baselines)


def prove_best(study: StoredStudy, best: BestDesign) -> Evaluation:
    """Evaluate the best design with all its passes solved as far as the stated effort goes.

    The evaluation that the study stores keeps the schedules of the search.
    """
    resolved = study.resolved
    return evaluate(
        study.workload(),
        best.accelerator,
        resolved.cluster,
        resolved.training(best.point.microbatch, best.point.recompute),
        prove=True,
    )


def summarise(study: StoredStudy) -> StudySummary:
    """Read a study, count and average."""
    office = study.office()
    # Read before the trials, so that a study that is done has all its trials.
    counts, stopping = office.counts(), office.stop_requested()
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
        state=_state(counts, target, stopping),
        trials={
            "complete": len(complete),
            "infeasible": sum(trial.kind == "infeasible" for trial in complete),
            "failed": sum(trial.kind == "failed" for trial in trials),
            # The trial of a worker that is gone is still marked as running until it is settled.
            "running": min(counts.running, sum(trial.kind == "running" for trial in trials)),
        },
        target=target,
        left=max(0, min(counts.left, target - len(complete))),
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
        why_infeasible=Counter(
            "area" if each.evaluation_key is None else "memory"
            for each in metrics
            if not each.feasible
        ),
        failures=tuple(office.reasons()),
    )


def best_to_json_dict(name: str, best: BestDesign) -> dict[str, Any]:
    """Return the answer as ``study best --json`` prints it."""
    evaluation = best.evaluation
    return {
        "study": name,
        "number": best.number,
        "params": to_builtins(best.point),
        "values": [best.metrics.throughput_samples_per_s],
        "evaluation": None if evaluation is None else evaluation_to_json_dict(evaluation),
        "baselines": [
            {
                "name": baseline.name,
                "values": [baseline.throughput_samples_per_s],
                "ratio": best.ratio(baseline),
                "area_mm2": baseline.area_mm2,
                "params": None if baseline.point is None else to_builtins(baseline.point),
            }
            for baseline in best.baselines
        ],
    }


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
    }


def _state(counts: TicketCounts, target: int, stopping: bool) -> StudyState:
    """Name the state of a study; single failed trials are counted, and are not a state.

    A ticket whose lease has run out, or whose worker is known to be gone, keeps no study running.
    """
    if counts.running:
        return "stopping" if stopping else "running"
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
