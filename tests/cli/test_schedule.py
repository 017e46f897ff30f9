"""The command ``phaze-opt schedule``."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scheduling.test_residency_file import ROW

from .conftest import Phaze


def lines(out: str) -> list[dict[str, Any]]:
    """Read one line of JSON per problem."""
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("method", ["auto", "branch-and-bound", "cp-sat"])
def test_residency_is_on_unless_refused(phaze: Phaze, tmp_path: Path, method: str) -> None:
    """Tensors stay where they fit; a larger buffer or none at all change what is printed."""
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps({**ROW, "glb_bytes": size}) + "\n" for size in (3, 4, 99)))
    small, fits, large = lines(phaze("schedule", str(path), "--method", method).out)
    assert (small["makespan_s"], fits["makespan_s"], large["makespan_s"]) == (19.0, 15.0, 15.0)
    assert [len(answer["resident"]) for answer in (small, fits, large)] == [0, 1, 1]
    assert {answer["status"] for answer in (small, fits, large)} == {"optimal"}
    off = lines(phaze("schedule", str(path), "--method", method, "--no-residency").out)
    assert [answer["makespan_s"] for answer in off] == [19.0] * 3


def test_without_tensors_the_line_is_as_ever(phaze: Phaze, tmp_path: Path) -> None:
    """A problem without tensors has the keys of the contract."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps({key: ROW[key] for key in ROW if key != "tensors"}))
    (line,) = lines(phaze("schedule", str(path)).out)
    assert list(line) == [
        "name",
        "makespan_s",
        "status",
        "bound_s",
        "gap",
        "solve_s",
        "utilisation",
    ]


def test_unknown_methods_are_refused(phaze: Phaze, tmp_path: Path) -> None:
    """The sentence names the methods that exist."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(ROW))
    ran = phaze("schedule", str(path), "--method", "guess")
    assert ran.code == 2
    assert "auto" in ran.sentence
