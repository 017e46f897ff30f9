"""The tables of this program, beside Optuna's in the same database, with the prefix ``phaze_``.

Their keys are the UUID of a study and content hashes, never Optuna's ``study_id``, which is used
again after a deletion. The tables hold numbers and JSON; the program never executes their content.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Double, Index, LargeBinary, String, Text, or_
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Mapped, mapped_column
from sqlalchemy.sql.functions import FunctionElement

SCHEMA_VERSION = 10
"""Version of these tables; older tables are migrated when their database is opened."""


class TableBase(DeclarativeBase):
    """Declarative base of all tables with the prefix ``phaze_``."""


class SchemaRow(TableBase):
    """A single row with the version of the tables in the database."""

    __tablename__ = "phaze_schema"

    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int]


class StudyRow(TableBase):
    """A frozen study: its resolved spec as JSON, and the hash of the spec.

    ``target`` is the number of complete trials that the last run asked for, ``stop_requested``
    whether all workers shall end after their running trial, ``proven`` whether no remaining point
    can be better than the best trial. ``publisher`` is the worker that writes the notes of the
    study, until ``publisher_until_s`` at the latest; if it is empty, nobody writes until then.
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
    """The right to run one trial; `phaze_opt.store.tickets` has the protocol.

    ``token`` names the worker that holds the ticket, and ``host`` its machine. The worker took the
    ticket at ``since_s``, and its lease ends at ``until_s``, both on the database's clock; an open
    ticket rests until ``until_s``. ``params`` is the JSON of parameters that the trial must take
    instead of sampled parameters. ``code`` is the hash of the code that runs, or ran, the trial
    (`phaze_opt.code_hash`). ``attempts`` counts the workers that were lost on the ticket, and
    ``deaths`` the lost workers in turn that speak against its point.
    """

    __tablename__ = "phaze_ticket"
    __table_args__ = (Index("ix_phaze_ticket_of_state", "study_uid", "state", "k"),)

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


class FactsRow(TableBase):
    """What the answers of a study need of a finished trial; see `phaze_opt.store.trial_facts`.

    ``design`` is the JSON of the values of its point. ``value_bin`` to ``cost`` are the first parts
    of its rank, the smallest first, and empty unless it is feasible; ``cost_1`` and on are its
    further objectives, the smaller the better. ``characters`` is the size of its content.
    """

    __tablename__ = "phaze_facts"
    __table_args__ = (
        Index(
            "ix_phaze_facts_rank",
            *("study_uid", "value_bin", "hbm_bytes", "area_mm2", "energy_j", "cost"),
        ),
    )

    study_uid: Mapped[str] = mapped_column(String(36), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(10))
    design: Mapped[str | None] = mapped_column(Text)
    started_s: Mapped[float | None] = mapped_column(Double)
    ended_s: Mapped[float | None] = mapped_column(Double)
    violated: Mapped[str | None] = mapped_column(String(40))
    evaluated: Mapped[int]
    cached: Mapped[int]
    schedules: Mapped[int]
    proven: Mapped[int]
    needed: Mapped[int]
    quickly_proven: Mapped[int]
    value_bin: Mapped[int | None]
    hbm_bytes: Mapped[int | None] = mapped_column(BigInteger)
    area_mm2: Mapped[float | None] = mapped_column(Double)
    energy_j: Mapped[float | None] = mapped_column(Double)
    cost: Mapped[float | None] = mapped_column(Double)
    cost_1: Mapped[float | None] = mapped_column(Double)
    cost_2: Mapped[float | None] = mapped_column(Double)
    cost_3: Mapped[float | None] = mapped_column(Double)
    cost_4: Mapped[float | None] = mapped_column(Double)
    cost_5: Mapped[float | None] = mapped_column(Double)
    characters: Mapped[int] = mapped_column(BigInteger)


class WorkerRow(TableBase):
    """A run that works on a study, under a lease; see `phaze_opt.store.presence`."""

    __tablename__ = "phaze_worker"

    study_uid: Mapped[str] = mapped_column(String(36), primary_key=True)
    token: Mapped[str] = mapped_column(String(120), primary_key=True)
    until_s: Mapped[float] = mapped_column(Double)


class ClaimRow(TableBase):
    """A point, by its hash, that a ticket of a study has taken: no other ticket may take it."""

    __tablename__ = "phaze_claim"

    study_uid: Mapped[str] = mapped_column(String(36), primary_key=True)
    point: Mapped[str] = mapped_column(String(64), primary_key=True)
    k: Mapped[int]


class EvaluationRow(TableBase):
    """One evaluated point, by the hash of all inputs of the evaluation.

    While ``body`` is empty, the worker ``token`` computes it, under a lease that ends at
    ``until_s``. ``schedules`` is the JSON list of the keys of its schedules; older versions of the
    program did not write it.
    """

    __tablename__ = "phaze_evaluation"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    token: Mapped[str | None] = mapped_column(String(120), index=True)
    until_s: Mapped[float | None] = mapped_column(Double)
    body: Mapped[str | None] = mapped_column(Text)
    schedules: Mapped[str | None] = mapped_column(Text)


class ScheduleRow(TableBase):
    """One schedule of a layer's operators, by the content of its problem."""

    __tablename__ = "phaze_schedule"

    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    body: Mapped[str] = mapped_column(Text)


class BoundRow(TableBase):
    """Compressed upper bounds of points of a space, by the hash of their inputs."""

    __tablename__ = "phaze_bound"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[bytes] = mapped_column(LargeBinary)


class EnumerationRow(TableBase):
    """The answer of an enumeration as JSON, by the hash of its question and the asked size.

    ``question`` is the hash of the question alone; see
    `phaze_opt.spec.frozen.ResolvedStudy.question_hash`.
    """

    __tablename__ = "phaze_enumeration"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[str] = mapped_column(Text)
    question: Mapped[str | None] = mapped_column(String(64))


class ArtifactRow(TableBase):
    """A file of a study or trial; an attribute of the study or trial holds its name and type."""

    __tablename__ = "phaze_artifact"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    study_uid: Mapped[str | None] = mapped_column(String(36), index=True)
    body: Mapped[bytes] = mapped_column(LargeBinary(2**26))


class database_now_s(FunctionElement[float]):
    """Seconds since 1970 on the database's clock; the clocks of workers may differ by hours."""

    type = Double()
    inherit_cache = True


LONGEST_LEASE_S = 600.0
"""Longest lease, in seconds. A lease that ends later counts as over: the clock of the database was
put back, or another program wrote the row."""


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
