"""The commands and code of Markdown files, run as a reader runs them, one after the other.

A page runs in a folder of its own, in which ``.venv`` and ``studies`` are those of the checkout:

* a fence with ``title="FILE"`` is written to that file;
* in a fence ``console`` each line with ``$`` is a command, a backslash at its end goes on in the
  next line, and all other lines are output, which the command must print in this order (the lines
  of a time that was taken may differ, and ``…`` stands for any lines). It ends with exit code 0,
  unless a comment ``# exit code N`` says which;
* a fence ``python`` without a title is a program.

`ELSEWHERE` says what is not run, and why; `Machine` what commands find around them. A server is
asked for its page, and stopped.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from docs.tools.links import ROOT

_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXIT_CODE = re.compile(r"# exit code (\d+)$")
_EXAMPLE_SERVER = re.compile(r"postgresql://([\w:]+)@db\.example/(\w+)\?[^\s\"']*")
_VARYING = ("time taken", "a point takes", "takes")
"""How lines begin that say how long something took on this machine."""

_SERVERS = ("phaze-opt dashboard", "phaze-opt explore")
"""How commands begin that serve a page until they are stopped."""

LONGEST_S = 300.0
"""No command of a page takes longer."""

ELSEWHERE: Mapping[str, str] = {
    "git clone": "the checkout is there",
    "make ": "`.ci/run` calls the targets; here it is checked that they exist",
    ". .venv/bin/activate": "the environment of the test has the command",
}
"""How commands begin that are not run here, and why."""


@dataclass(frozen=True)
class Fence:
    """A fence of a page: its language, its file if it has one, and what it holds."""

    language: str
    title: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command, the exit code that it shall have, and lines that it shall print."""

    line: str
    exit_code: int
    shown: tuple[str, ...]

    @property
    def is_elsewhere(self) -> bool:
        """Whether something else runs it."""
        return self.line.startswith(tuple(ELSEWHERE))


@dataclass(frozen=True)
class Machine:
    """What commands find around them.

    Attributes
    ----------
    folder
        Where they run.
    programs
        Folder of programs that stand in for those of other machines.
    server
        Folder of the socket of a PostgreSQL server; empty without one.
    """

    folder: Path
    programs: Path
    server: str = ""

    def local(self, text: str) -> str:
        """Return text in which the example's server is the one of this machine."""
        return _EXAMPLE_SERVER.sub(rf"postgresql://\1@/\2?host={self.server}", text)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the commands, without a study's database and a test's own words."""
        own = {
            name: value
            for name, value in os.environ.items()
            if name != "PHAZE_STORAGE" and not name.startswith("PYTEST_")
        }
        paths = (str(self.programs), str(Path(sys.executable).parent), own["PATH"])
        return {**own, "PATH": os.pathsep.join(paths), "PYTHONPATH": str(self.folder)}


def fences(text: str) -> list[Fence]:
    """Return the fences of a Markdown text that name a language."""
    return [Fence(language, title, body) for language, title, body in _FENCE.findall(text)]


def commands(text: str) -> Iterator[Command]:
    """Yield the commands of a fence ``console``."""
    line, shown = "", list[str]()
    for row in text.splitlines():
        if line.endswith("\\"):
            line = line[:-1] + row.strip()
        elif row.startswith("$ "):
            if line:
                yield _command(line, shown)
            line, shown = row[2:], []
        else:
            shown.append(row)
    if line:
        yield _command(line, shown)


def _command(line: str, shown: list[str]) -> Command:
    """Return a command with the exit code that its comment says."""
    stated = _EXIT_CODE.search(line)
    return Command(line, int(stated[1]) if stated else 0, tuple(shown))


def run_page(text: str, machine: Machine) -> None:
    """Run everything that a page shows.

    Raises
    ------
    AssertionError
        If a command ends otherwise than the page says, or prints something else.
    """
    before: list[str] = []
    for fence in fences(text):
        if fence.title:
            (machine.folder / fence.title).write_text(machine.local(fence.text), "utf-8")
        elif fence.language == "console":
            for command in commands(fence.text):
                _run(command, before, machine)
        elif fence.language == "python":
            program = [sys.executable, "-c", fence.text]
            _check(fence.text, 0, (), _result(program, machine))


def _run(command: Command, before: list[str], machine: Machine) -> None:
    """Run one command; what sets the environment holds for those after it."""
    if command.is_elsewhere:
        target = re.match(r"make (\w[\w-]*)", command.line)
        assert not target or f"\n{target[1]}:" in (ROOT / "Makefile").read_text("utf-8")
        return
    line = machine.local(command.line)
    if line.startswith("export "):
        before.append(line)
        return
    shell = ["bash", "-c", "\n".join([*before, line])]
    if line.startswith(_SERVERS):
        _look_at(shell, machine)
    else:
        _check(line, command.exit_code, command.shown, _result(shell, machine))


def _result(program: list[str], machine: Machine) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        program,
        cwd=machine.folder,
        env=machine.environment,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


def _check(
    line: str, exit_code: int, shown: tuple[str, ...], done: subprocess.CompletedProcess[str]
) -> None:
    """Compare what a command did with what the page says."""
    assert done.returncode == exit_code, f"{line}\n{done.stdout}\n{done.stderr}"
    printed = iter((done.stdout + done.stderr).splitlines())
    for wanted in shown:
        if wanted.strip() in ("", "…"):
            continue
        assert any(_same(wanted, real) for real in printed), (
            f"{line}\nprints no (further) line\n{wanted}\nbut\n{done.stdout}"
        )


def _same(shown: str, printed: str) -> bool:
    """Whether a line of the page is what was printed, but for times that were taken."""
    if shown.startswith(_VARYING):
        return shown[:10] == printed[:10]
    return shown.rstrip() == printed.rstrip()


def _look_at(shell: list[str], machine: Machine) -> None:
    """Start a server, ask for its page, and stop it as Ctrl-C does."""
    with subprocess.Popen(
        shell,
        cwd=machine.folder,
        env=machine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as server:
        try:
            assert server.stdout is not None
            said, begin = "", time.monotonic()
            while not (found := re.search(r"http://\S+", said)):
                part = server.stdout.readline()
                assert part and time.monotonic() - begin < LONGEST_S, said
                said += part
            with urllib.request.urlopen(found[0], timeout=LONGEST_S) as page:
                assert page.status == 200
        finally:
            os.killpg(server.pid, signal.SIGINT)
            server.wait(LONGEST_S)
