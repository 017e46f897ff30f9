"""Builds wheel and sdist, and tries each in fresh environments.

``make release`` uses the Pythons that are found by name (`VERSIONS`); ``OPTIONS="--python PATH"``
names others. In each environment the versions of ``requirements.lock`` are installed, and the
commands of `trial` run in an empty folder: a model is captured, one point evaluated, and a study
run and reported.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from docs.tools.links import ROOT

VERSIONS = ("3.11", "3.12", "3.13")
"""Pythons that are looked for."""

_MODEL = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
_SPEC = """name = "tiny"
model = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
cluster = "flat-4GiB"
devices = 4
global_batch = 8
baselines = ["tpuv4-lanes"]

[space]
base = "tpuv4-lanes"
num_tc = [2, 4]
"""


def trial(programs: Path) -> list[list[str]]:
    """Return the commands that must succeed in an environment.

    Parameters
    ----------
    programs
        Folder of the environment's programs.
    """
    command = str(programs / "phaze-opt")
    point = ["--accelerator", "tpuv4-lanes", "--cluster", "flat-4GiB", "--devices", "4"]
    batch = ["--global-batch", "8", "--microbatch", "2"]
    names = "import phaze_opt as po; print([getattr(po, name) for name in po.__all__])"
    return [
        [command, "--version"],
        [str(programs / "python"), "-c", names],
        [command, "evaluate", "--model", _MODEL, *point, *batch, "--json"],
        [command, "study", "create", "tiny.toml"],
        [command, "study", "run", "tiny"],
        [command, "study", "best", "tiny", "--json"],
        [command, "report", "tiny", "--output", "tiny.html"],
    ]


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it; return both."""
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)], ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def run(command: Sequence[str], folder: Path) -> str:
    """Run a command, and return what it prints.

    Raises
    ------
    SystemExit
        If it fails, with what it printed.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def try_out(python: str, built: Sequence[Path]) -> None:
    """Install each of some distributions in a fresh environment, and use it.

    The second one replaces the first, so that its dependencies are installed once.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([python, "-m", "venv", str(folder / "venv")], folder)
        programs = folder / "venv" / "bin"
        pip = [str(programs / "python"), "-m", "pip", "install", "--quiet"]
        lock = str(ROOT / "requirements.lock")
        run([*pip, "-c", lock, "setuptools"], folder)  # builds the sdist
        run([*pip, "-c", lock, str(built[0])], folder)
        for number, distribution in enumerate(built):
            work = folder / f"work-{number}"
            work.mkdir()
            (work / "tiny.toml").write_text(_SPEC, "utf-8")
            only = [*pip, "--no-deps", "--no-build-isolation", "--force-reinstall"]
            run([*only, str(distribution)], folder)
            printed = [run(command, work) for command in trial(programs)]
            assert json.loads(printed[2])["feasible"] is True
            assert json.loads(printed[5])["evaluation"]["feasible"] is True
            assert (work / "tiny.html").stat().st_size > 0
            print(f"{distribution.name} with {python}: {printed[0].strip()}", flush=True)


def answers(python: str) -> bool:
    """Whether a Python is there and starts."""
    found = shutil.which(python)
    if found is None:
        return False
    return subprocess.run([found, "-V"], capture_output=True, check=False).returncode == 0


def main(arguments: list[str]) -> None:
    """Build, and try out."""
    parser = argparse.ArgumentParser(prog="python -m docs.tools.release", description=__doc__)
    parser.add_argument("--python", action="append", help="a Python to try, instead of those found")
    named = parser.parse_args(arguments).python
    pythons = named or [f"python{version}" for version in VERSIONS]
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    built = build(ROOT / "dist")
    for python in pythons:
        if answers(python):
            try_out(python, built)
        elif named:
            sys.exit(f"{python} does not start.")
        else:
            print(f"{python} is not there, and was not tried.", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
