"""Stored evaluations and schedules as text, many at once: for copies, bundles and merges.

Stored results are never replaced. This module only reads text; `caches` parses it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from phaze_opt.store.storage import Storage, in_parts, inserting
from phaze_opt.store.tables import EvaluationRow, ScheduleRow, TableBase

_AT_ONCE = 500
"""Rows of a statement; SQLite allows some thousand parameters in one."""


@dataclass(frozen=True)
class StoredEvaluation:
    """The row of an evaluation.

    Attributes
    ----------
    body
        JSON of the evaluation.
    schedules
        Keys of its schedules; empty if an older version of the program stored it.
    """

    body: str
    schedules: tuple[str, ...] = ()


def read_evaluations(storage: Storage, keys: Iterable[str]) -> dict[str, StoredEvaluation]:
    """Return the stored evaluations of these keys, sorted by key."""
    columns = (EvaluationRow.body, EvaluationRow.schedules)
    return {
        key: StoredEvaluation(body, _read_keys(schedules))
        for key, body, schedules in _read(storage, EvaluationRow, keys, columns)
        if isinstance(body, str)
    }


def read_schedules(storage: Storage, keys: Iterable[str]) -> dict[str, str]:
    """Return the stored schedules of these keys as JSON, sorted by key."""
    rows = _read(storage, ScheduleRow, keys, (ScheduleRow.body,))
    return {key: body for key, body in rows if isinstance(body, str)}


def write_results(
    storage: Storage, evaluations: Mapping[str, StoredEvaluation], schedules: Mapping[str, str]
) -> None:
    """Store the results that are not stored yet; also of points that a worker is computing."""
    evaluation_rows = [
        {"key": key, "body": stored.body, "schedules": json.dumps(stored.schedules)}
        for key, stored in sorted(evaluations.items())
    ]
    schedule_rows = [{"key": key, "body": body} for key, body in sorted(schedules.items())]
    for kind, rows in ((EvaluationRow, evaluation_rows), (ScheduleRow, schedule_rows)):
        for part in in_parts(rows, _AT_ONCE):
            with storage.writing() as session:
                _add(session, kind, part)


def _add(session: Session, kind: type[TableBase], rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows; of existing rows, only claims without a result get one."""
    statement = inserting(session, kind)
    if kind is EvaluationRow:
        filled = {name: statement.excluded[name] for name in ("body", "schedules")}
        statement = statement.on_conflict_do_update(
            index_elements=["key"],
            set_={**filled, "token": None, "until_s": None},
            where=EvaluationRow.body.is_(None),
        )
    else:
        statement = statement.on_conflict_do_nothing(index_elements=["key"])
    session.connection().execute(statement, list(rows))


def _read(
    storage: Storage, kind: Any, keys: Iterable[str], columns: Sequence[Any]
) -> Iterator[tuple[Any, ...]]:
    """Read the key and other columns of the rows of these keys, sorted by key."""
    for part in in_parts(sorted(set(keys)), _AT_ONCE):
        query = select(kind.key, *columns).where(kind.key.in_(part))
        with storage.reading() as session:
            rows = session.execute(query).all()
        yield from sorted((tuple(row) for row in rows), key=lambda row: str(row[0]))


def _read_keys(text: object) -> tuple[str, ...]:
    """Read a JSON list of keys; other values give an empty list."""
    try:
        keys = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return ()
    if not isinstance(keys, list):
        return ()
    return tuple(key for key in keys if isinstance(key, str))
