"""Artifacts in the database: files of studies and trials, for all machines.

Optuna Dashboard serves them from an artifact store; `DatabaseArtifacts` has its three methods.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import BinaryIO

from optuna.artifacts.exceptions import ArtifactNotFound
from sqlalchemy import delete, select

from phaze_opt.errors import InputError
from phaze_opt.store.storage import Storage, in_parts
from phaze_opt.store.tables import ArtifactRow

ARTIFACT_KEY = "artifacts:"
"""Prefix of the keys of system attributes that describe an artifact as JSON."""

LARGEST_BYTES = 2**26
"""Largest size of an artifact; larger artifacts would slow down every backup of the database."""


_AT_ONCE = 100
"""Number of rows of a statement."""


class DatabaseArtifacts:
    """Optuna's artifact store, on a table of this program.

    Parameters
    ----------
    storage
        The database.
    study_uid
        Study of the written artifacts, with which they are deleted; ``None`` if it is unknown, as
        for an upload in the dashboard.
    """

    def __init__(self, storage: Storage, study_uid: str | None = None) -> None:
        self._storage = storage
        self._study_uid = study_uid

    def open_reader(self, artifact_id: str) -> BinaryIO:
        """Return the content of an artifact.

        Raises
        ------
        ArtifactNotFound
            If there is no such artifact.
        """
        with self._storage.reading() as session:
            row = session.get(ArtifactRow, artifact_id)
            body = None if row is None else row.body
        if not isinstance(body, bytes):
            raise ArtifactNotFound(f"There is no artifact {artifact_id}.")
        return io.BytesIO(body)

    def write(self, artifact_id: str, content_body: BinaryIO) -> None:
        """Store an artifact.

        Raises
        ------
        InputError
            If it is too large.
        """
        body = content_body.read(LARGEST_BYTES + 1)
        if len(body) > LARGEST_BYTES:
            raise InputError(f"An artifact may have at most {LARGEST_BYTES} bytes.")
        with self._storage.writing() as session:
            session.merge(ArtifactRow(id=artifact_id, study_uid=self._study_uid, body=body))

    def remove(self, artifact_id: str) -> None:
        """Delete an artifact, if it is there."""
        with self._storage.writing() as session:
            session.execute(delete(ArtifactRow).where(ArtifactRow.id == artifact_id))


def read_artifacts(storage: Storage, names: Iterable[str]) -> dict[str, bytes]:
    """Return the content of the artifacts with these names, by name; missing ones are left out."""
    contents: dict[str, bytes] = {}
    for part in in_parts(sorted(set(names)), _AT_ONCE):
        query = select(ArtifactRow.id, ArtifactRow.body).where(ArtifactRow.id.in_(part))
        with storage.reading() as session:
            rows = session.execute(query).all()
        contents |= {str(name): body for name, body in rows if isinstance(body, bytes)}
    return contents


def write_artifacts(storage: Storage, study_uid: str, contents: Mapping[str, bytes]) -> None:
    """Store artifacts of a study."""
    for part in in_parts(contents.items(), _AT_ONCE):
        with storage.writing() as session:
            session.add_all(
                ArtifactRow(id=name, study_uid=study_uid, body=body) for name, body in part
            )
