"""All studies of a database: those that can be read, those that cannot, and what others left."""

from __future__ import annotations

from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.search.results import StudySummary
from phaze_opt.search.store.storage import Storage
from phaze_opt.search.store.studies import delete_rows, find_orphans, study_uids
from phaze_opt.search.study import Study


def list_studies(storage: Storage) -> list[Study]:
    """Return all studies of this program by name, without those that cannot be read."""
    return [
        study
        for name, uid in study_uids(storage).items()
        if uid is not None and isinstance(study := _opened(name, storage), Study)
    ]


def list_summaries(storage: Storage) -> tuple[list[StudySummary], dict[str, str]]:
    """Return the state of all studies, and of those that cannot be read the reason by name."""
    summaries: list[StudySummary] = []
    unreadable: dict[str, str] = {}
    for name, uid in study_uids(storage).items():
        if uid is None:
            continue
        study = _opened(name, storage)
        if isinstance(study, str):
            unreadable[name] = study
            continue
        try:
            summaries.append(study.summary())
        except (InputError, NotFoundError) as error:
            unreadable[name] = str(error)
    return summaries, unreadable


def delete_orphans(storage: Storage) -> int:
    """Delete what such studies left behind, and return how many there were."""
    orphans = find_orphans(storage)
    for uid in orphans:
        delete_rows(storage, uid)
    return len(orphans)


def _opened(name: str, storage: Storage) -> Study | str:
    """Open a study, or say why that cannot be done."""
    try:
        return Study.open(name, storage)
    except (InputError, NotFoundError) as error:
        return str(error)
