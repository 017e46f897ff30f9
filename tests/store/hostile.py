"""Rows of a database that this program never writes, and the commands that read them."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Engine, create_engine, inspect, text

from phaze_opt.study.study import Study, load_study
from tests.study.fakes import quick_study, toy_evaluator

DEEP = "[" * 10_000
EVIL = "\x1b[31m[bold]../../etc/$(reboot)`id`<script>\u202e"
ATTRIBUTE = (
    "INSERT INTO trial_user_attributes (trial_user_attribute_id, trial_id, key, value_json) "
    "SELECT 1000, min(trial_id), 'x', :value FROM trials"
)
PARAMETER = "UPDATE trial_params SET distribution_json = :value WHERE param_name = 'recompute'"
METRICS = "UPDATE trial_user_attributes SET value_json = :value WHERE key = 'phaze'"
EVALUATION = "UPDATE phaze_evaluation SET body = :value"

ANYWHERE: list[tuple[str, Any]] = [
    # Optuna's rows: too deep, of an unknown class, too many digits, too large, none at all.
    (ATTRIBUTE, DEEP),
    (ATTRIBUTE, "1" * 5000),
    (ATTRIBUTE, json.dumps("x" * 1_000_000)),
    (ATTRIBUTE, None),
    (PARAMETER, '{"name": "EvilDistribution", "attributes": {}}'),
    (PARAMETER, '{"name": "IntDistribution", "attributes": {"low": 0, "high": 99}}'),
    ("UPDATE trial_values SET value = :value", None),
    ("UPDATE trial_values SET value = :value", float("inf")),
    ("UPDATE studies SET study_name = :value", EVIL),
    # What this program writes into them.
    (METRICS, DEEP),
    (METRICS, '{"area_mm2": NaN}'),
    ("UPDATE study_user_attributes SET value_json = :value", DEEP),
    # Its own rows.
    (EVALUATION, '{"feasible": true, "layers": "all"}'),
    (EVALUATION, json.dumps({"bound_by_share": {EVIL: 1.0}})),
    ("UPDATE phaze_study SET resolved = :value", '{"spec":' * 10_000),
    ("UPDATE phaze_study SET resolved = replace(resolved, '\"toy\"', :value)", json.dumps(EVIL)),
    ("UPDATE phaze_workload SET body = :value", b"PK"),
    ("UPDATE phaze_ticket SET state = :value WHERE k = 1", "odd"),
    ("UPDATE phaze_ticket SET k = :value WHERE k = 1", 10**6),
    ("UPDATE phaze_ticket SET reason = :value, state = 'failed'", EVIL * 100),
    ("UPDATE phaze_ticket SET token = :value, state = 'held', until_s = 1e300", EVIL),
]
ON_SQLITE: list[tuple[str, Any]] = [
    (EVALUATION, 5),
    (EVALUATION, b"\xff"),
    ("UPDATE trials SET state = :value WHERE number = 1", "ODD"),
    ("UPDATE trials SET number = :value", "{}"),
    ("UPDATE trials SET datetime_start = :value", "yesterday"),
    ("UPDATE trial_params SET param_value = :value", 1e300),
    ("UPDATE study_directions SET direction = :value", "ODD"),
    ("UPDATE phaze_ticket SET attempts = :value", "many"),
    ("UPDATE phaze_ticket SET k = :value WHERE k = 1", "[" * 300),
    ("UPDATE phaze_facts SET ended_s = :value", "[]"),
    ("UPDATE phaze_ticket SET until_s = :value, state = 'held'", "tomorrow"),
    ("UPDATE phaze_ticket SET reason = :value, state = 'failed'", b"\xff"),
    ("UPDATE phaze_workload SET body = :value", "text"),
    ("UPDATE phaze_study SET name = :value", EVIL),
    ("UPDATE phaze_study SET target = :value", "many"),
]
COMMANDS = ["ls", "show", "show --json", "best", "run", "copy", "delete"]


def arguments(command: str) -> list[str]:
    """Complete a command."""
    more = {"run": ["toy", "--trials", "3"], "copy": ["toy", "new"], "delete": ["toy", "--yes"]}
    first, *options = command.split()
    return ["study", first, *more.get(first, ["toy"] if first != "ls" else []), *options]


def dump(engine: Engine) -> dict[str, list[str]]:
    """Return all rows of a database as text."""
    with engine.connect() as connection:
        return {
            name: sorted(map(repr, connection.exec_driver_sql(f'SELECT * FROM "{name}"').all()))
            for name in inspect(connection).get_table_names()
        }


def make_study(url: str) -> None:
    """Make a study of two trials."""
    study = quick_study(url)
    study.run(2)
    study.storage.close()


def damage(url: str, statement: str, value: Any) -> None:
    """Write something else into a database."""
    engine = create_engine(url)
    with engine.begin() as connection:
        assert connection.execute(text(statement), {"value": value}).rowcount > 0
    engine.dispose()


def load_toy(name: str, storage: Any = None) -> Study:
    """Load a study as the commands do, with the toy cost model."""
    study = load_study(name, storage)
    study.evaluator = toy_evaluator
    return study
