"""The tables of this program, beside Optuna's in the same database, with the prefix ``phaze_``.

They are keyed by a study's own UUID and by content hashes, never by Optuna's ``study_id``, which is
used again after a delete. They hold numbers and JSON; nothing read from them is ever executed.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Double, Index, LargeBinary, String, Text, or_
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Mapped, mapped_column
from sqlalchemy.sql.functions import FunctionElement

SCHEMA_VERSION = 8
"""Version of these tables; a database with an older one is brought up to date."""


class TableBase(DeclarativeBase):
    """Declarative base of all tables with the prefix ``phaze_``."""


class SchemaRow(TableBase):
    """The one row that says which version of the tables the database holds."""

    __tablename__ = "phaze_schema"

    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int]


class StudyRow(TableBase):
    """A frozen study: its resolved form as JSON, with the hash of what decides the answer.

    ``target`` is how many complete trials the last run asked for, ``stop_requested`` whether all
    workers shall end after their running trial, ``proven`` whether no point that is left can be
    better than the best trial. ``publisher`` is the worker that writes what people
    see of the study, until ``publisher_until_s`` at the latest; where there is none, until then
    nobody writes.
    """

    __tablename__ = "phaze_study"

    uid: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(255))
    resolved: Mapped[str] = mapped_column(Text)
    spec_hash: Mapped[str] = mapped_column(String(64))
    workload_hash: Mapped[str] = mapped_column(String(64))
    cost_model_version: Mapped[str] = mapped_column(String(64))
    created_s: Mapped[float] = mapped_column(Double)
    stop_requested: Mapped[bool] = mapped_column(default=False)
    target: Mapped[int | None]
    publisher: Mapped[str | None] = mapped_column(String(120))
    publisher_until_s: Mapped[float | None] = mapped_column(Double)
    proven: Mapped[bool | None]


class WorkloadRow(TableBase):
    """A captured workload as zlib-compressed JSON, shared by all studies of it."""

    __tablename__ = "phaze_workload"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[bytes] = mapped_column(LargeBinary)


class TicketRow(TableBase):
    """The right to run one trial; `phaze_opt.store.tickets` holds the protocol.

    ``token`` names the worker that holds the ticket, ``host`` its machine, ``since_s`` is when it
    took the ticket and ``until_s`` the end of its lease, both on the database's clock, and
    ``params`` is the JSON of parameters that the trial must take instead of sampled ones. ``code``
    is the hash of the code that runs, or ran, its trial (`phaze_opt.code_hash`). Before
    ``until_s`` an open ticket rests. ``attempts`` counts the workers that were lost on it, and
    ``deaths`` those of them in turn that speak against its point.
    """

    __tablename__ = "phaze_ticket"
    __table_args__ = (Index("ix_phaze_ticket_state", "study_uid", "state"),)

    study_uid: Mapped[str] = mapped_column(String(36), primary_key=True)
    k: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[str] = mapped_column(String(8))
    token: Mapped[str | None] = mapped_column(String(120))
    host: Mapped[str | None] = mapped_column(String(255))
    since_s: Mapped[float | None] = mapped_column(Double)
    until_s: Mapped[float | None] = mapped_column(Double)
    attempts: Mapped[int] = mapped_column(default=0)
    deaths: Mapped[int | None]
    trial_number: Mapped[int | None]
    params: Mapped[str | None] = mapped_column(Text)
    reason: Mapped[str | None] = mapped_column(Text)
    code: Mapped[str | None] = mapped_column(String(64))


class WorkerRow(TableBase):
    """A run that works on a study, under a lease; see `phaze_opt.store.presence`."""

    __tablename__ = "phaze_worker"

    study_uid: Mapped[str] = mapped_column(String(36), primary_key=True)
    token: Mapped[str] = mapped_column(String(120), primary_key=True)
    until_s: Mapped[float] = mapped_column(Double)


class ClaimRow(TableBase):
    """A point that a ticket of a study has taken, by its hash: no other ticket may take it."""

    __tablename__ = "phaze_claim"

    study_uid: Mapped[str] = mapped_column(String(36), primary_key=True)
    point: Mapped[str] = mapped_column(String(64), primary_key=True)
    k: Mapped[int]


class EvaluationRow(TableBase):
    """One evaluated point by the hash of everything that decides it.

    While ``body`` is empty, the worker ``token`` computes it, under a lease that ends at
    ``until_s``. ``schedules`` is the JSON list of the keys of the schedules that it needed; an
    older version did not write it.
    """

    __tablename__ = "phaze_evaluation"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    token: Mapped[str | None] = mapped_column(String(120), index=True)
    until_s: Mapped[float | None] = mapped_column(Double)
    body: Mapped[str | None] = mapped_column(Text)
    schedules: Mapped[str | None] = mapped_column(Text)


class ScheduleRow(TableBase):
    """One schedule of a layer's operators by the content of its problem."""

    __tablename__ = "phaze_schedule"

    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    body: Mapped[str] = mapped_column(Text)


class BoundRow(TableBase):
    """Upper bounds of some points of a space, by the hash of what decides them: compressed."""

    __tablename__ = "phaze_bound"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[bytes] = mapped_column(LargeBinary)


class EnumerationRow(TableBase):
    """The answer of an enumeration as JSON, by the hash of its question and of what was asked.

    ``question`` is the hash of the question alone; see
    `phaze_opt.spec.frozen.ResolvedStudy.question_hash`.
    """

    __tablename__ = "phaze_enumeration"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[str] = mapped_column(Text)
    question: Mapped[str | None] = mapped_column(String(64))


class ArtifactRow(TableBase):
    """A file of a study or trial; Optuna's attributes say of which, and how it is named."""

    __tablename__ = "phaze_artifact"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    study_uid: Mapped[str | None] = mapped_column(String(36), index=True)
    body: Mapped[bytes] = mapped_column(LargeBinary(2**26))


class database_now_s(FunctionElement[float]):
    """Seconds since 1970 on the database's clock: workers' clocks may differ by hours."""

    type = Double()
    inherit_cache = True


LONGEST_LEASE_S = 600.0
"""A lease that ends later counts as over: the clock was put back, or another program wrote it."""


def lease_is_over(until_s: ColumnElement[Any] | InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Whether a lease has run out, as a condition of SQL (in SQLite text is above all numbers)."""
    now_s = database_now_s()
    return or_(until_s.is_(None), until_s < now_s, until_s > now_s + LONGEST_LEASE_S)


@compiles(database_now_s)
def _now_of_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    """Wall-clock time, not the start of the transaction."""
    return "EXTRACT(EPOCH FROM clock_timestamp())"


@compiles(database_now_s, "sqlite")
def _now_of_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    """Days since noon of 4714 BC, shifted to 1970; exact to a tenth of a millisecond."""
    return "((julianday('now') - 2440587.5) * 86400.0)"
