"""Optuna's storage with few statements per trial.

Optuna writes each parameter and each attribute of a trial in a transaction of its own, and reads
the trial again before most of them. Here a worker writes its running trial in three transactions:
the new trial, then its parameters, then the rest when the trial is told. Other rows, as that of its
ticket, can be written in the first and the last of these transactions.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution, check_distribution_compatibility
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import or_, select, update

from phaze_opt.store.optuna_private import CachedStorage, CachedStudy, models
from phaze_opt.store.storage import READ_ONLY, Storage
from phaze_opt.store.trial_rows import (
    TRIAL,
    local_time,
    make_trial,
    read_trials,
    states_of,
    waiting,
    write_content,
)

if TYPE_CHECKING:
    from optuna.trial import Trial
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

_STUDY: Any = models.StudyModel.__table__


class TrialStorage(RDBStorage):
    """Optuna's storage, which reads many trials in one statement, without waiting for a lock."""

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Read a trial.

        Raises
        ------
        KeyError
            If there is no such trial.
        """
        trials = self.read([trial_id])
        if not trials:
            raise KeyError(models.NOT_FOUND_MSG)
        return trials[0]

    def read(self, trial_ids: Sequence[int]) -> list[FrozenTrial]:
        """Read trials by their rows."""
        if not trial_ids:
            return []
        with self._reading() as connection:
            return read_trials(connection, TRIAL.c.trial_id.in_(trial_ids))

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        """Read trials of a study; Optuna's methods call this one by its private name."""
        wanted = TRIAL.c.trial_id > trial_id_greater_than
        if included_trial_ids:
            wanted = or_(wanted, TRIAL.c.trial_id.in_(sorted(included_trial_ids)))
        conditions = [TRIAL.c.study_id == study_id, wanted]
        if states is not None:
            conditions.append(TRIAL.c.state.in_([state for state in TrialState if state in states]))
        with self._reading() as connection:
            study = select(_STUDY.c.study_id).where(_STUDY.c.study_id == study_id)
            if connection.scalar(study) is None:
                raise KeyError(models.NOT_FOUND_MSG)
            return read_trials(connection, *conditions)

    def _reading(self) -> Connection:
        """Open a connection that only reads."""
        return self.engine.connect().execution_options(**READ_ONLY)


class RunningTrials(CachedStorage):
    """Optuna's storage for a program that runs trials, or reads the same trials again and again.

    Finished trials are read from the database once, and kept in memory. They never change; but the
    number of a deleted study may go to a new study, and the trials kept under it are then wrong.

    The content of a trial that this object made (parameters, attributes, intermediate values) stays
    in memory until `write`, or until the trial is finished, and is then written in one transaction.
    """

    _backend: TrialStorage

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage.optuna)
        self._storage = storage
        self._unwritten: dict[int, FrozenTrial] = {}
        self._join: Callable[[Session, FrozenTrial], None] = lambda session, trial: None
        self._not_waiting: dict[int, int] = {}

    @contextmanager
    def join(self, change: Callable[[Session, FrozenTrial], bool]) -> Iterator[list[bool]]:
        """Add a change to the transaction that makes a trial, or that ends a trial made here.

        Parameters
        ----------
        change
            Writes in a session, for the trial as it is then; returns whether it succeeded.

        Yields
        ------
        successes
            Results of the change; empty while no transaction has made it.
        """
        successes: list[bool] = []
        before = self._join
        self._join = lambda session, trial: successes.append(change(session, trial))
        try:
            yield successes
        finally:
            self._join = before

    def write(self, trial_id: int) -> None:
        """Write the content of a trial that was made here.

        Raises
        ------
        UpdateFinishedTrialError
            If another worker has finished the trial.
        """
        with self._lock:
            if trial_id in self._unwritten:
                self._write(trial_id, TrialState.RUNNING, None)

    def skip(self, study_id: int, last_row: int) -> None:
        """Never read the trials of a study up to a row, which are finished and not asked for."""
        with self._lock:
            study = self._studies.setdefault(study_id, CachedStudy())
            study.last_finished_trial_id = max(study.last_finished_trial_id, last_row)

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Make a trial; without a template, it is kept in memory while it runs."""
        if template_trial is not None:
            return super().create_new_trial(study_id, template_trial)
        with self._storage.writing() as session:
            trial = make_trial(session, study_id)
            self._join(session, trial)
        with self._lock:
            self._studies.setdefault(study_id, CachedStudy())
            self._add_trials_to_cache(study_id, [trial])
            self._unwritten[trial._trial_id] = _without_content(trial)
        return trial._trial_id

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return the trials of a study, or those in some states.

        Optuna asks for waiting trials before it makes a trial; this needs no trials of others.
        """
        if states == (TrialState.WAITING,) and not self._may_wait(study_id):
            return []
        return super().get_all_trials(study_id, deepcopy, states)

    def _may_wait(self, study_id: int) -> bool:
        """Whether a trial waits; only new trials are read, as no trial begins to wait later."""
        with self._lock:
            waits, last_row = waiting(self._storage, study_id, self._not_waiting.get(study_id, -1))
            if not waits:
                self._not_waiting[study_id] = last_row
            return waits

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial, with its unwritten content."""
        with self._lock:
            if trial_id in self._unwritten:
                return _copied(self._kept(trial_id))
        return super().get_trial(trial_id)

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        """Set a parameter.

        Raises
        ------
        ValueError
            If earlier trials have another kind of distribution for the parameter.
        """
        if trial_id not in self._unwritten:
            super().set_trial_param(trial_id, param_name, param_value_internal, distribution)
            return
        self._check_distribution(trial_id, param_name, distribution)
        value = distribution.to_external_repr(param_value_internal)
        self._keep(trial_id, "params", param_name, value)
        self._keep(trial_id, "distributions", param_name, distribution)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set a user attribute."""
        if not self._keep(trial_id, "user_attrs", key, _as_read(value)):
            super().set_trial_user_attr(trial_id, key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set a system attribute."""
        if not self._keep(trial_id, "system_attrs", key, _as_read(value)):
            super().set_trial_system_attr(trial_id, key, value)

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        """Set the intermediate value of a step."""
        if not self._keep(trial_id, "intermediate_values", step, intermediate_value):
            super().set_trial_intermediate_value(trial_id, step, intermediate_value)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Change the state of a trial, and write its values and its unwritten content.

        Raises
        ------
        UpdateFinishedTrialError
            If another worker has finished the trial.
        """
        with self._lock:
            if trial_id in self._unwritten:
                self._write(trial_id, state, values)
                return True
        return super().set_trial_state_values(trial_id, state, values)

    def _keep(self, trial_id: int, what: str, name: object, value: object) -> bool:
        """Keep an entry of a trial's dict ``what`` in memory; False if it was not made here."""
        with self._lock:
            unwritten = self._unwritten.get(trial_id)
            if unwritten is None:
                return False
            for trial in (self._kept(trial_id), unwritten):
                getattr(trial, what)[name] = value
            return True

    def _kept(self, trial_id: int) -> FrozenTrial:
        """Return the trial in memory itself, not a copy."""
        study_id, number = self._trial_id_to_study_id_and_number[trial_id]
        return self._studies[study_id].trials[number]

    def _check_distribution(self, trial_id: int, name: str, axis: BaseDistribution) -> None:
        """Compare a distribution with the first distribution of the study for the parameter."""
        study_id, _ = self._trial_id_to_study_id_and_number[trial_id]
        study = self._studies[study_id]
        if name not in study.param_distribution:
            before = (trial.distributions.get(name) for trial in study.trials.values())
            study.param_distribution[name] = next(filter(None, before), axis)
        check_distribution_compatibility(study.param_distribution[name], axis)

    def _write(self, trial_id: int, state: TrialState, values: Sequence[float] | None) -> None:
        """Write the unwritten content and the state of a trial, if the trial still runs."""
        unwritten, kept = self._unwritten[trial_id], _copied(self._kept(trial_id))
        ended = datetime.now(UTC).replace(tzinfo=None) if state.is_finished() else None
        unwritten.values = kept.values = values
        kept.state, kept.datetime_complete = state, local_time(ended)
        # Even with an equal state: nobody else can finish the trial before the commit.
        change = (
            update(TRIAL)
            .where(TRIAL.c.trial_id == trial_id, TRIAL.c.state == TrialState.RUNNING)
            .values(state=state, datetime_complete=ended)
        )
        with self._storage.writing() as session:
            changed: Any = session.execute(change)
            runs = bool(changed.rowcount)
            if runs:
                write_content(session, trial_id, unwritten)
                if state.is_finished():
                    self._join(session, kept)
        del self._unwritten[trial_id]
        if not runs:
            raise UpdateFinishedTrialError(f"Trial {kept.number} is finished already.")
        self._add_trials_to_cache(self._trial_id_to_study_id_and_number[trial_id][0], [kept])
        if not state.is_finished():
            self._unwritten[trial_id] = _without_content(kept)

    def _read_trials_from_remote_storage(self, study_id: int) -> None:
        """Read the trials that are new or have ended, but for those that were made here."""
        with self._lock:
            study = self._studies.setdefault(study_id, CachedStudy())
            last, open_ids = study.last_finished_trial_id, study.unfinished_trial_ids
            states = states_of(self._storage, study_id, last, open_ids)
            unknown = [row for row, state in states.items() if not self._is_known(row, state)]
            self._add_trials_to_cache(study_id, self._backend.read(unknown))
            for row in unknown:
                self._unwritten.pop(row, None)
            finished = {row for row, state in states.items() if state.is_finished()}
            study.unfinished_trial_ids = states.keys() - finished
            study.last_finished_trial_id = max(finished, default=last)

    def _is_known(self, trial_id: int, state: TrialState) -> bool:
        """Whether the trial in memory is as complete as the row, which has this state."""
        if not state.is_finished():
            return trial_id in self._unwritten
        return trial_id in self._trial_id_to_study_id_and_number and (
            self._kept(trial_id).state.is_finished()
        )


def write(trial: Trial) -> None:
    """Write the content of a running trial, so that other programs see it."""
    if isinstance(trial.storage, RunningTrials):
        trial.storage.write(trial._trial_id)


def _without_content(trial: FrozenTrial) -> FrozenTrial:
    """Return a copy of a trial without content."""
    empty = copy.copy(trial)
    empty.params, empty.distributions, empty.user_attrs, empty.system_attrs = {}, {}, {}, {}
    empty.intermediate_values = {}
    return empty


def _copied(trial: FrozenTrial) -> FrozenTrial:
    """Return a copy of a trial that shares no dict with it."""
    copied = copy.copy(trial)
    copied.params, copied.distributions = dict(trial.params), dict(trial.distributions)
    copied.user_attrs, copied.system_attrs = dict(trial.user_attrs), dict(trial.system_attrs)
    copied.intermediate_values = dict(trial.intermediate_values)
    return copied


def _as_read(value: Any) -> Any:
    """Return an attribute as JSON gives it back, with lists for tuples."""
    return json.loads(json.dumps(value))
