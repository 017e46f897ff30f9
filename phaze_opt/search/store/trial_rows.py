"""Finished trials written many at once into Optuna's tables.

Optuna adds a trial in about twenty statements, which for a study of some thousand takes a minute.
The version of its tables is checked when a database is opened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from optuna.distributions import distribution_to_json
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial
from sqlalchemy import insert, select

from phaze_opt.search.store.storage import Storage


def trial_ids(storage: Storage, study_id: int) -> dict[int, int]:
    """Return the row of every trial of a study by its number."""
    trial: Any = models.TrialModel
    query = select(trial.number, trial.trial_id).where(trial.study_id == study_id)
    with storage.reading() as session:
        return {int(number): int(row) for number, row in session.execute(query)}


def insert_trials(storage: Storage, study_id: int, trials: Sequence[FrozenTrial]) -> None:
    """Write finished trials into a study that has none, in one transaction."""
    trial_model: Any = models.TrialModel
    with storage.writing() as session:
        connection = session.connection()
        for trial in trials:
            # The model turns local time into that of the table.
            row = trial_model(
                number=trial.number,
                study_id=study_id,
                state=trial.state,
                datetime_start=trial.datetime_start,
                datetime_complete=trial.datetime_complete,
            )
            session.add(row)
        session.flush()
        query = select(trial_model.number, trial_model.trial_id)
        found = session.execute(query.where(trial_model.study_id == study_id)).all()
        row_of = dict(map(tuple, found))
        for model, rows in _rows_of(trials).items():
            if rows:
                numbered = [{**row, "trial_id": row_of[row["trial_id"]]} for row in rows]
                connection.execute(insert(model.__table__), numbered)


def _rows_of(trials: Sequence[FrozenTrial]) -> dict[Any, list[dict[str, Any]]]:
    """Return the rows of every other table; ``trial_id`` is the number of the trial."""
    value, intermediate = models.TrialValueModel, models.TrialIntermediateValueModel
    rows: dict[Any, list[dict[str, Any]]] = {value: [], intermediate: []}
    for model, attributes in (
        (models.TrialUserAttributeModel, "user_attrs"),
        (models.TrialSystemAttributeModel, "system_attrs"),
    ):
        rows[model] = [
            {"trial_id": trial.number, "key": key, "value_json": json.dumps(stored)}
            for trial in trials
            for key, stored in getattr(trial, attributes).items()
        ]
    rows[models.TrialParamModel] = [
        {
            "trial_id": trial.number,
            "param_name": name,
            "param_value": axis.to_internal_repr(trial.params[name]),
            "distribution_json": distribution_to_json(axis),
        }
        for trial in trials
        for name, axis in trial.distributions.items()
    ]
    for trial in trials:
        for objective, number in enumerate(trial.values or ()):
            stored, kind = value.value_to_stored_repr(number)
            rows[value].append(
                {
                    "trial_id": trial.number,
                    "objective": objective,
                    "value": stored,
                    "value_type": kind,
                }
            )
        for step, number in trial.intermediate_values.items():
            stored, sort = intermediate.intermediate_value_to_stored_repr(number)
            rows[intermediate].append(
                {
                    "trial_id": trial.number,
                    "step": step,
                    "intermediate_value": stored,
                    "intermediate_value_type": sort,
                }
            )
    return rows
