"""The studies of a database: their names and UUIDs, orphaned rows, and deletion."""

from __future__ import annotations

import json
from typing import Any

import optuna
from sqlalchemy import and_, column, delete, select, table

from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.store.damage import DAMAGES, delete_unread
from phaze_opt.store.failures import database_errors
from phaze_opt.store.storage import Storage
from phaze_opt.store.tables import ArtifactRow, ClaimRow, FactsRow, StudyRow, TicketRow, WorkerRow

UID_KEY = "phaze:uid"
"""Attribute with the UUID of a study, the key of its rows; a rename in the dashboard keeps it."""

_STUDIES = table("studies", column("study_id"), column("study_name"))
_ATTRIBUTES: Any = table(
    "study_user_attributes", column("study_id"), column("key"), column("value_json")
)


def study_uids(storage: Storage) -> dict[str, str | None]:
    """Return the UUID of every study by name; ``None`` if another program made the study.

    Optuna's own listing decodes every attribute of every study, so that one damaged attribute would
    hide all studies.
    """
    named = and_(
        _ATTRIBUTES.c.study_id == _STUDIES.c.study_id,
        _ATTRIBUTES.c.key == UID_KEY,
    )
    query = select(_STUDIES.c.study_name, _ATTRIBUTES.c.value_json).select_from(
        _STUDIES.outerjoin(_ATTRIBUTES, named)
    )
    with storage.reading() as session:
        rows = session.execute(query.order_by(_STUDIES.c.study_name)).all()
    return {str(name): _read_uid(value) for name, value in rows}


def _read_uid(value: object) -> str | None:
    """Read a stored UUID; ``None`` for every other value."""
    try:
        uid = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return None
    return uid if isinstance(uid, str) else None


def find_orphans(storage: Storage) -> dict[str, str]:
    """Return the UUID and name of studies whose trials were deleted elsewhere (the dashboard)."""
    with storage.reading() as session:
        rows = session.execute(select(StudyRow.uid, StudyRow.name).order_by(StudyRow.name)).all()
    # Read after the rows: a new study gets its trials first, then its row, then its UUID.
    uids = study_uids(storage)
    known, unnamed = set(uids.values()), {name for name, uid in uids.items() if uid is None}
    return {str(uid): str(name) for uid, name in rows if uid not in known and name not in unnamed}


def delete_orphans(storage: Storage) -> int:
    """Delete the rows of all orphans (see `find_orphans`), and return their number."""
    orphans = find_orphans(storage)
    for uid in orphans:
        delete_rows(storage, uid)
    return len(orphans)


def delete_rows(storage: Storage, uid: str) -> None:
    """Delete the rows of one study; evaluations are shared and stay."""
    with storage.writing() as session:
        for table in (ClaimRow, TicketRow, ArtifactRow, WorkerRow, FactsRow):
            session.execute(delete(table).where(table.study_uid == uid))
        session.execute(delete(StudyRow).where(StudyRow.uid == uid))


def delete_study(name: str, storage: Storage) -> None:
    """Delete a study with its trials and tickets, even if it is damaged.

    Raises
    ------
    NotFoundError
        If there is no such study.
    InputError
        If another program made the study, and it has trials.
    """
    uid = uid_of(name, storage) or _half_made(name, storage)
    with database_errors(storage.shown):
        number = storage.optuna.get_study_id_from_name(name)
        if uid is None and storage.optuna.get_n_trials(number):
            raise InputError(f"The study {name!r} in {storage.shown} was not made by phaze-opt.")
        try:
            optuna.delete_study(study_name=name, storage=storage.optuna)
        except DAMAGES:
            delete_unread(storage, number)
    # An interrupted rename in the dashboard leaves two studies with one UUID.
    if uid is not None and uid not in study_uids(storage).values():
        delete_rows(storage, uid)


def _half_made(name: str, storage: Storage) -> str | None:
    """Return the UUID of the rows of a study whose creation or copying was interrupted."""
    known = set(study_uids(storage).values())
    with storage.reading() as session:
        uids = session.scalars(select(StudyRow.uid).where(StudyRow.name == name)).all()
    return next((uid for uid in uids if uid not in known), None)


def uid_of(name: str, storage: Storage) -> str | None:
    """Return the UUID of a study; ``None`` if another program made the study.

    Raises
    ------
    NotFoundError
        If there is no such study.
    """
    uids = study_uids(storage)
    if name not in uids:
        known = ", ".join(uids) or "none"
        raise NotFoundError(f"There is no study {name!r} in {storage.shown}; there are: {known}.")
    return uids[name]
