"""Optuna's migrations, which it reads for every new database."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def migrations_read_once() -> Iterator[None]:
    """Let Optuna read its migrations once, not for each new database: that is most of the work."""
    from optuna.storages._rdb.storage import _VersionManager

    read = _VersionManager._create_alembic_script
    found: list[object] = []

    def read_once(manager: _VersionManager) -> object:
        if not found:
            found.append(read(manager))
        return found[0]

    with patch.object(_VersionManager, "_create_alembic_script", read_once):
        yield
