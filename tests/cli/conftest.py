"""Running the command line inside the test process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from phaze_opt.cli.main import run_with


@dataclass(frozen=True)
class Ran:
    """What one command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as strict JSON."""

        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is not JSON")

        return json.loads(self.out, parse_constant=refuse)

    @property
    def sentence(self) -> str:
        """The last line on standard error."""
        return self.err.strip().splitlines()[-1]


Phaze = Callable[..., Ran]


@pytest.fixture
def phaze(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Phaze:
    """Return what runs a command in an empty folder, with the default storage."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHAZE_STORAGE", raising=False)

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run_with(list(arguments))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


SMALL_STUDY = """
name = "small"
model = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
cluster = "tpuv4-ici-flat"
devices = 4
global_batch = 16

[space]
num_tc = { min = 1, max = 64 }
num_vc = { min = 1, max = 64 }
pe_vc = { min = 2, max = 2048 }
microbatch = { min = 1, max = 2 }
recompute = ["none"]

[search]
sampler = "random"
trials = 6
seed = 3
"""


@pytest.fixture
def small_study(tmp_path: Path) -> Path:
    """Write a study that takes a second."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL_STUDY, encoding="utf-8")
    return path
