"""Files that commands write: none is lost without ``--force``, and each is there before stdout."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from phaze_opt.cli.main import program, run_with

from tests.cli.conftest import SMALL_STUDY
from tests.scheduling.test_residency_file import ROW

MODEL = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
RUN = ("--model", MODEL, "--accelerator", "tpuv4-lanes", "--cluster", "tpuv4-ici-flat")
BATCH = ("--devices", "4", "--global-batch", "16", "--microbatch", "1")

WRITING = {
    "accelerator new": ("mine", "--output", "chip.toml"),
    "calibrate": ("a100-80", "--gemm", "gemm.csv", "--output", "calibrated.toml"),
    "cluster new": ("mine", "--output", "network.toml"),
    "evaluate": (*RUN, *BATCH, "--timeline", "timeline.json"),
    "plot": ("small", "history", "--output", "plot.html"),
    "report": ("small", "--output", "report.md"),
    "schedule": ("problem.json", "--trace", "trace.json"),
    "spec new": ("mine", "--base", "h100", "--model", MODEL, "--output", "spec.toml"),
    "spec schema": ("--output", "schema.json"),
    "study best": ("small", "--accelerator-toml", "winner.toml"),
    "study compare": ("small", "--html", "compared.html"),
    "study enumerate": ("small", "--certificate", "certificate.json"),
    "study export": ("small", "--output", "trials.csv"),
    "validate": ("operators", "--plot", "validated.html"),
    "workload capture": (MODEL, "--output", "captured.json"),
    "workload show": (MODEL, "--graph", "graph.dot"),
}
"""A line of every command that writes a file, which it names last."""

READ = {
    *("file", "spec", "csv_file"),
    *("gemm", "attention", "collectives", "vector"),
}
"""Parameters with paths of files that are read."""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Work in a folder with a study of some trials, and what the other commands read."""
    before = Path.cwd()
    storage = os.environ.pop("PHAZE_STORAGE", None)
    os.chdir(tmp_path_factory.mktemp("written"))
    Path("problem.json").write_text(json.dumps(ROW))
    rows = [f"{m},4096,4096,{m * 1.5e-7}" for m in (2048, 4096, 8192)]
    Path("gemm.csv").write_text("\n".join(["m,n,k,latency_s", *rows]) + "\n")
    Path("small.toml").write_text(SMALL_STUDY)
    assert run_with(["study", "create", "small.toml"]) == 0
    assert run_with(["study", "run", "small"]) == 0
    yield
    os.chdir(before)
    if storage is not None:
        os.environ["PHAZE_STORAGE"] = storage


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Walk the commands of the program."""
    for each, command in group.commands.items():
        path = f"{name} {each}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, path)
        else:
            yield path, command


def test_every_command_that_writes_takes_force() -> None:
    """Those above are all that take the path of a file that they do not read."""
    writing = set()
    for name, command in commands(program()):
        paths = {
            parameter.name
            for parameter in command.params
            if type(parameter.type).__name__.endswith("Path")
        }
        force = any("--force" in parameter.opts for parameter in command.params)
        assert force == bool(paths - READ), name
        writing |= {name} if force else set()
    assert writing == set(WRITING)


@pytest.mark.parametrize("name", WRITING)
def test_a_file_is_kept_or_replaced_but_never_lost(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is there is refused in one sentence, before any work, and stays as it is.

    With ``--force`` the new one is whole before the answer is printed: whoever reads that may end
    at its first line.
    """
    arguments = [*name.split(), *WRITING[name]]
    file = Path(arguments[-1])
    file.write_text("mine")
    capsys.readouterr()
    assert run_with(arguments) == 4
    ran = capsys.readouterr()
    assert (ran.out, file.read_text()) == ("", "mine")
    assert ran.err.splitlines()[-1].endswith(f"{file} exists already; --force replaces it.")
    there: list[bool] = []

    class Watched(io.StringIO):
        def write(self, text: str) -> int:
            there.append(file.read_text() != "mine")
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Watched())
    assert run_with([*arguments, "--force"]) == 0
    assert all(there) and file.read_text() != "mine"


def test_a_calibrated_network_is_kept_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The second file of a command is looked at before the first one is written."""
    sizes = (1e5, 1e6, 1e7, 1e8, 1e9)
    rows = [f"all_reduce,8,{size:g},{size * 1e-11 + 1e-5!r}" for size in sizes]
    Path("collectives.csv").write_text("\n".join(["kind,devices,bytes,latency_s", *rows]) + "\n")
    Path("both.cluster.toml").write_text("mine")
    arguments = ["calibrate", "a100-80", "--collectives", "collectives.csv", "--cluster"]
    assert run_with([*arguments, "dgx-a100", "--output", "both.toml"]) == 4
    assert re.search(r"both\.cluster\.toml exists already", capsys.readouterr().err)
    assert not Path("both.toml").exists() and Path("both.cluster.toml").read_text() == "mine"
