"""The hash of the code that decides numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from phaze_opt.code_hash import code_hash, hash_of


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Write a small package."""
    for name in ("rates.py", "room/rule.py", "room/data/rates.toml", "report/words.py"):
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    return tmp_path / "package"


@pytest.mark.parametrize(
    ("name", "text", "changes"),
    [
        ("rates.py", "2", True),
        ("room/rule.py", "2", True),
        ("room/data/rates.toml", "2", True),
        ("room/new.py", "", True),
        ("room/data/more.csv", "a", True),
        ("report/words.py", "2", False),  # only shows numbers
        ("room/__pycache__/rule.py", "2", False),
        ("room/rule.nbc", "2", False),
    ],
)
def test_what_may_change_a_number_changes_the_hash(
    package: Path, name: str, text: str, changes: bool
) -> None:
    """Modules and data do, what only shows numbers or was made of them does not."""
    before = hash_of(package)
    path = package / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert (hash_of(package) != before) == changes


def test_names_count(package: Path) -> None:
    """The same content elsewhere is other code."""
    before = hash_of(package)
    (package / "rates.py").rename(package / "rate.py")
    assert hash_of(package) != before


def test_all_processes_find_the_same(tmp_path: Path) -> None:
    """From whatever folder they start."""
    program = "from phaze_opt.code_hash import code_hash; print(code_hash())"
    root = str(Path(__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); {program}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == code_hash()
    assert len(code_hash()) == 12
