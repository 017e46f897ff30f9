"""Export of a study into a bundle, and import from a bundle."""

from __future__ import annotations

from pathlib import Path

from phaze_opt.codec import read_file
from phaze_opt.sharing.bundle import read_bundle, write_bundle
from phaze_opt.sharing.bundle_file import LARGEST_FILE_BYTES
from phaze_opt.sharing.snapshot import Snapshot, restore_snapshot, take_snapshot
from phaze_opt.spec.study_spec import check_study_name
from phaze_opt.store.storage import Storage
from phaze_opt.study.study import Study, study_of
from phaze_opt.user_files import write_file


def export_bundle(study: Study, path: Path) -> Snapshot:
    """Write a study into a bundle file, and return its snapshot.

    Raises
    ------
    DamagedError
        If rows of the study cannot be read.
    InputError
        If the study is too large for a bundle.
    PhazeError
        If the file cannot be written; an existing file is kept.
    """
    snapshot = take_snapshot(study)
    write_file(path, write_bundle(snapshot))
    return snapshot


def read_bundle_file(path: Path) -> Snapshot:
    """Read and check a bundle file, without any database.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If the file is not a whole, unaltered and consistent bundle.
    """
    return read_bundle(read_file(path, "bundle", LARGEST_FILE_BYTES), f"bundle {path}")


def import_snapshot(snapshot: Snapshot, storage: Storage, name: str | None = None) -> Study:
    """Make a study of a snapshot; stored evaluations, schedules and answers are not replaced.

    Parameters
    ----------
    snapshot
        The content of a bundle.
    storage
        Database of the new study.
    name
        Name of the new study; ``None`` for that of the spec.

    Raises
    ------
    ConflictError
        If the name is taken.
    InputError
        If the name is not allowed.
    """
    name = snapshot.resolved.spec.name if name is None else name
    check_study_name(name)
    return study_of(restore_snapshot(snapshot, storage, name))
