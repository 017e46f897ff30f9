"""Trials: the metrics of a point that a trial stores, and trials read from the database.

The value of an infeasible point is worse than every feasible value, and gets worse with its excess
over a limit; see `phaze_opt.spec.objectives`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState

from phaze_opt.choices import AreaModel
from phaze_opt.codec import from_builtins, to_builtins
from phaze_opt.errors import InputError
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.constraints import SMALLEST_VIOLATION, Limit
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.ordering import Rank, best_of
from phaze_opt.spec.space import DesignPoint, point_of
from phaze_opt.store.damage import damages
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.units import format_number

TrialKind = Literal["feasible", "infeasible", "failed", "running", "waiting"]
METRICS_KEY = "phaze"
"""Attribute of a trial that holds its `Metrics`: a single attribute, as each costs a row."""

ORIGIN_KEY = "phaze:origin"
"""Attribute of a merged trial: its former studies and numbers, the oldest first."""


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of one workload on a design.

    Attributes
    ----------
    workload
        Its name in the spec; empty in a trial of an older program, which had one workload.
    throughput_samples_per_s, energy_j_per_batch
        0 and ``None`` if infeasible.
    evaluation_key
        Key of the full evaluation in the database.
    chosen
        The best values of the solved axes.
    """

    workload: str
    throughput_samples_per_s: float
    energy_j_per_batch: float | None
    evaluation_key: str
    chosen: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Metrics:
    """The metrics of a point that its trial stores in its user attribute.

    Attributes
    ----------
    feasible, reason, violation
        Whether the point keeps all limits; if not, a sentence and the relative excess.
    values
        The values that Optuna gets, by objective; see `phaze_opt.spec.objectives`.
    area_mm2
        Under the area model of the study; ``None`` if the chip cannot be built.
    runs
        By workload; empty if the chip or its area violates a limit.
    cached
        Whether all evaluations were stored before.
    proven_schedules, schedules
        Number of schedules of layers that are proven optimal, and of all.
    evaluate_s
        Seconds on the clock of the worker.
    needed_schedules, quickly_proven_schedules
        See `phaze_opt.store.caches.ProofEffort`; 0 if the evaluation was stored before.
    limit
        The limit that the point violates; ``None`` if feasible.
    """

    feasible: bool
    reason: str | None
    violation: float
    values: tuple[float, ...]
    area_mm2: float | None
    runs: tuple[RunMetrics, ...]
    cached: bool
    proven_schedules: int
    schedules: int
    evaluate_s: float
    needed_schedules: int = 0
    quickly_proven_schedules: int = 0
    limit: Limit | None = None

    def __post_init__(self) -> None:
        numbers = (self.violation, self.area_mm2 or 0.0, self.evaluate_s, *self.values)
        whole = bool(self.values) and all(map(math.isfinite, numbers))
        if self.feasible:
            whole = whole and self.violation == 0 and min(self.values) > 0
            whole = whole and bool(self.runs) and self.area_mm2 is not None
        elif self.violation < SMALLEST_VIOLATION or self.reason is None:
            whole = False
        if not whole:
            raise InputError(f"{self!r} are not the metrics of a point.")

    @property
    def value(self) -> float:
        """The value of the first objective."""
        return self.values[0]

    @property
    def evaluation_key(self) -> str | None:
        """Key of the evaluation of the first workload; ``None`` if there is none."""
        return self.runs[0].evaluation_key if self.runs else None

    @property
    def energy_j_per_batch(self) -> float | None:
        """Energy of all workloads together; ``None`` if infeasible."""
        energies = [run.energy_j_per_batch for run in self.runs]
        known = [energy_j for energy_j in energies if energy_j is not None]
        return sum(known) if known and self.feasible else None

    def rank(self, resolved: ResolvedStudy, point: DesignPoint) -> Rank:
        """Return the rank of a feasible design in the order of designs."""
        return Rank(
            value=self.value,
            hbm_bytes=resolved.hbm_bytes(point),
            area_mm2=self.area_mm2 or 0.0,
            energy_j=self.energy_j_per_batch,
            configuration=point.configuration,
            maximise=resolved.spec.objective_kinds[0].maximise,
        )

    def __str__(self) -> str:
        if not self.feasible:
            return f"{self.violation:.1%} too much"
        if len(self.runs) == 1:
            return f"{format_number(self.runs[0].throughput_samples_per_s)} samples/s"
        return ", ".join(map(format_number, self.values))


@dataclass(frozen=True, repr=False)
class TrialRecord:
    """One trial of a study.

    Attributes
    ----------
    point, metrics, rank
        ``None`` if they are not known yet, or another program wrote them; ``rank``, in the order of
        designs, is also ``None`` if the trial is not feasible.
    started_s, ended_s
        Seconds since 1970 on the clock of its worker.
    origin
        ``"STUDY:NUMBER"`` of the original trial, if studies were merged.
    area_model
        Area model of the study, which the areas of the metrics follow.
    """

    number: int
    kind: TrialKind
    point: DesignPoint | None
    metrics: Metrics | None
    started_s: float | None
    ended_s: float | None
    rank: Rank | None = None
    origin: str | None = None
    area_model: AreaModel | None = None

    def __repr__(self) -> str:
        value = "" if self.metrics is None else f", {self.metrics}"
        return f"TrialRecord({self.number}, {self.kind}{value}, {self.point!r})"


def metrics_from_plain(plain: object) -> Metrics | None:
    """Read the metrics of a trial from its attribute; ``None`` if another program wrote it."""
    if not isinstance(plain, Mapping):
        return None
    try:
        return from_builtins(_of_today(dict(plain)), Metrics, "metrics of a trial")
    except (InputError, TypeError):
        return None


def _of_today(plain: dict[str, Any]) -> dict[str, Any]:
    """Convert metrics of an older program, of one workload and throughput, to today's form.

    A study of that program can then be read, and copied with its best points.
    """
    if "throughput_samples_per_s" not in plain:
        return plain
    throughput = plain.pop("throughput_samples_per_s")
    key, energy_j = plain.pop("evaluation_key"), plain.pop("energy_j_per_batch")
    plain["values"] = [throughput if plain["feasible"] else -plain["violation"]]
    plain["runs"] = []
    if not plain["feasible"]:
        plain["limit"] = "area" if key is None else "memory"
    if key is not None:
        run = RunMetrics("", throughput, energy_j, key)
        plain["runs"] = [to_builtins(run)]
    return plain


def metrics_to_plain(metrics: Metrics) -> dict[str, Any]:
    """Write metrics as the user attribute of a trial."""
    plain: dict[str, Any] = to_builtins(metrics)
    return plain


def each_trial(study: StoredStudy, numbers: Iterable[int] | None = None) -> Iterator[TrialRecord]:
    """Yield all trials of a study by number; few of them are in memory at a time.

    Parameters
    ----------
    numbers
        Numbers of the trials to yield instead, in this order.

    Raises
    ------
    DamagedError
        If a trial cannot be read, or one of the numbers is missing; trials before it are yielded.
    """
    return _read(study, study.each_optuna_trial(numbers))


def _read(study: StoredStudy, trials: Iterable[FrozenTrial]) -> Iterator[TrialRecord]:
    """Read trials; see `each_trial`."""
    for trial in trials:
        with damages(f"Trial {trial.number} of the study {study.name!r}"):
            record = read_trial(study.resolved, trial)
        yield record


def best_trial(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the best feasible trial by the order of designs; of equal trials the first."""
    return best_of((rank, trial) for trial in trials if (rank := trial.rank) is not None)


def check_study(study: StoredStudy) -> list[FrozenTrial]:
    """Check all rows that a run or a copy reads, before it changes anything.

    Returns
    -------
    trials
        Optuna's trials by number.

    Raises
    ------
    DamagedError
        If a row of the study does not have the form that this program writes.
    """
    trials = study.check()
    for _ in _read(study, trials):
        pass
    return trials


def read_trial(resolved: ResolvedStudy, trial: FrozenTrial) -> TrialRecord:
    """Read a trial; attributes and parameters of another program are left out."""
    metrics = metrics_from_plain(trial.user_attrs.get(METRICS_KEY))
    if metrics is not None and len(metrics.values) != len(resolved.spec.objectives):
        metrics = None
    try:
        point = point_of(resolved.spec.space, trial.params)
    except InputError:
        point = None
    started, ended = trial.datetime_start, trial.datetime_complete
    kind = _kind(trial, metrics)
    rank = None
    if kind == "feasible" and metrics is not None and point is not None:
        rank = metrics.rank(resolved, point)
    return TrialRecord(
        number=trial.number,
        kind=kind,
        point=point,
        metrics=metrics,
        started_s=None if started is None else started.timestamp(),
        ended_s=None if ended is None else ended.timestamp(),
        rank=rank,
        origin=_origin(trial.user_attrs.get(ORIGIN_KEY)),
        area_model=resolved.spec.area.model,
    )


def trial_cost(resolved: ResolvedStudy, trial: FrozenTrial) -> tuple[Any, ...]:
    """Order finished trials: feasible trials as designs, then infeasible trials by violation."""
    rank = read_trial(resolved, trial).rank
    if rank is not None:
        return (0, *rank.key)
    sign = -1 if resolved.spec.objective_kinds[0].maximise else 1
    return (1, sign * (trial.values or [-sign * math.inf])[0])


def trial_to_json_dict(trial: TrialRecord) -> dict[str, Any]:
    """Return a trial as a flat row."""
    duration_s = None
    if trial.started_s is not None and trial.ended_s is not None:
        duration_s = trial.ended_s - trial.started_s
    point = {} if trial.point is None else trial.point.by_name
    metrics = {} if trial.metrics is None else _flat(trial.metrics, trial.area_model)
    return {
        "number": trial.number,
        "state": trial.kind,
        **({} if trial.origin is None else {"origin": trial.origin}),
        "duration_s": duration_s,
        **point,
        **metrics,
    }


def _flat(metrics: Metrics, area_model: AreaModel | None) -> dict[str, Any]:
    """Return metrics as cells of a row; the keys of a single workload have no prefix."""
    plain: dict[str, Any] = {**to_builtins(metrics), "area_model": area_model}
    runs = plain.pop("runs")
    values = plain.pop("values")
    plain["value"] = values[0]
    plain |= {f"value_{place}": value for place, value in enumerate(values) if place > 0}
    if len(runs) <= 1:
        run = runs[0] if runs else {}
        plain["throughput_samples_per_s"] = run.get("throughput_samples_per_s", 0.0)
        plain["energy_j_per_batch"] = run.get("energy_j_per_batch")
        plain["evaluation_key"] = run.get("evaluation_key")
        chosen: dict[str, Any] = run.get("chosen", {})
        return plain | chosen
    for run in runs:
        prefix, chosen = f"{run.pop('workload')}.", run.pop("chosen")
        plain |= {prefix + name: cell for name, cell in {**run, **chosen}.items()}
    return plain


def _origin(stored: object) -> str | None:
    """Return ``"STUDY:NUMBER"`` of the original of a merged trial; ``None`` if unknown."""
    first = stored[0] if isinstance(stored, list) and stored else None
    if not isinstance(first, Mapping) or not {"study", "number"} <= first.keys():
        return None
    return f"{first['study']}:{first['number']}"


def _kind(trial: FrozenTrial, metrics: Metrics | None) -> TrialKind:
    """Return the kind of a trial; complete trials are feasible or infeasible."""
    if trial.state == TrialState.COMPLETE:
        return "feasible" if metrics is not None and metrics.feasible else "infeasible"
    if trial.state == TrialState.RUNNING:
        return "running"
    return "waiting" if trial.state == TrialState.WAITING else "failed"
