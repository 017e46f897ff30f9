"""Rows of Optuna's tables that hold trials, read and written many at once.

Optuna reads a trial in seven statements, decodes every distribution twice, and waits for the write
lock of SQLite; it adds a trial in about twenty statements. For a study of some thousand trials this
takes a minute. `opening` checks the version of Optuna's tables.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import Connection, String, case, cast, func, insert, select
from sqlalchemy.orm import Session

from phaze_opt.store.optuna_private import models
from phaze_opt.store.storage import Storage, in_parts, inserting

_AT_ONCE = 500
"""Number of trials of a statement; SQLite allows some thousand parameters in one."""

_STUDY: Any = models.StudyModel.__table__
TRIAL: Any = models.TrialModel.__table__
_PARAM: Any = models.TrialParamModel.__table__
VALUE: Any = models.TrialValueModel.__table__
_INTERMEDIATE: Any = models.TrialIntermediateValueModel.__table__
_USER_ATTRIBUTE: Any = models.TrialUserAttributeModel.__table__
_SYSTEM_ATTRIBUTE: Any = models.TrialSystemAttributeModel.__table__

_MOST = 1e300
"""Larger than every number that this program stores; SQLite takes text for larger still."""


def _length(text: Any) -> Any:
    """Return the size of a row by its text, as SQL; a row without text counts too."""
    return 1 + func.coalesce(func.length(text), 0)


_SIZES: Any = (
    (TRIAL, _length(cast(TRIAL.c.state, String)) + _length(cast(TRIAL.c.datetime_start, String))),
    (_USER_ATTRIBUTE, _length(_USER_ATTRIBUTE.c.value_json)),
    (_SYSTEM_ATTRIBUTE, _length(_SYSTEM_ATTRIBUTE.c.value_json)),
    (VALUE, case((VALUE.c.value.between(-_MOST, _MOST), 1), else_=0)),
    (
        _PARAM,
        case(
            (_PARAM.c.param_value.between(-1e15, 1e15), _length(_PARAM.c.distribution_json)),
            else_=0,
        ),
    ),
)
"""The tables of the content of trials, each with the size of a row."""


def trial_ids(storage: Storage, study_id: int) -> dict[int, int]:
    """Return the rows of the trials of a study by their numbers."""
    query = select(TRIAL.c.number, TRIAL.c.trial_id).where(TRIAL.c.study_id == study_id)
    with storage.reading() as session:
        return {int(number): int(row) for number, row in session.execute(query)}


def rows_by_number(storage: Storage, study_id: int) -> list[tuple[int, Any]]:
    """Return the rows of the trials of a study, each with its number as stored, by number."""
    query = select(TRIAL.c.trial_id, TRIAL.c.number).where(TRIAL.c.study_id == study_id)
    with storage.reading() as session:
        rows = session.execute(query.order_by(TRIAL.c.number, TRIAL.c.trial_id))
        return [(int(row), number) for row, number in rows]


def told_value(stored: float | None, kind: Any) -> float:
    """Return a value of a trial from the two columns that hold it."""
    value: float = models.TrialValueModel.stored_repr_to_value(stored, kind)
    return value


def study_number(storage: Storage, study: str) -> int:
    """Return Optuna's number of a study by its name; Optuna itself waits for a lock to read it.

    Raises
    ------
    KeyError
        If there is no study of this name.
    """
    query = select(_STUDY.c.study_id).where(_STUDY.c.study_name == study)
    with storage.reading() as session:
        number = session.scalar(query)
    if not isinstance(number, int):
        raise KeyError(study)
    return number


def characters(session: Session, *conditions: Any) -> dict[int, int]:
    """Count the characters of the content of trials, by their rows; see `all_characters`.

    Parameters
    ----------
    conditions
        Conditions on the columns of Optuna's table of trials.
    """
    counts: dict[int, int] = {}
    for table, size in _SIZES:
        query = select(table.c.trial_id, func.sum(size)).select_from(_with_trials(table))
        for trial_id, count in session.execute(query.where(*conditions).group_by(table.c.trial_id)):
            counts[trial_id] = counts.get(trial_id, 0) + int(count or 0)
    return counts


def all_characters(session: Session, study_id: int) -> int:
    """Count the characters of the content of all trials of a study.

    Where another program has changed the content of a trial, the number is hardly the same.
    """
    own = TRIAL.c.study_id == study_id
    queries = [
        select(func.sum(size)).select_from(_with_trials(table)).where(own) for table, size in _SIZES
    ]
    return sum(int(session.scalar(query) or 0) for query in queries)


def _with_trials(table: Any) -> Any:
    """Join a table of the content of trials with Optuna's table of trials, unless it is that."""
    return table if table is TRIAL else table.join(TRIAL)


def states_of(
    storage: Storage, study_id: int, greater_than: int, included: Iterable[int]
) -> dict[int, TrialState]:
    """Return the states, by row, of all trials after a row, and of the included ones."""
    query = select(TRIAL.c.trial_id, TRIAL.c.state).where(TRIAL.c.study_id == study_id)
    # Not one statement with OR, for which SQLite looks at every trial of the study.
    wanted = [TRIAL.c.trial_id > greater_than]
    if rows := sorted(included):
        wanted.append(TRIAL.c.trial_id.in_(rows))
    with storage.reading() as session:
        found = [session.execute(query.where(each)).all() for each in wanted]
    return {int(row): state for rows in found for row, state in rows}


def waiting(storage: Storage, study_id: int, greater_than: int) -> tuple[bool, int]:
    """Return whether a trial after a row waits, and the last row of a study or that row."""
    mine = (TRIAL.c.study_id == study_id, TRIAL.c.trial_id > greater_than)
    waits = func.count().filter(TRIAL.c.state == TrialState.WAITING)
    with storage.reading() as session:
        number, last = session.execute(select(waits, func.max(TRIAL.c.trial_id)).where(*mine)).one()
    return number > 0, greater_than if last is None else int(last)


def read_trials(connection: Connection, *conditions: Any) -> list[FrozenTrial]:
    """Read trials in the order of their rows.

    Parameters
    ----------
    conditions
        Conditions on the columns of Optuna's table of trials.
    """
    columns = ("trial_id", "number", "state", "datetime_start", "datetime_complete")
    query = select(*(TRIAL.c[name] for name in columns)).where(*conditions)
    rows = connection.execute(query.order_by(TRIAL.c.trial_id)).all()
    trials = {row[0]: _bare_trial(*row) for row in rows}
    for trial_ids in in_parts(trials, _AT_ONCE):
        _read_content(connection, trial_ids, trials)
    return list(trials.values())


def make_trial(session: Session, study_id: int) -> FrozenTrial:
    """Add a running trial to a study.

    Raises
    ------
    KeyError
        If there is no such study.
    """
    # The lock lets one transaction at a time number a trial; SQLite has one writer in any case.
    lock = select(_STUDY.c.study_id).where(_STUDY.c.study_id == study_id).with_for_update()
    if session.scalar(lock) is None:
        raise KeyError(models.NOT_FOUND_MSG)
    count = select(func.count()).select_from(TRIAL).where(TRIAL.c.study_id == study_id)
    number, started = session.scalar(count) or 0, datetime.now(UTC).replace(tzinfo=None)
    row = {"number": number, "state": TrialState.RUNNING, "datetime_start": started}
    made: Any = session.execute(insert(TRIAL).values(study_id=study_id, **row))
    (trial_id,) = made.inserted_primary_key
    return _bare_trial(trial_id, number, TrialState.RUNNING, started, None)


def _bare_trial(
    trial_id: int,
    number: int,
    state: TrialState,
    started: datetime | None,
    ended: datetime | None,
) -> FrozenTrial:
    """Return a trial without content; the times are those of the database, in UTC."""
    return FrozenTrial(
        number=number,
        state=state,
        value=None,
        datetime_start=local_time(started),
        datetime_complete=local_time(ended),
        params={},
        distributions={},
        user_attrs={},
        system_attrs={},
        intermediate_values={},
        trial_id=trial_id,
    )


def _read_content(
    connection: Connection, ids: Sequence[int], trials: Mapping[int, FrozenTrial]
) -> None:
    """Read parameters, values and attributes into trials, by their rows."""
    params = _read(connection, _PARAM, ids, "param_name", "param_value", "distribution_json")
    for trial_id, name, number, text in params:
        axis = _distribution(text)
        trials[trial_id].distributions[name] = axis
        trials[trial_id].params[name] = axis.to_external_repr(number)
    by_objective: dict[int, dict[int, float]] = {}
    for trial_id, objective, number, kind in _read(
        connection, VALUE, ids, "objective", "value", "value_type"
    ):
        by_objective.setdefault(trial_id, {})[objective] = told_value(number, kind)
    for trial_id, values in by_objective.items():
        trials[trial_id].values = [values[objective] for objective in range(len(values))]
    for trial_id, step, number, kind in _read(
        connection, _INTERMEDIATE, ids, "step", "intermediate_value", "intermediate_value_type"
    ):
        value = models.TrialIntermediateValueModel.stored_repr_to_intermediate_value(number, kind)
        trials[trial_id].intermediate_values[step] = value
    for trial_id, key, text in _read(connection, _USER_ATTRIBUTE, ids, "key", "value_json"):
        trials[trial_id].user_attrs[key] = json.loads(text)
    for trial_id, key, text in _read(connection, _SYSTEM_ATTRIBUTE, ids, "key", "value_json"):
        trials[trial_id].system_attrs[key] = json.loads(text)


def _read(
    connection: Connection, table: Any, trial_ids: Sequence[int], *columns: str
) -> Sequence[Any]:
    """Read the trial and other columns of the rows of trials, sorted by primary key."""
    query = select(table.c.trial_id, *(table.c[name] for name in columns))
    query = query.where(table.c.trial_id.in_(trial_ids)).order_by(*table.primary_key)
    return connection.execute(query).all()


@functools.lru_cache(maxsize=1024)
def _distribution(text: str) -> BaseDistribution:
    """Read a distribution; the trials of a study have few different ones."""
    return json_to_distribution(text)


def local_time(stored: datetime | None) -> datetime | None:
    """Return a time of the table, which is UTC, as Optuna's local time without a zone."""
    return None if stored is None else stored.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)


def insert_trials(storage: Storage, study_id: int, trials: Sequence[FrozenTrial]) -> None:
    """Write finished trials into a study without trials, in one transaction."""
    trial_model: Any = models.TrialModel
    with storage.writing() as session:
        for trial in trials:
            # The model converts local time to UTC.
            row = trial_model(
                number=trial.number,
                study_id=study_id,
                state=trial.state,
                datetime_start=trial.datetime_start,
                datetime_complete=trial.datetime_complete,
            )
            session.add(row)
        session.flush()
        query = select(TRIAL.c.number, TRIAL.c.trial_id).where(TRIAL.c.study_id == study_id)
        row_of = dict(map(tuple, session.execute(query)))
        for table, rows in _rows_of({row_of[trial.number]: trial for trial in trials}).items():
            session.connection().execute(insert(table), rows)


def write_content(session: Session, trial_id: int, trial: FrozenTrial) -> None:
    """Write the content of a trial; new attributes replace stored ones of equal keys."""
    for table, rows in _rows_of({trial_id: trial}).items():
        statement = inserting(session, table)
        if table in (_USER_ATTRIBUTE, _SYSTEM_ATTRIBUTE):
            statement = statement.on_conflict_do_update(
                index_elements=["trial_id", "key"],
                set_={"value_json": statement.excluded.value_json},
            )
        session.connection().execute(statement, rows)


def _rows_of(trials: Mapping[int, FrozenTrial]) -> dict[Any, list[dict[str, Any]]]:
    """Return the content of trials as rows by table; tables without rows are left out.

    Parameters
    ----------
    trials
        Trials by their rows in the table of trials.
    """
    rows: dict[Any, list[dict[str, Any]]] = {
        _USER_ATTRIBUTE: _attributes({row: trial.user_attrs for row, trial in trials.items()}),
        _SYSTEM_ATTRIBUTE: _attributes({row: trial.system_attrs for row, trial in trials.items()}),
        _PARAM: [
            {
                "trial_id": row,
                "param_name": name,
                "param_value": axis.to_internal_repr(trial.params[name]),
                "distribution_json": distribution_to_json(axis),
            }
            for row, trial in trials.items()
            for name, axis in trial.distributions.items()
        ],
        VALUE: [],
        _INTERMEDIATE: [],
    }
    for row, trial in trials.items():
        for objective, number in enumerate(trial.values or ()):
            stored, kind = models.TrialValueModel.value_to_stored_repr(number)
            rows[VALUE].append(
                {"trial_id": row, "objective": objective, "value": stored, "value_type": kind}
            )
        for step, number in trial.intermediate_values.items():
            stored, sort = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr(
                number
            )
            rows[_INTERMEDIATE].append(
                {
                    "trial_id": row,
                    "step": step,
                    "intermediate_value": stored,
                    "intermediate_value_type": sort,
                }
            )
    return {table: own_rows for table, own_rows in rows.items() if own_rows}


def _attributes(trials: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return attributes of trials as rows."""
    return [
        {"trial_id": row, "key": key, "value_json": json.dumps(value)}
        for row, attributes in trials.items()
        for key, value in attributes.items()
    ]
