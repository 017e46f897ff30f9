"""Bounds and answers of enumerations in the database, by the hash of all their inputs.

All studies of equal specs, workloads and cost-model versions share them.
"""

from __future__ import annotations

import zlib

import numpy as np
from sqlalchemy import select

from phaze_opt.arrays import FloatArray
from phaze_opt.store.storage import Storage, write_shared
from phaze_opt.store.tables import BoundRow, EnumerationRow

_LARGEST_BYTES = 2**28


class BoundStore:
    """Upper bounds of points in single precision."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def find(self, key: str) -> FloatArray | None:
        """Return stored bounds; ``None`` if there are none, or they cannot be read."""
        with self._storage.reading() as session:
            row = session.get(BoundRow, key)
            body = None if row is None else row.body
        return None if body is None else _unpacked(body)

    def has(self, key: str) -> bool:
        """Whether bounds are stored, readable or not."""
        with self._storage.reading() as session:
            return session.get(BoundRow, key) is not None

    def keep(self, key: str, bounds: FloatArray) -> None:
        """Store a two-dimensional array of bounds that `rounded_up` has rounded."""
        with self._storage.writing() as session:
            write_shared(session, BoundRow(key=key, body=_packed(bounds)))


def rounded_up(bounds: FloatArray) -> FloatArray:
    """Round bounds up to the next numbers of single precision."""
    single = bounds.astype(np.float32)
    below = single.astype(np.float64) < bounds
    single[below] = np.nextafter(single[below], np.float32(np.inf))
    return single.astype(np.float64)


def find_enumeration(storage: Storage, key: str) -> str | None:
    """Return a stored answer as JSON; ``None`` if there is none."""
    with storage.reading() as session:
        row = session.get(EnumerationRow, key)
        return None if row is None else row.body


def find_answers(storage: Storage, question: str) -> dict[str, str]:
    """Return all stored answers to a question as JSON by key: tops of several sizes."""
    with storage.reading() as session:
        query = select(EnumerationRow.key, EnumerationRow.body)
        rows = session.execute(query.where(EnumerationRow.question == question)).all()
    return {str(key): str(body) for key, body in sorted(map(tuple, rows))}


def keep_enumeration(storage: Storage, key: str, body: str, question: str | None = None) -> None:
    """Store an answer; `find_answers` does not return an answer without a question."""
    with storage.writing() as session:
        write_shared(session, EnumerationRow(key=key, body=body, question=question))


def _packed(bounds: FloatArray) -> bytes:
    """Compress bounds with their shape."""
    shape = np.array(bounds.shape, dtype="<u4").tobytes()
    return zlib.compress(shape + bounds.astype("<f4").tobytes())


def _unpacked(body: bytes) -> FloatArray | None:
    """Reverse `_packed`."""
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(body, _LARGEST_BYTES)
    except (zlib.error, TypeError):
        return None
    if len(data) < 8 or not unpacker.eof:
        return None
    rows, columns = (int(extent) for extent in np.frombuffer(data[:8], dtype="<u4"))
    numbers = np.frombuffer(data[8:], dtype="<f4").astype(np.float64)
    whole = len(numbers) == rows * columns and bool(np.all(numbers >= 0.0))
    return numbers.reshape(rows, columns) if whole else None
