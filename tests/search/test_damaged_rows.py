"""Whoever may write into a shared database may write anything: it is refused, or shown as text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from phaze_opt.cli.main import run_with
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.engine import make_url

import phaze_opt.search.study as study_module
from phaze_opt.search.study import Study, load_study
from tests.search.fakes import quick_study, toy_evaluator

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
    ("UPDATE trials SET datetime_start = :value", "yesterday"),
    ("UPDATE trial_params SET param_value = :value", 1e300),
    ("UPDATE study_directions SET direction = :value", "ODD"),
    ("UPDATE phaze_ticket SET attempts = :value", "many"),
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


@pytest.fixture(scope="module")
def database_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a study of two trials into a file."""
    path = tmp_path_factory.mktemp("sound") / "study.db"
    make_study(f"sqlite:///{path}")
    return path


@pytest.fixture
def study_url(sqlite_url: str, database_file: Path) -> str:
    """Return the URL of a copy of that file."""
    shutil.copy(database_file, str(make_url(sqlite_url).database))
    return sqlite_url


@pytest.fixture
def toy_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every study that is opened have the toy cost model."""

    def with_toy(name: str, storage: Any = None) -> Study:
        study = load_study(name, storage)
        study.evaluator = toy_evaluator
        return study

    monkeypatch.setattr(study_module, "load_study", with_toy)


def assert_commands_stand(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Every command answers with text or with one sentence, and then changes nothing."""
    engine = create_engine(url)
    before = dump(engine)
    for command in COMMANDS:
        code = run_with([*arguments(command), "--storage", url])
        out, err = capfd.readouterr()
        after = dump(engine)
        assert "Unexpected" not in err and "Traceback" not in err, (command, err)
        assert all(letter.isprintable() or letter == "\n" for letter in out + err), command
        if code:
            *notes, sentence = err.strip().splitlines()
            assert (out, len(notes)) == ("", 1), (command, out, err)
            assert sentence.startswith("Error: ") and len(sentence) < 3000
            assert after == before, command
        elif "--json" in command:
            json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        before = after
    assert "'toy'" not in "".join(before["studies"])
    engine.dispose()


@pytest.mark.parametrize(("statement", "value"), [*ANYWHERE, *ON_SQLITE])
@pytest.mark.usefixtures("toy_commands")
def test_damaged_rows(
    study_url: str, capfd: pytest.CaptureFixture[str], statement: str, value: Any
) -> None:
    """No command stumbles over, or obeys, what a row holds; in SQLite it may be of any type."""
    damage(study_url, statement, value)
    assert_commands_stand(study_url, capfd)


@pytest.mark.parametrize(("statement", "value"), ANYWHERE[::5])
@pytest.mark.parametrize("any_url", ["postgresql"], indirect=True)
@pytest.mark.usefixtures("toy_commands")
def test_damaged_rows_of_a_server(
    any_url: str, capfd: pytest.CaptureFixture[str], statement: str, value: Any
) -> None:
    """The same holds on a server."""
    make_study(any_url)
    damage(any_url, statement, value)
    assert_commands_stand(any_url, capfd)


def test_the_sentence_names_study_and_trial(
    study_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of many trials the damaged one is named, and a run ends with exit code 1."""
    damage(study_url, ATTRIBUTE.replace("min(", "max("), DEEP)
    assert run_with(["study", "run", "toy", "--trials", "3", "--storage", study_url]) == 1
    assert "Trial 1 of the study 'toy' is damaged (RecursionError" in capfd.readouterr().err
