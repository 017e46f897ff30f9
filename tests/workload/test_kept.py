"""Captures are kept for as long as nothing that decides them has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from phaze_opt.workload.cache import cache_folder
from phaze_opt.workload.zoo import model_config
from tests.workload.blocks import blocks_of, captured_blocks
from tests.workload.kept import PACKAGE, hash_of_captures, kept, rooms_of_captures
from tests.workload.test_sparse_attention import SPARSE


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the package, without what is compiled."""
    copy = tmp_path_factory.mktemp("kept") / "phaze_opt"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def test_captures_depend_on_what_they_import() -> None:
    """Directly or not, and on no room that comes after them."""
    rooms = rooms_of_captures()
    assert {"workload", "precision", "codec", "training", "activation_names"} <= set(rooms)
    assert not {"estimator", "placement", "report", "study", "evaluation"} & set(rooms)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("workload/capture/aten.py", True),
        ("workload/data/captures.zip", True),
        ("precision.py", True),
        ("workload/capture/new.py", True),
        ("placement/memory.py", False),
    ],
)
def test_a_change_is_another_folder(package: Path, name: str, changes: bool) -> None:
    """One byte more, in a file of captures or of what they import; elsewhere it changes nothing."""
    before = hash_of_captures(package)
    assert before == hash_of_captures()
    path = package / name
    content = path.read_bytes() if path.exists() else None
    path.write_bytes((content or b"") + b"\n")
    assert (hash_of_captures(package) != before) == changes
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


def test_what_is_kept_is_what_was_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all arguments, however they are given, in this process and in the next."""
    monkeypatch.setenv("PHAZE_CACHE", str(tmp_path))
    calls: list[tuple[str, int]] = []

    def sizes(name: str, more: int = 0) -> dict[str, int]:
        calls.append((name, more))
        return {name: more}

    for _ in range(2):
        asked = kept(sizes)
        assert asked("a") == asked("a", 0) == asked("a", more=0) == {"a": 0}
        assert asked("a", 1) == {"a": 1}
        assert asked("b") == {"b": 0}
    assert calls == [("a", 0), ("a", 1), ("b", 0)]


def test_a_kept_block_is_a_fresh_one() -> None:
    """Also as its file has it."""
    config = model_config(SPARSE)
    fresh = blocks_of(config, 2, split=True)
    assert captured_blocks(config, 2, split=True) == fresh
    assert kept(blocks_of)(config, 2, split=True) == fresh
    assert any((cache_folder() / "captures").iterdir())
