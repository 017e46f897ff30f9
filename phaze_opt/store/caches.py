"""Evaluations and schedules in the database, each computed once for all studies and workers.

A worker claims a point under a lease before it computes it. Other workers that need the point wait
for the result, and take the point over if the lease runs out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, or_, select, update
from sqlalchemy.orm import Session

from phaze_opt.codec import from_json, to_json
from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation
from phaze_opt.evaluation_json import evaluation_from_json_dict, evaluation_to_json_dict
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.store.storage import Storage, in_parts, inserting
from phaze_opt.store.tables import EvaluationRow, ScheduleRow, database_now_s, lease_is_over

QUICK_PROOF_S = 0.02
"""A schedule whose exact search took less time counts as quickly proven."""

_POLL_S = 0.05

_SCHEDULE = select(ScheduleRow.body).where(ScheduleRow.key == bindparam("asked"))


class EvaluationCache:
    """Evaluations by the hash of all their inputs.

    Parameters
    ----------
    token
        Name of the worker that claims points; `renew_lease` extends the lease of its claims.
    """

    def __init__(self, storage: Storage, token: str, lease_s: float) -> None:
        self._storage = storage
        self._token = token
        self._lease_s = lease_s

    def get_or_compute(
        self,
        key: str,
        compute: Callable[[], Evaluation],
        schedules: ScheduleCache | None = None,
    ) -> tuple[Evaluation, bool]:
        """Return the evaluation of a key, and whether it was stored already.

        Parameters
        ----------
        key
            Hash of all inputs of the evaluation.
        compute
            Computes the evaluation.
        schedules
            Cache of the schedules that ``compute`` uses; new schedules are stored with the
            evaluation.
        """
        while True:
            stored = self._read(key)
            evaluation = _evaluation_of(stored)
            if evaluation is not None:
                return evaluation, True
            if self._claim(key, stored):
                break
            time.sleep(_POLL_S)
        schedules = ScheduleCache(self._storage) if schedules is None else schedules
        schedules.take_keys()
        try:
            evaluation = compute()
            # Writing computes deferred values, and may need more schedules.
            body = write_evaluation(evaluation)
        except BaseException:
            self._release(key)
            raise
        self._store(key, body, schedules)
        return evaluation, False

    def renew_lease(self, token: str) -> None:
        """Extend the leases of the points that a token computes."""
        with self._storage.writing() as session:
            session.execute(
                update(EvaluationRow)
                .where(EvaluationRow.token == token)
                .values(until_s=database_now_s() + self._lease_s)
            )

    def release_claims(self) -> None:
        """Release all points that this worker has claimed and not stored."""
        with self._storage.writing() as session:
            session.execute(delete(EvaluationRow).where(EvaluationRow.token == self._token))

    def _read(self, key: str) -> object:
        """Return the stored body of an evaluation, readable or not."""
        query = select(EvaluationRow.body).where(EvaluationRow.key == key)
        with self._storage.reading() as session:
            return session.scalar(query)

    def _claim(self, key: str, stored: object) -> bool:
        """Claim a key, unless another worker holds it, or the stored body has changed."""
        body, token = EvaluationRow.body, EvaluationRow.token
        unchanged = body.is_(None) if stored is None else body == stored
        free = or_(token.is_(None), token == self._token, lease_is_over(EvaluationRow.until_s))
        claim = {"token": self._token, "until_s": database_now_s() + self._lease_s}
        with self._storage.writing() as session:
            statement = inserting(session, EvaluationRow).values(key=key, **claim)
            claimed = session.connection().execute(
                statement.on_conflict_do_update(
                    index_elements=["key"], set_={**claim, "body": None}, where=free & unchanged
                ),
                execution_options={"preserve_rowcount": True},
            )
            return claimed.rowcount == 1

    def _store(self, key: str, body: str, schedules: ScheduleCache) -> None:
        """Store an evaluation and its schedules; an evaluation that another worker stored stays."""
        needed = json.dumps(sorted(schedules.take_keys()))
        result = {"token": None, "until_s": None, "body": body, "schedules": needed}

        def write(session: Session) -> None:
            # The row is missing if this worker was stalled and its claim was swept.
            statement = inserting(session, EvaluationRow).values(key=key, **result)
            session.connection().execute(
                statement.on_conflict_do_update(
                    index_elements=["key"], set_=result, where=EvaluationRow.body.is_(None)
                )
            )

        schedules.flush(write)

    def _release(self, key: str) -> None:
        """Release a claim, so that another worker can compute the point at once."""
        with self._storage.writing() as session:
            session.execute(
                delete(EvaluationRow).where(
                    EvaluationRow.key == key, EvaluationRow.token == self._token
                )
            )


class NotStoredError(Exception):
    """An evaluation is not stored, and a `ReadOnlyCache` does not compute it."""


class ReadOnlyCache(EvaluationCache):
    """Evaluations for a reader: this cache claims and stores nothing.

    Parameters
    ----------
    computes
        Whether missing evaluations are computed, without storing them.
    """

    def __init__(self, storage: Storage, *, computes: bool = False) -> None:
        super().__init__(storage, token="", lease_s=0.0)
        self._computes = computes

    def get_or_compute(
        self,
        key: str,
        compute: Callable[[], Evaluation],
        schedules: ScheduleCache | None = None,
    ) -> tuple[Evaluation, bool]:
        """Return the evaluation of a key, and whether it was stored already.

        Raises
        ------
        NotStoredError
            If it is not stored, and this cache does not compute.
        """
        evaluation = _evaluation_of(self._read(key))
        if evaluation is not None:
            return evaluation, True
        if not self._computes:
            raise NotStoredError(key)
        return compute(), False


class NoEvaluations(EvaluationCache):
    """No stored evaluations: everything is computed, and nothing is kept."""

    def __init__(self) -> None:
        """Ask for no storage."""

    def get_or_compute(
        self,
        key: str,
        compute: Callable[[], Evaluation],
        schedules: ScheduleCache | None = None,
    ) -> tuple[Evaluation, bool]:
        """Compute the evaluation, which was not stored."""
        return compute(), False

    def renew_lease(self, token: str) -> None:
        """Nothing is claimed."""


def find_evaluations(storage: Storage, keys: Iterable[str]) -> dict[str, Evaluation]:
    """Return the stored evaluations by key; keys without a stored evaluation are left out."""
    evaluations: dict[str, Evaluation] = {}
    with storage.reading() as session:
        for part in in_parts(sorted(set(keys)), 500):
            for row in session.scalars(select(EvaluationRow).where(EvaluationRow.key.in_(part))):
                evaluation = _evaluation_of(row.body)
                if evaluation is not None:
                    evaluations[row.key] = evaluation
    return evaluations


def write_evaluation(evaluation: Evaluation) -> str:
    """Write an evaluation as strict JSON.

    Raises
    ------
    ValueError
        If a number is infinite or not a number.
    """
    plain = evaluation_to_json_dict(evaluation)
    return json.dumps(plain, allow_nan=False, separators=(",", ":"))


def _evaluation_of(body: object) -> Evaluation | None:
    """Read a stored evaluation; a damaged evaluation counts as absent."""
    if not isinstance(body, str):
        return None
    try:
        return evaluation_from_json_dict(from_json(body, dict, "stored evaluation"))
    except InputError:
        return None


@dataclass(frozen=True)
class ProofEffort:
    """The effort to prove the schedules of one point optimal.

    Attributes
    ----------
    needed
        Number of different schedules that the point needed.
    quick
        Number of these schedules that were proven optimal without the exact search or in under
        `QUICK_PROOF_S`, now or when they were stored.
    """

    needed: int
    quick: int


class ScheduleCache(MutableMapping[str, Schedule]):
    """A cache of schedules in memory, above the schedules in the database.

    New schedules stay in memory until `flush` writes them, in one transaction per point.

    Parameters
    ----------
    storage
        The database; ``None`` for memory alone, which `flush` cannot write.
    """

    def __init__(self, storage: Storage | None) -> None:
        self._storage = storage
        self._known: dict[str, Schedule] = {}
        self._new: list[str] = []
        self._needed: set[str] = set()
        self._asked: set[str] = set()

    def __getitem__(self, key: str) -> Schedule:
        """Return a schedule from memory, else from the database."""
        self._needed.add(key)
        self._asked.add(key)
        if key not in self._known:
            if self._storage is None:
                raise KeyError(key)
            with self._storage.reading() as session:
                body = session.connection().scalar(_SCHEDULE, {"asked": key})
            schedule = _read_schedule(body)
            if schedule is None:
                raise KeyError(key)
            self._known[key] = schedule
        return self._known[key]

    def __setitem__(self, key: str, schedule: Schedule) -> None:
        self._needed.add(key)
        self._asked.add(key)
        self._known[key] = schedule
        self._new.append(key)

    def __delitem__(self, key: str) -> None:
        """Forget a schedule in memory; the database keeps it."""
        del self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def take_effort(self) -> ProofEffort:
        """Return the effort of the schedules that were read or set since the last call."""
        needed = [self._known[key] for key in self._needed if key in self._known]
        self._needed.clear()
        return ProofEffort(len(needed), sum(map(_is_quickly_proven, needed)))

    def take_keys(self) -> set[str]:
        """Return the keys that were read or set since the last call."""
        asked, self._asked = self._asked, set()
        return asked

    def flush(self, also: Callable[[Session], None] = lambda session: None) -> None:
        """Write the new schedules to the database, in one transaction with those of ``also``."""
        # In sorted order, so that no two workers wait for each other.
        keys = sorted(set(self._new) & set(self._known))
        rows = [{"key": key, "body": to_json(self._known[key]).decode()} for key in keys]
        assert self._storage is not None, "schedules in memory alone are not written"
        with self._storage.writing() as session:
            also(session)
            if rows:
                statement = inserting(session, ScheduleRow)
                # An unreadable stored schedule is replaced; every other stored one is equal.
                session.connection().execute(
                    statement.on_conflict_do_update(
                        index_elements=["key"], set_={"body": statement.excluded.body}
                    ),
                    rows,
                )
        self._new.clear()


def _read_schedule(body: object) -> Schedule | None:
    """Read a stored schedule; a damaged or contradictory schedule counts as absent."""
    if not isinstance(body, str):
        return None
    try:
        schedule = from_json(body, Schedule, "stored schedule")
    except InputError:
        return None
    latest_s = schedule.makespan_s * (1.0 + 1e-9)
    operators = ((operator.start_s, operator.end_s) for operator in schedule.operators)
    times = [(0.0, schedule.bound_s), *operators]
    return schedule if all(0.0 <= start <= end <= latest_s for start, end in times) else None


def _is_quickly_proven(schedule: Schedule) -> bool:
    """Whether a schedule is proven optimal, and its search was short."""
    quick = schedule.method != "branch-and-bound" or schedule.solve_s < QUICK_PROOF_S
    return schedule.status == "optimal" and quick
