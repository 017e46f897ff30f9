"""One study in a database: its frozen spec, its workloads, its trials and its tickets."""

from __future__ import annotations

import hashlib
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from phaze_opt.codec import from_builtins, from_json, to_json
from phaze_opt.errors import ConflictError, InputError, NotFoundError
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.store.damage import (
    DamagedError,
    check_number,
    check_trial,
    damages,
    read_all_trials,
    read_some_trials,
)
from phaze_opt.store.failures import database_errors
from phaze_opt.store.leases import DEFAULT_LEASE_S
from phaze_opt.store.storage import Storage, in_parts, write_shared
from phaze_opt.store.studies import UID_KEY, delete_rows, uid_of
from phaze_opt.store.tables import StudyRow, WorkloadRow
from phaze_opt.store.tickets import TicketOffice
from phaze_opt.store.trial_facts import FactsOfStudy
from phaze_opt.store.trial_rows import TRIAL, rows_by_number, study_number
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.workload_file import parse_workload

_LARGEST_WORKLOAD_BYTES = 2**30
_AT_ONCE = 500
_KEPT = 8
"""Workloads of a process: the captures of a study."""


@dataclass
class StoredStudy:
    """A study in a database.

    Attributes
    ----------
    storage
        The open database.
    name, uid
        Name, which may change in the dashboard, and UUID, which is the key of its rows.
    resolved
        The resolved spec, frozen at the study's creation.
    """

    storage: Storage
    name: str
    uid: str
    resolved: ResolvedStudy

    @property
    def optuna_study(self) -> optuna.Study:
        """Optuna's object of the study."""
        with self._reading():
            return optuna.load_study(study_name=self.name, storage=self.storage.optuna)

    @property
    def optuna_id(self) -> int:
        """Optuna's number of the study; a rename in the dashboard changes it."""
        with self._reading():
            return study_number(self.storage, self.name)

    def check_exists(self) -> None:
        """Make sure that nobody has deleted or renamed the study.

        Raises
        ------
        NotFoundError
            If the study was deleted or renamed.
        """
        _ = self.optuna_id

    def office(self, lease_s: float = DEFAULT_LEASE_S) -> TicketOffice:
        """Return the tickets of the study."""
        return TicketOffice(self.storage, self.uid, lease_s)

    def workloads(self) -> tuple[Workload, ...]:
        """Return the stored workloads of the study.

        They have the order of `phaze_opt.spec.freezing.captures`.

        Raises
        ------
        DamagedError
            If a row is missing or cannot be read.
        """
        what = f"stored workload of the study {self.name!r}"
        with damages(f"The {what}"):
            return tuple(
                _parsed(self._workload_json(digest), what)
                for digest in self.resolved.workload_hashes
            )

    def workload_documents(self) -> dict[str, bytes]:
        """Return the JSON of the stored workloads by hash.

        Raises
        ------
        DamagedError
            If a row is missing, cannot be read, or has another hash.
        """
        documents = {
            digest: self._workload_json(digest) for digest in self.resolved.workload_hashes
        }
        for digest, document in documents.items():
            if hashlib.sha256(document).hexdigest() != digest:
                raise DamagedError(f"The stored workload of the study {self.name!r} was altered.")
        return documents

    def _workload_json(self, digest: str) -> bytes:
        """Read the JSON of one workload by its hash."""
        with self.storage.reading() as session:
            row = session.get(WorkloadRow, digest)
            body = None if row is None else row.body
        if body is None:
            raise DamagedError(f"The workload of the study {self.name!r} is missing.")
        with damages(f"The stored workload of the study {self.name!r}"):
            return _unpacked(body, self.name)

    def optuna_trials(self) -> list[FrozenTrial]:
        """Return the trials, sorted by number.

        Raises
        ------
        DamagedError
            If a trial cannot be read; the sentence names the first.
        """
        with database_errors(self.storage.shown):
            return read_all_trials(self.storage, self.optuna_id, f"the study {self.name!r}")

    def each_optuna_trial(self, numbers: Iterable[int] | None = None) -> Iterator[FrozenTrial]:
        """Yield trials by number, or those of some numbers in their order; few are in memory.

        Raises
        ------
        DamagedError
            If a trial cannot be read, or is missing; trials before it are yielded.
        """
        what = f"the study {self.name!r}"
        rows = rows_by_number(self.storage, self.optuna_id)
        if numbers is not None:
            by_number = {number: row for row, number in rows}
            with damages(f"The list of trials of {what}"):
                rows = [(by_number[number], number) for number in numbers]
        for part in in_parts((row for row, _ in rows), _AT_ONCE):
            found = {
                trial._trial_id: trial for trial in self.some_trials(TRIAL.c.trial_id.in_(part))
            }
            for trial in map(found.get, part):
                # Who deletes the study meanwhile takes its trials away.
                if trial is not None:
                    with damages(f"Trial {trial.number} of {what}"):
                        check_number(trial)
                    yield trial

    def some_trials(self, *conditions: Any) -> list[FrozenTrial]:
        """Read the trials that fulfil conditions on the columns of Optuna's table of trials.

        Raises
        ------
        DamagedError
            If a trial cannot be read; the sentence names the first.
        """
        own = TRIAL.c.study_id == self.optuna_id
        return read_some_trials(self.storage, f"the study {self.name!r}", own, *conditions)

    def facts(self, without: frozenset[int] = frozenset()) -> FactsOfStudy:
        """Return the stored facts of the trials, but for some trials."""
        return FactsOfStudy(self.storage, self.name, self.uid, without)

    def best_value(self) -> float | None:
        """Return the best feasible value; ``None`` without one or with several objectives."""
        kinds = self.resolved.spec.objective_kinds
        if len(kinds) > 1:
            return None
        cost = self.facts().least_cost()
        return -cost if cost is not None and kinds[0].maximise else cost

    def check(self) -> list[FrozenTrial]:
        """Check all rows that a run or a copy reads, before it changes anything.

        Returns
        -------
        trials
            All trials, sorted by number.

        Raises
        ------
        DamagedError
            If a row of the study does not have the form that this program writes.
        """
        trials = self.optuna_trials()
        for trial in trials:
            with damages(f"Trial {trial.number} of the study {self.name!r}"):
                check_trial(trial, self.resolved.spec.space)
        self.check_tables()
        return trials

    def check_tables(self) -> None:
        """Check all rows of the study but for its trials; see `check`.

        Raises
        ------
        DamagedError
            If a row of the study does not have the form that this program writes.
        """
        with self._reading():
            if self.optuna_study.directions != _directions(self.resolved):
                raise ValueError("its values and their directions are not those of its objectives")
        self.office().check(f"the study {self.name!r}")
        self.workloads()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn the errors of Optuna into one sentence."""
        with database_errors(self.storage.shown), damages(f"The study {self.name!r}"):
            try:
                yield
            except KeyError:
                raise NotFoundError(
                    f"The study {self.name!r} was deleted or renamed meanwhile."
                ) from None


def find_study(name: str, storage: Storage) -> StoredStudy:
    """Find a study by name.

    Raises
    ------
    NotFoundError
        If there is no such study.
    InputError
        If another program made the study.
    DamagedError
        If its row cannot be read.
    """
    uid = uid_of(name, storage)
    with storage.reading() as session:
        row = None if uid is None else session.get(StudyRow, uid)
        text = None if row is None else row.resolved
    if uid is None or text is None:
        raise InputError(f"The study {name!r} in {storage.shown} was not made by phaze-opt.")
    with damages(f"The stored study {name!r}"):
        plain = _of_today(from_json(text, dict[str, Any], f"stored study {name!r}"))
        resolved = from_builtins(plain, ResolvedStudy, f"stored study {name!r}")
    return StoredStudy(storage, name, uid, resolved)


def _of_today(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a study in the present form; an older program froze a single workload."""
    if "workload_hash" not in plain:
        return plain
    digest = plain.pop("workload_hash")
    return {**plain, "workload_hashes": [digest]}


def _directions(resolved: ResolvedStudy) -> list[StudyDirection]:
    """Return Optuna's direction of every objective."""
    return [
        StudyDirection.MAXIMIZE if kind.maximise else StudyDirection.MINIMIZE
        for kind in resolved.spec.objective_kinds
    ]


@contextmanager
def new_study(
    storage: Storage, name: str, resolved: ResolvedStudy, workloads: Mapping[str, bytes]
) -> Iterator[StoredStudy]:
    """Store a new study; the body of the ``with`` may add rows to it.

    An error in the body deletes the study: an incomplete study would only block its name. The UUID
    is written last, and without it no program regards the study as complete.

    Parameters
    ----------
    storage, name
        Database and name of the study.
    resolved
        The frozen study.
    workloads
        JSON of its captured workloads, by hash.

    Raises
    ------
    ConflictError
        If the name is taken.
    """
    with database_errors(storage.shown):
        try:
            made = optuna.create_study(
                storage=storage.optuna, study_name=name, directions=_directions(resolved)
            )
        except DuplicatedStudyError:
            raise ConflictError(f"The study {name!r} exists already in {storage.shown}.") from None
        uid = str(uuid.uuid4())
        with _deleted_on_error(storage, name, uid):
            _store_frozen(storage, uid, resolved, workloads, name)
            yield StoredStudy(storage, name, uid, resolved)
            made.set_user_attr(UID_KEY, uid)


@contextmanager
def _deleted_on_error(storage: Storage, name: str, uid: str) -> Iterator[None]:
    """Delete a study if its creation fails."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            optuna.delete_study(study_name=name, storage=storage.optuna)
            delete_rows(storage, uid)
        raise


def _store_frozen(
    storage: Storage,
    uid: str,
    resolved: ResolvedStudy,
    workloads: Mapping[str, bytes],
    name: str,
) -> None:
    """Write a resolved study and its workloads."""
    with storage.writing() as session:
        for digest, document in sorted(workloads.items()):
            write_shared(session, WorkloadRow(hash=digest, body=zlib.compress(document)))
        session.add(
            StudyRow(
                uid=uid,
                name=name,
                resolved=to_json(resolved).decode(),
                spec_hash=resolved.hash,
                workload_hash=resolved.workload_hashes[0],
                cost_model_version=resolved.cost_model_version,
                created_s=time.time(),
            )
        )


@lru_cache(maxsize=_KEPT)
def _parsed(document: bytes, what: str) -> Workload:
    """Read a workload from its JSON, once for all who ask in a process."""
    return parse_workload(document, what)


def _unpacked(body: bytes, name: str) -> bytes:
    """Decompress a workload, to no more than `_LARGEST_WORKLOAD_BYTES`."""
    try:
        return zlib.decompressobj().decompress(body, _LARGEST_WORKLOAD_BYTES)
    except (zlib.error, TypeError) as error:
        raise InputError(
            f"The stored workload of the study {name!r} is damaged: {error}."
        ) from None
