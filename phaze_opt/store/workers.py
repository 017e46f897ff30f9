"""The workers that hold tickets of a study, on all machines."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import select

from phaze_opt.codec import to_builtins
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.space import known_values
from phaze_opt.store.leases import is_dead, process_of
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.store.tables import TicketRow, database_now_s, lease_is_over


@dataclass(frozen=True)
class WorkerRecord:
    """A worker with its trial.

    Attributes
    ----------
    study
        Name of the study.
    host, process
        Machine and process number; ``None`` for a worker of an older program.
    trial, params
        Number of the trial, and the values of its point by the names of the axes, as far as the
        sampler has chosen them; ``None`` while the worker asks for a trial.
    since_s
        Seconds since the worker took the ticket.
    lease_left_s
        Seconds until the end of the lease; without a renewal, others may then take the ticket.
    code
        Hash of the code that runs the trial; ``None`` while the worker asks for a trial.
    state
        ``"gone"`` if the lease is over, or the process ran on this machine and has ended.
    """

    study: str
    host: str | None
    process: int | None
    trial: int | None
    params: Mapping[str, Scalar] | None
    since_s: float | None
    lease_left_s: float | None
    state: Literal["working", "gone"]
    code: str | None = None


def list_workers(study: StoredStudy) -> list[WorkerRecord]:
    """Return the workers of a study, sorted by ticket; seconds are of the database's clock."""
    now_s, over = database_now_s(), lease_is_over(TicketRow.until_s)
    query = (
        select(TicketRow, now_s - TicketRow.since_s, TicketRow.until_s - now_s, over)
        .where(TicketRow.study_uid == study.uid, TicketRow.state == "held")
        .order_by(TicketRow.k)
    )
    with study.storage.reading() as session:
        rows = session.execute(query).all()
        session.expunge_all()
    return [
        WorkerRecord(
            study=study.name,
            host=row.host,
            process=process_of(str(row.token)),
            trial=row.trial_number,
            params=_params(study, row.trial_number),
            since_s=None if since_s is None else max(0.0, since_s),
            lease_left_s=left_s,
            state="gone" if is_over or is_dead(str(row.token)) else "working",
            code=None if row.trial_number is None else row.code,
        )
        for row, since_s, left_s, is_over in rows
    ]


def worker_to_json_dict(worker: WorkerRecord) -> dict[str, Any]:
    """Return a worker as plain data."""
    plain: dict[str, Any] = to_builtins(worker)
    return plain


def _params(study: StoredStudy, number: int | None) -> Mapping[str, Scalar] | None:
    """Return the values of a trial's point that are known."""
    storage = study.storage.optuna
    with suppress(KeyError):
        if number is not None:
            row = storage.get_trial_id_from_study_id_trial_number(study.optuna_id, number)
            return known_values(study.resolved.spec.space, storage.get_trial(row).params)
    return None
