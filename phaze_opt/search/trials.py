"""Trials: the numbers that a trial keeps about its point, and trials read back from the database.

An infeasible point is told a negative value, its relative excess of area or memory, beside its
constraint. Samplers then know in which direction the feasible points lie, and a viewer that looks
at values alone never takes an infeasible point for the best one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState

from phaze_opt.codec import from_builtins, to_builtins
from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation
from phaze_opt.search.frozen import ResolvedStudy
from phaze_opt.search.ordering import Rank
from phaze_opt.search.space import DesignPoint, point_of
from phaze_opt.search.store.damage import damages
from phaze_opt.search.store.stored_study import StoredStudy
from phaze_opt.units import GIB

TrialKind = Literal["feasible", "infeasible", "failed", "running", "waiting"]
METRICS_KEY = "phaze"
"""Attribute of a trial that holds its `Metrics`: a single one, as each costs a commit."""

SMALLEST_VIOLATION = 1e-9
"""Least violation of an infeasible point, so that its value is below zero."""


@dataclass(frozen=True)
class Metrics:
    """The numbers of a point that its trial keeps, in its one user attribute.

    Attributes
    ----------
    feasible, reason, violation
        Whether area and memory suffice; if not, a sentence and the relative excess.
    throughput_samples_per_s
        0 if infeasible.
    area_mm2
        Under the area model of the study.
    evaluation_key
        Of the full evaluation in the database; ``None`` where the area ruled the point out first.
    cached
        Whether the evaluation was stored before.
    proven_schedules, schedules
        Number of the layers' schedules that are proven optimal, and of all.
    evaluate_s
        Seconds on the worker's clock.
    needed_schedules, quickly_proven_schedules
        See `phaze_opt.search.store.caches.ProofEffort`; 0 where the evaluation was stored before.
    """

    feasible: bool
    reason: str | None
    violation: float
    throughput_samples_per_s: float
    area_mm2: float
    energy_j_per_batch: float | None
    evaluation_key: str | None
    cached: bool
    proven_schedules: int
    schedules: int
    evaluate_s: float
    needed_schedules: int = 0
    quickly_proven_schedules: int = 0

    def __post_init__(self) -> None:
        numbers = (self.violation, self.throughput_samples_per_s, self.area_mm2, self.evaluate_s)
        known = all(map(math.isfinite, numbers)) and self.value != 0
        if not known or self.feasible != (self.value > 0):
            raise InputError(f"{self!r} are not the metrics of a point.")

    @property
    def value(self) -> float:
        """The value that the search maximises."""
        return self.throughput_samples_per_s if self.feasible else -self.violation

    def rank(self, point: DesignPoint) -> Rank:
        """Return the place of a feasible design in the order of designs."""
        return Rank(
            throughput_samples_per_s=self.throughput_samples_per_s,
            hbm_bytes=point.hbm_gib * GIB,
            area_mm2=self.area_mm2,
            energy_j=self.energy_j_per_batch,
            configuration=point.configuration,
        )

    def __str__(self) -> str:
        if self.feasible:
            return f"{self.throughput_samples_per_s:,.0f} samples/s"
        return f"{self.violation:.1%} too much"


@dataclass(frozen=True, repr=False)
class TrialRecord:
    """One trial of a study.

    Attributes
    ----------
    point, metrics
        ``None`` where they are not known yet, or were written by another program.
    started_s, ended_s
        Seconds since 1970 on its worker's clock.
    """

    number: int
    kind: TrialKind
    point: DesignPoint | None
    metrics: Metrics | None
    started_s: float | None
    ended_s: float | None

    @property
    def rank(self) -> Rank | None:
        """Place in the order of designs; ``None`` unless the trial is feasible."""
        if self.kind != "feasible" or self.metrics is None or self.point is None:
            return None
        return self.metrics.rank(self.point)

    def __repr__(self) -> str:
        value = "" if self.metrics is None else f", {self.metrics}"
        return f"TrialRecord({self.number}, {self.kind}{value}, {self.point!r})"


def metrics_of(
    evaluation: Evaluation, key: str, cached: bool, area_mm2: float, evaluate_s: float
) -> Metrics:
    """Take from an evaluation the numbers that the search and its reports need."""
    proofs = [
        proof.status == "optimal"
        for layer in evaluation.layers
        for proof in (layer.forward_schedule, layer.backward_schedule)
    ]
    feasible = evaluation.feasible
    return Metrics(
        feasible=feasible,
        reason=evaluation.reason,
        violation=0.0 if feasible else max(evaluation.violation, SMALLEST_VIOLATION),
        throughput_samples_per_s=evaluation.throughput_samples_per_s,
        area_mm2=area_mm2,
        energy_j_per_batch=evaluation.energy_j_per_batch if feasible else None,
        evaluation_key=key,
        cached=cached,
        proven_schedules=sum(proofs),
        schedules=len(proofs),
        evaluate_s=evaluate_s,
    )


def metrics_from_plain(plain: object) -> Metrics | None:
    """Read the user attribute of a trial; ``None`` where it is not one of ours."""
    if not isinstance(plain, Mapping):
        return None
    try:
        return from_builtins(dict(plain), Metrics, "metrics of a trial")
    except InputError:
        return None


def metrics_to_plain(metrics: Metrics) -> dict[str, Any]:
    """Write metrics as the user attribute of a trial."""
    plain: dict[str, Any] = to_builtins(metrics)
    return plain


def read_trials(study: StoredStudy) -> list[TrialRecord]:
    """Read all trials of a study by number.

    Raises
    ------
    DamagedError
        Naming the first trial that cannot be read.
    """
    records = []
    for trial in study.optuna_trials():
        with damages(f"Trial {trial.number} of the study {study.name!r}"):
            records.append(read_trial(study.resolved, trial))
    return records


def check_study(study: StoredStudy) -> None:
    """Read all rows that a run or a copy reads, before it changes anything.

    Raises
    ------
    DamagedError
        If rows of the study are not of the form that this program writes.
    """
    read_trials(study)
    study.check()


def read_trial(resolved: ResolvedStudy, trial: FrozenTrial) -> TrialRecord:
    """Read one trial; attributes and parameters of another program are left out."""
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


def trial_cost(resolved: ResolvedStudy, trial: FrozenTrial) -> tuple[Any, ...]:
    """Order finished trials: feasible ones as designs, then infeasible ones by violation."""
    rank = read_trial(resolved, trial).rank
    if rank is not None:
        return (0, *rank.key)
    return (1, -(trial.values or [-math.inf])[0])


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
    """Name the state of a trial, with complete ones divided by feasibility."""
    if trial.state == TrialState.COMPLETE:
        return "feasible" if metrics is not None and metrics.feasible else "infeasible"
    if trial.state == TrialState.RUNNING:
        return "running"
    return "waiting" if trial.state == TrialState.WAITING else "failed"
