"""The notes of a study in Optuna Dashboard: the right to write them, in one transaction.

Workers on several machines update them. One worker at a time claims the right to write, and
releases it with a pause during which nobody writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, column, delete, insert, or_, select, table, update

from phaze_opt.store.storage import Storage
from phaze_opt.store.tables import StudyRow, database_now_s, lease_is_over

WRITING_S = 60.0
"""Seconds after which another worker may claim the right of a writer that has not released it."""

_ATTRIBUTES: Any = table(
    "study_system_attributes", column("study_id"), column("key"), column("value_json")
)


def claim_publication(storage: Storage, uid: str, token: str, *, at_once: bool = False) -> bool:
    """Claim the right to write, and return whether it was free.

    Parameters
    ----------
    storage, uid
        The database, and the study by its UUID.
    token
        Name of the writer.
    at_once
        Whether to ignore the pause after the last writer.
    """
    free = lease_is_over(StudyRow.publisher_until_s)
    if at_once:
        free = or_(free, StudyRow.publisher.is_(None))
    claimed = (
        update(StudyRow)
        .where(StudyRow.uid == uid, free)
        .values(publisher=token, publisher_until_s=database_now_s() + WRITING_S)
    )
    with storage.writing() as session:
        result: Any = session.execute(claimed)
        return bool(result.rowcount)


def end_publication(storage: Storage, uid: str, token: str, pause_s: float) -> None:
    """Release the right to write; for ``pause_s`` seconds nobody gets it."""
    with storage.writing() as session:
        session.execute(
            update(StudyRow)
            .where(StudyRow.uid == uid, StudyRow.publisher == token)
            .values(publisher=None, publisher_until_s=database_now_s() + pause_s)
        )


def publication_mark(storage: Storage, uid: str) -> object:
    """Return a number that changes with every publication of a study; ``None`` before the first."""
    with storage.reading() as session:
        return session.scalar(select(StudyRow.publisher_until_s).where(StudyRow.uid == uid))


def rewrite_attributes(
    storage: Storage,
    study_id: int,
    prefixes: Sequence[str],
    rewrite: Callable[[Mapping[str, object]], Mapping[str, object]],
) -> None:
    """Replace system attributes of a study in one transaction: no reader sees old beside new ones.

    Optuna's own function writes one attribute per transaction.

    Parameters
    ----------
    study_id
        Optuna's number of the study.
    prefixes
        Prefixes of the keys of the replaced attributes.
    rewrite
        Returns the new attributes, whose keys have these prefixes too, for the old ones. It is
        called in the transaction, so that nobody writes in between.
    """
    key = _ATTRIBUTES.c.key
    replaced = and_(
        _ATTRIBUTES.c.study_id == study_id,
        or_(*(key.startswith(prefix, autoescape=True) for prefix in prefixes)),
    )
    with storage.writing() as session:
        query = select(key, _ATTRIBUTES.c.value_json).where(replaced).with_for_update()
        old = {str(name): json.loads(text) for name, text in session.execute(query)}
        rows = [
            {"study_id": study_id, "key": name, "value_json": json.dumps(value)}
            for name, value in rewrite(old).items()
        ]
        session.execute(delete(_ATTRIBUTES).where(replaced))
        if rows:
            session.execute(insert(_ATTRIBUTES), rows)
