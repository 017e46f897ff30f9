"""The rows of frozen studies and their workloads."""

from __future__ import annotations

import time
import zlib
from collections.abc import Collection

from sqlalchemy import delete, select

from phaze_opt.codec import from_json, to_json
from phaze_opt.errors import InputError
from phaze_opt.search.frozen import ResolvedStudy
from phaze_opt.search.storage import Storage
from phaze_opt.search.tables import StudyRow, TicketRow, WorkloadRow
from phaze_opt.workload.graph import Workload


def store_frozen(
    storage: Storage, uid: str, resolved: ResolvedStudy, workload: Workload, name: str
) -> None:
    """Write a resolved study and its workload."""
    with storage.writing() as session:
        if session.get(WorkloadRow, resolved.workload_hash) is None:
            body = zlib.compress(to_json(workload))
            session.merge(WorkloadRow(hash=resolved.workload_hash, body=body))
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


def find_orphans(storage: Storage, known: Collection[str]) -> dict[str, str]:
    """Return the UUID and name of studies whose trials were deleted elsewhere (the dashboard)."""
    with storage.reading() as session:
        rows = session.execute(select(StudyRow.uid, StudyRow.name).order_by(StudyRow.name)).all()
    return {str(uid): str(name) for uid, name in rows if uid not in known}


def delete_rows(storage: Storage, uid: str) -> None:
    """Delete what belongs to one study alone."""
    with storage.writing() as session:
        session.execute(delete(TicketRow).where(TicketRow.study_uid == uid))
        session.execute(delete(StudyRow).where(StudyRow.uid == uid))


_LARGEST_WORKLOAD_BYTES = 2**30


def unpack_workload(body: bytes, name: str) -> Workload:
    """Decompress a workload, but never to more than a gigabyte."""
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(body, _LARGEST_WORKLOAD_BYTES)
    except zlib.error as error:
        raise InputError(
            f"The stored workload of the study {name!r} is damaged: {error}."
        ) from None
    return from_json(text, Workload, f"stored workload of the study {name!r}")
