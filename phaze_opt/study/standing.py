"""Where a study stands: its trials counted, its best one and its front, computed by the database.

The facts of finished trials (`phaze_opt.store.trial_facts`) are counted and ordered by SQL. Trials
without facts, such as running ones, are few: they are read, and added.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.store.damage import DamagedError, check_number, check_trial, damages
from phaze_opt.store.failures import DatabaseError
from phaze_opt.store.storage import in_parts
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.store.trial_facts import (
    COSTS,
    FactsOfStudy,
    Tally,
    TrialFacts,
    trials_without_facts,
    write_facts,
)
from phaze_opt.store.trial_rows import TRIAL
from phaze_opt.study.pareto import front, undominated
from phaze_opt.study.trials import TrialRecord, best_trial, check_study, read_trial

_AT_ONCE = 500
_MANY = 100
"""Whoever reads more finished trials without facts than this writes the facts, for the next one."""


@dataclass(frozen=True)
class Standing:
    """Where a study stands.

    Attributes
    ----------
    tally
        Its trials, counted.
    busy_s
        Seconds in which at least one trial ran.
    best
        The best feasible trial by the order of designs; ``None`` if there is none.
    front
        The trials of the Pareto front, if there are several objectives.
    """

    tally: Tally
    busy_s: float
    best: TrialRecord | None
    front: tuple[TrialRecord, ...]


def read_standing(study: StoredStudy) -> Standing:
    """Read where a study stands.

    Raises
    ------
    DamagedError
        If a trial that is read, or what is stored of the others, is not of this program.
    """
    rest, facts = _facts_and_rest(study)
    with damages(f"What is stored of the trials of the study {study.name!r}"):
        return Standing(
            tally=facts.tally() + Tally.of(facts_of(study.resolved, trial) for trial in rest),
            busy_s=busy_s(_array([*facts.intervals(), *_intervals(rest)], 2)),
            best=_best(study, facts, rest),
            front=_front(study, facts, rest),
        )


def find_best(study: StoredStudy) -> TrialRecord | None:
    """Return the best feasible trial by the order of designs; of equal trials the first."""
    rest, facts = _facts_and_rest(study)
    return _best(study, facts, rest)


def facts_of(resolved: ResolvedStudy, trial: TrialRecord) -> TrialFacts:
    """Return the facts of a trial; those of one that is not finished are not stored."""
    is_complete = trial.kind in ("feasible", "infeasible")
    metrics = trial.metrics if is_complete else None
    evaluated = None if metrics is None or metrics.evaluation_key is None else metrics
    facts = TrialFacts(
        number=trial.number,
        kind=trial.kind,
        design=None if trial.point is None else json.dumps(trial.point.configuration),
        started_s=trial.started_s,
        ended_s=trial.ended_s,
        violated=None if metrics is None else metrics.limit,
        evaluated=evaluated is not None,
        cached=evaluated is not None and evaluated.cached,
        schedules=0 if evaluated is None else evaluated.schedules,
        proven=0 if evaluated is None else evaluated.proven_schedules,
        needed=0 if evaluated is None else evaluated.needed_schedules,
        quickly_proven=0 if evaluated is None else evaluated.quickly_proven_schedules,
    )
    if trial.rank is None or trial.metrics is None:
        return facts
    kinds = resolved.spec.objective_kinds
    costs = [
        -value if kind.maximise else value
        for kind, value in zip(kinds, trial.metrics.values, strict=True)
    ]
    value_bin, hbm_bytes, area_mm2, energy_j, *_ = trial.rank.key
    ranked = {"value_bin": value_bin, "hbm_bytes": hbm_bytes}
    ranked |= {"area_mm2": area_mm2, "energy_j": energy_j}
    ranked |= {column.key: cost for column, cost in zip(COSTS, costs, strict=False)}
    return replace(facts, **ranked)


def trials_of(study: StoredStudy, rows: Iterable[int]) -> Iterator[list[TrialRecord]]:
    """Read trials by their rows, some at once."""
    for part in in_parts(rows, _AT_ONCE):
        yield [trial for _, trial in _read_part(study, part)]


def numbered_trials(study: StoredStudy, numbers: Iterable[int]) -> list[TrialRecord]:
    """Read trials by their numbers, and return them in the order of these.

    Raises
    ------
    DamagedError
        If a trial is missing or cannot be read.
    """
    found: dict[int, TrialRecord] = {}
    numbers = list(numbers)
    for part in in_parts(numbers, _AT_ONCE):
        trials = study.some_trials(TRIAL.c.number.in_(part))
        found |= {trial.number: read_trial(study.resolved, trial) for trial in trials}
    with damages(f"What is stored of the trials of the study {study.name!r}"):
        return [found[number] for number in numbers]


def prepare_trials(study: StoredStudy) -> None:
    """Check all rows that a run reads, and write the facts of trials that have none.

    Finished trials with facts were checked when these were written; they are read again only if
    their content has another size than then.

    Raises
    ------
    DamagedError
        If a row of the study does not have the form that this program writes.
    """
    study.check_tables()
    if not study.facts().describe(study.optuna_id):
        check_study(study)
        study.facts().forget()
    rows = trials_without_facts(study.storage, study.uid, study.optuna_id)
    _write_missing(study, rows, check=True)


def busy_s(intervals: FloatArray) -> float:
    """Return the seconds that lie in at least one interval, each with its start and end."""
    if not len(intervals):
        return 0.0
    starts, ends = intervals.T
    order = np.lexsort((ends, starts))
    starts, ends = starts[order], ends[order]
    until = np.concatenate(([-np.inf], np.maximum.accumulate(ends)[:-1]))
    # Added one by one, as the intervals come: sums in another order differ in the last digits.
    return float(np.add.accumulate(np.maximum(0.0, ends - np.maximum(starts, until)))[-1])


def _array(rows: Iterable[Sequence[float]], columns: int) -> FloatArray:
    """Return rows of a database as an array; numpy itself takes 40 times as long for them."""
    return np.fromiter(itertools.chain.from_iterable(rows), np.float64).reshape(-1, columns)


def _facts_and_rest(study: StoredStudy) -> tuple[list[TrialRecord], FactsOfStudy]:
    """Read the trials without facts, and return them with the facts of all others."""
    rows = trials_without_facts(study.storage, study.uid, study.optuna_id)
    if len(rows) > _MANY:
        # A database that cannot be written is read in full each time.
        with suppress(DatabaseError):
            _write_missing(study, rows)
            rows = trials_without_facts(study.storage, study.uid, study.optuna_id)
    rest = [trial for part in trials_of(study, rows) for trial in part]
    return rest, study.facts(frozenset(trial.number for trial in rest))


def _write_missing(study: StoredStudy, rows: Iterable[int], *, check: bool = False) -> None:
    """Write the facts of the finished trials among some rows; see `prepare_trials` for checks."""
    for part in in_parts(rows, _AT_ONCE):
        trials = _read_part(study, part, check=check)
        finished = {
            row: facts_of(study.resolved, trial)
            for row, trial in trials
            if trial.kind in ("feasible", "infeasible", "failed")
        }
        if finished:
            with study.storage.writing() as session:
                write_facts(session, study.uid, finished)


def _read_part(
    study: StoredStudy, rows: Sequence[int], *, check: bool = False
) -> list[tuple[int, TrialRecord]]:
    """Read some trials by their rows."""
    records = []
    for trial in study.some_trials(TRIAL.c.trial_id.in_(rows)):
        with damages(f"Trial {trial.number} of the study {study.name!r}"):
            check_number(trial)
            if check:
                check_trial(trial, study.resolved.spec.space)
            records.append((trial._trial_id, read_trial(study.resolved, trial)))
    return records


def _intervals(trials: Iterable[TrialRecord]) -> list[tuple[float, float]]:
    """Return start and end of the trials that ended and did not fail."""
    return [
        (trial.started_s, trial.ended_s)
        for trial in trials
        if trial.started_s is not None and trial.ended_s is not None and trial.kind != "failed"
    ]


def _best(
    study: StoredStudy, facts: FactsOfStudy, rest: Sequence[TrialRecord]
) -> TrialRecord | None:
    """Return the best of the trials with facts and of the rest."""
    return best_trial(
        sorted([*_ranked(study, facts.best()), *rest], key=lambda trial: trial.number)
    )


def _front(
    study: StoredStudy, facts: FactsOfStudy, rest: Sequence[TrialRecord]
) -> tuple[TrialRecord, ...]:
    """Return the front of the trials with facts and of the rest."""
    objectives = len(study.resolved.spec.objectives)
    if objectives == 1:
        return ()
    rows = facts.by_costs(objectives)
    numbers_and_costs = _array(rows, 1 + objectives)
    kept = [rows[place][0] for place in undominated(numbers_and_costs[:, 1:])]
    trials = sorted([*_ranked(study, kept), *rest], key=lambda trial: trial.number)
    return tuple(front(study.resolved.spec, trials))


def _ranked(study: StoredStudy, numbers: Sequence[int]) -> list[TrialRecord]:
    """Read feasible trials by their numbers."""
    trials = numbered_trials(study, numbers)
    for trial in trials:
        if trial.rank is None:
            raise DamagedError(f"Trial {trial.number} of the study {study.name!r} was altered.")
    return trials
