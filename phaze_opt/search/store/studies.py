"""The rows of frozen studies and their workloads."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import optuna
from sqlalchemy import and_, column, delete, select, table

from phaze_opt.codec import to_json
from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.search.frozen import ResolvedStudy
from phaze_opt.search.store.damage import DAMAGES, delete_unread
from phaze_opt.search.store.failures import database_errors
from phaze_opt.search.store.storage import Storage, write_shared
from phaze_opt.search.store.tables import StudyRow, TicketRow, WorkloadRow
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.workload_file import parse_workload

UID_KEY = "phaze:uid"
"""Study attribute that names its rows in the own tables; it survives the dashboard's rename."""

_STUDIES = table("studies", column("study_id"), column("study_name"))
_ATTRIBUTES: Any = table(
    "study_user_attributes", column("study_id"), column("key"), column("value_json")
)


def study_uids(storage: Storage) -> dict[str, str | None]:
    """Return the UUID of every study by name; ``None`` where this program has not made it.

    Optuna's own listing decodes every attribute of every study, so that a single damaged one would
    hide them all.
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
    """Read a stored UUID; anything else counts as none."""
    try:
        uid = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return None
    return uid if isinstance(uid, str) else None


def store_frozen(
    storage: Storage, uid: str, resolved: ResolvedStudy, workload: Workload, name: str
) -> None:
    """Write a resolved study and its workload."""
    with storage.writing() as session:
        body = zlib.compress(to_json(workload))
        write_shared(session, WorkloadRow(hash=resolved.workload_hash, body=body))
        session.add(
            StudyRow(
                uid=uid,
                name=name,
                resolved=to_json(resolved).decode(),
                spec_hash=resolved.hash,
                workload_hash=resolved.workload_hash,
                cost_model_version=resolved.cost_model_version,
                created_s=time.time(),
            )
        )


def find_row(storage: Storage, uid: str) -> StudyRow | None:
    """Read a frozen study."""
    with storage.reading() as session:
        return session.scalar(select(StudyRow).where(StudyRow.uid == uid))


def find_orphans(storage: Storage) -> dict[str, str]:
    """Return the UUID and name of studies whose trials were deleted elsewhere (the dashboard)."""
    with storage.reading() as session:
        rows = session.execute(select(StudyRow.uid, StudyRow.name).order_by(StudyRow.name)).all()
    # Read after the rows: a study that is just being made has its trials before its row, and its
    # UUID last.
    uids = study_uids(storage)
    known, unnamed = set(uids.values()), {name for name, uid in uids.items() if uid is None}
    return {str(uid): str(name) for uid, name in rows if uid not in known and name not in unnamed}


@contextmanager
def undone_on_error(storage: Storage, name: str, uid: str) -> Iterator[None]:
    """Delete a study that is being made if that fails: half a study would only block the name."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            optuna.delete_study(study_name=name, storage=storage.optuna)
            delete_rows(storage, uid)
        raise


def delete_rows(storage: Storage, uid: str) -> None:
    """Delete what belongs to one study alone."""
    with storage.writing() as session:
        session.execute(delete(TicketRow).where(TicketRow.study_uid == uid))
        session.execute(delete(StudyRow).where(StudyRow.uid == uid))


def delete_study(name: str, storage: Storage) -> None:
    """Delete a study with its trials and tickets, also one that cannot be read any more.

    Raises
    ------
    NotFoundError
        If there is none.
    InputError
        If another program made it, and it has trials.
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
    # A rename in the dashboard that was cut short leaves two studies on the same rows.
    if uid is not None and uid not in study_uids(storage).values():
        delete_rows(storage, uid)


def _half_made(name: str, storage: Storage) -> str | None:
    """Find the rows of a study whose creation, or copying, was cut short before it got its UUID."""
    known = set(study_uids(storage).values())
    with storage.reading() as session:
        uids = session.scalars(select(StudyRow.uid).where(StudyRow.name == name)).all()
    return next((uid for uid in uids if uid not in known), None)


def uid_of(name: str, storage: Storage) -> str | None:
    """Return the UUID of a study, ``None`` if another program made it.

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


_LARGEST_WORKLOAD_BYTES = 2**30


def unpack_workload(body: bytes, name: str) -> Workload:
    """Decompress a workload, but never to more than a gigabyte."""
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(body, _LARGEST_WORKLOAD_BYTES)
    except (zlib.error, TypeError) as error:
        raise InputError(
            f"The stored workload of the study {name!r} is damaged: {error}."
        ) from None
    return parse_workload(text, f"stored workload of the study {name!r}")
