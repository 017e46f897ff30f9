"""Whoever may write into a shared database may write anything: it is refused, or shown as text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from phaze_opt.cli.main import run_with
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

import phaze_opt.study.study as study_module
from tests.store.hostile import (
    ANYWHERE,
    ATTRIBUTE,
    COMMANDS,
    DEEP,
    ON_SQLITE,
    arguments,
    damage,
    dump,
    load_toy,
    make_study,
)


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
    monkeypatch.setattr(study_module, "load_study", load_toy)


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
