"""Database files that are cut or flipped, and rows that this program never writes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest.mock import patch

from sqlalchemy import create_engine, inspect
from sqlalchemy.exc import SQLAlchemyError

import phaze_opt.study.study as study_module
from tests.store.hostile import (
    ANYWHERE,
    COMMANDS,
    DEEP,
    EVIL,
    ON_SQLITE,
    arguments,
    damage,
    dump,
    load_toy,
    make_study,
)
from tests.torture.answering import ask, in_folder, is_strict_json, why_wrong
from tests.torture.case import Case, Outcome, Setting
from tests.torture.mutation import mutated_bytes

READING = [command for command in COMMANDS if command not in ("run", "copy", "delete")]
URL = "sqlite:///study.db"
_VALUES = (None, -1, 0, 2**62, 1e300, "", "many", EVIL, DEEP, b"\xff", "[]", "{}", "NaN")


def run_files(setting: Setting) -> Iterator[Outcome]:
    """Change the bytes of a file, and read it; whatever is said, it stays as it is."""
    with _sound_file(setting) as sound:
        content, path = sound.read_bytes(), setting.folder / "study.db"
        for number in setting.numbers():
            random = setting.random(number)
            path.write_bytes(mutated_bytes(random, content))
            command = random.choice(READING)
            before = path.read_bytes()
            answer = ask([*arguments(command), "--storage", URL])
            outcome = why_wrong(answer, before, path.read_bytes())
            yield None if outcome is None else f"{command}: {outcome}"
            _forget(path)


def run_rows(setting: Setting) -> Iterator[Outcome]:
    """Write something else into a row, or into a whole column, and ask every command."""
    with _sound_file(setting) as sound:
        path = setting.folder / "study.db"
        columns = _columns()
        for number in setting.numbers():
            random = setting.random(number)
            shutil.copy(sound, path)
            statement, value = _damage(random, columns)
            try:
                damage(URL, statement, value)
            except (SQLAlchemyError, AssertionError):
                # The database itself refuses it, or there is no such row.
                yield None
                continue
            outcome = _ask_all(random)
            yield None if outcome is None else f"{statement}, {str(value)[:40]!r}: {outcome}"
            _forget(path)


def _ask_all(random: Random) -> Outcome:
    """Ask the commands that read, and then one that writes."""
    engine = create_engine(URL)
    writing = random.choice([command for command in COMMANDS if command not in READING])
    try:
        for command in (*READING, writing):
            before = dump(engine)
            answer = ask([*arguments(command), "--storage", URL])
            outcome = why_wrong(answer, before, dump(engine))
            if outcome is None and "--json" in command and answer.code == 0:
                outcome = None if is_strict_json(answer.out) else f"no JSON: {answer.out[:200]!r}"
            if outcome is not None:
                return f"{command}: {outcome}"
    finally:
        engine.dispose()
    return None


def _damage(random: Random, columns: list[tuple[str, str]]) -> tuple[str, object]:
    """Draw a damage, known or new."""
    if random.random() < 0.3:
        return random.choice([*ANYWHERE, *ON_SQLITE])
    table, column = random.choice(columns)
    where = random.choice(("", f' WHERE rowid = (SELECT max(rowid) FROM "{table}")'))
    return f'UPDATE "{table}" SET "{column}" = :value{where}', random.choice(_VALUES)


def _columns() -> list[tuple[str, str]]:
    """Return every column of every table."""
    engine = create_engine("sqlite:///sound.db")
    found = inspect(engine)
    columns = [
        (table, str(column["name"]))
        for table in found.get_table_names()
        for column in found.get_columns(table)
    ]
    engine.dispose()
    return columns


@contextmanager
def _sound_file(setting: Setting) -> Iterator[Path]:
    """Make a database of a study with two trials, and let every study have the toy cost model."""
    with in_folder(setting.folder), patch.object(study_module, "load_study", load_toy):
        make_study("sqlite:///sound.db")
        yield setting.folder / "sound.db"


def _forget(path: Path) -> None:
    """Remove a database file with its logs."""
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


FILES = Case("files", "database files cut or flipped", 1000, 6, 0.02, run_files)
ROWS = Case("rows", "rows that this program never writes", 1000, 2, 0.07, run_rows)
