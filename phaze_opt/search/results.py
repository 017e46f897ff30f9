"""What a study has found so far: its trials, the best design, and how the search went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from phaze_opt.codec import to_builtins
from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluation_to_json_dict
from phaze_opt.search.baselines import BaselineResult
from phaze_opt.search.frozen import ResolvedStudy
from phaze_opt.search.objective import Metrics, metrics_from_plain
from phaze_opt.search.ordering import best_of
from phaze_opt.search.space import DesignPoint, point_of
from phaze_opt.search.store.caches import find_evaluations
from phaze_opt.search.store.storage import Storage
from phaze_opt.search.store.tickets import TicketCounts

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

TrialKind = Literal["feasible", "infeasible", "failed", "running", "waiting"]
StudyState = Literal["new", "running", "stopped", "done", "failed"]
METRICS_KEY = "phaze"
"""Attribute of a trial that holds its `Metrics`: only one, as every attribute costs a commit."""


@dataclass(frozen=True)
class TrialRecord:
    """One trial.

    Attributes
    ----------
    point, metrics
        ``None`` where they are not known (yet), or were written by another program.
    started_s, ended_s
        Seconds since 1970 on its worker's clock.
    """

    number: int
    kind: TrialKind
    point: DesignPoint | None
    metrics: Metrics | None
    started_s: float | None
    ended_s: float | None


@dataclass(frozen=True)
class BestDesign:
    """The answer.

    Attributes
    ----------
    evaluation
        ``None`` where the stored one is damaged or lost.
    """

    number: int
    point: DesignPoint
    metrics: Metrics
    evaluation: Evaluation | None
    baselines: tuple[BaselineResult, ...]

    def ratio(self, baseline: BaselineResult) -> float | None:
        """Throughput over a baseline's; ``None`` where the baseline fits nowhere."""
        if baseline.throughput_samples_per_s == 0.0:
            return None
        return self.metrics.throughput_samples_per_s / baseline.throughput_samples_per_s


@dataclass(frozen=True)
class StudySummary:
    """The state of a study in numbers.

    Attributes
    ----------
    left
        Trials that are asked for and not complete.
    busy_s
        Time during which at least one trial ran.
    rate_per_s
        Complete trials per busy second; ``None`` before the first.
    cached_share
        Of the evaluations asked for, those that were there already.
    proven_schedule_share
        Of the layers' schedules of all evaluated points, those proven optimal.
    quickly_proven_schedule_share
        Of the different schedules that each new evaluation needed, those proven optimal without
        the exact search or in under 20 ms; ``None`` where every evaluation was there already.
    why_infeasible
        How many points each limit ruled out.
    failures
        Why tickets failed for good, each reason once.
    """

    name: str
    resolved: ResolvedStudy
    state: StudyState
    trials: Mapping[str, int]
    left: int
    best: BestDesign | None
    busy_s: float
    rate_per_s: float | None
    cached_share: float | None
    proven_schedule_share: float | None
    quickly_proven_schedule_share: float | None
    why_infeasible: Mapping[str, int]
    failures: tuple[str, ...]

    @property
    def left_s(self) -> float | None:
        """Seconds until a running study is done, at the rate so far."""
        if self.state != "running" or self.rate_per_s is None:
            return None
        return self.left / self.rate_per_s


def read_trial(resolved: ResolvedStudy, trial: FrozenTrial) -> TrialRecord:
    """Read one trial; what another program wrote into it is left out."""
    metrics = metrics_from_plain(trial.user_attrs.get(METRICS_KEY))
    try:
        point = point_of(resolved.spec.space, trial.params)
    except InputError:
        point = None
    started, ended = trial.datetime_start, trial.datetime_complete
    return TrialRecord(
        number=trial.number,
        kind=_kind(trial, metrics),
        point=point,
        metrics=metrics,
        started_s=None if started is None else started.timestamp(),
        ended_s=None if ended is None else ended.timestamp(),
    )


def best_design(
    trials: Sequence[TrialRecord], storage: Storage, baselines: Sequence[BaselineResult]
) -> BestDesign | None:
    """Choose the best feasible trial by the order of designs; among equals the first."""
    feasible = [
        (trial.metrics.rank(trial.point), (trial.number, trial.point, trial.metrics))
        for trial in trials
        if trial.kind == "feasible" and trial.metrics is not None and trial.point is not None
    ]
    chosen = best_of(feasible)
    if chosen is None:
        return None
    number, point, metrics = chosen
    key = metrics.evaluation_key or ""
    evaluation = find_evaluations(storage, [key]).get(key)
    return BestDesign(number, point, metrics, evaluation, tuple(baselines))


def summarise(
    name: str,
    resolved: ResolvedStudy,
    trials: Sequence[TrialRecord],
    best: BestDesign | None,
    counts: TicketCounts,
    failures: Sequence[str],
) -> StudySummary:
    """Count and average."""
    complete = [trial for trial in trials if trial.kind in ("feasible", "infeasible")]
    metrics = [trial.metrics for trial in complete if trial.metrics is not None]
    asked = [each for each in metrics if each.evaluation_key is not None]
    busy_s = _busy_s(trials)
    why: dict[str, int] = {}
    for each in metrics:
        if not each.feasible:
            limit = "area" if each.evaluation_key is None else "memory"
            why[limit] = why.get(limit, 0) + 1
    return StudySummary(
        name=name,
        resolved=resolved,
        state=_state(counts),
        trials={
            "complete": len(complete),
            "infeasible": sum(trial.kind == "infeasible" for trial in complete),
            "failed": sum(trial.kind == "failed" for trial in trials),
            "running": sum(trial.kind == "running" for trial in trials),
        },
        left=counts.left,
        best=best,
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
        why_infeasible=why,
        failures=tuple(failures),
    )


def trial_cost(resolved: ResolvedStudy, trial: FrozenTrial) -> tuple[Any, ...]:
    """Order finished trials as designs are ordered, and infeasible ones after them by violation."""
    record = read_trial(resolved, trial)
    if record.kind == "feasible" and record.metrics is not None and record.point is not None:
        return (0, *record.metrics.rank(record.point).key)
    return (1, -(trial.values or [-math.inf])[0])


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
        "left": summary.left,
        "left_s": summary.left_s,
        "busy_s": summary.busy_s,
        "area_limit_mm2": summary.resolved.area_limit_mm2,
        "why_infeasible": dict(summary.why_infeasible),
        "failures": list(summary.failures),
    }


def trial_to_json_dict(trial: TrialRecord) -> dict[str, Any]:
    """Return one trial as a flat row."""
    duration_s = None
    if trial.started_s is not None and trial.ended_s is not None:
        duration_s = trial.ended_s - trial.started_s
    point = {} if trial.point is None else to_builtins(trial.point)
    metrics = {} if trial.metrics is None else to_builtins(trial.metrics)
    return {
        "number": trial.number,
        "state": trial.kind,
        "duration_s": duration_s,
        **point,
        **metrics,
    }


def _kind(trial: FrozenTrial, metrics: Metrics | None) -> TrialKind:
    """Name the state of a trial as people ask for it."""
    from optuna.trial import TrialState

    if trial.state == TrialState.COMPLETE:
        return "feasible" if metrics is not None and metrics.feasible else "infeasible"
    if trial.state == TrialState.RUNNING:
        return "running"
    return "waiting" if trial.state == TrialState.WAITING else "failed"


def _state(counts: TicketCounts) -> StudyState:
    """Name the state of a study; single failed trials are counted, not a state.

    A ticket whose lease has run out keeps no study running: its worker is gone or stalled.
    """
    if counts.held > counts.expired:
        return "running"
    if counts.left:
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
