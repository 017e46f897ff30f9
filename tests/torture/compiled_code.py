"""Compiled code on disk that is damaged, or that others may write: commands compile it anew."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import phaze_opt
from tests.torture.case import LONGEST_WAIT_S, Case, Outcome, Setting
from tests.torture.paths import MODEL

_PACKAGE = Path(phaze_opt.__file__).parent
_LINES = (
    ("estimate", "vector", "--accelerator", "h100", "--op", "softmax", "--shape", "512x512"),
    ("estimate", "attention", "--accelerator", "h100", "--sequence", "512", "--heads", "2"),
    ("estimate", "gemm", "--accelerator", "h100", "--m", "512", "--n", "512", "--k", "512"),
    (
        *("evaluate", "--model", MODEL, "--accelerator", "tpuv4-lanes", "--cluster", "flat-4GiB"),
        *("--devices", "8", "--global-batch", "8", "--microbatch", "1", "--json"),
    ),
)
_PROGRAM = "import sys; from phaze_opt.cli.main import run; sys.exit(run())"
_LISTING = """
import atexit, sys
used = set()
sys.addaudithook(lambda event, about: event == "open" and used.add(str(about[0])))
atexit.register(lambda: print(*sorted(used), sep="\\n", file=sys.stderr))
"""
"""Lists on stderr what a program has opened."""

_MOST_DAMAGED = 3
"""Files at once: each that a command needs is compiled anew."""


def _flip(random: Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def _cut(random: Random, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: random.randrange(len(content))])


def _overwrite(random: Random, path: Path) -> None:
    path.write_bytes(random.randbytes(random.randrange(100_000)))


def _become_another(random: Random, path: Path) -> None:
    shutil.copy(random.choice(sorted(path.parent.glob("*.nbc"))), path)


def _become_a_folder(random: Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


_DAMAGES: tuple[Callable[[Random, Path], None], ...] = (
    *(_flip, _flip, _flip, _cut, _cut, _overwrite, _become_another, _become_a_folder),
    lambda random, path: path.write_bytes(b""),
    lambda random, path: path.unlink(),
    lambda random, path: path.chmod(0o666),
    lambda random, path: path.parent.chmod(0o777),
)


def run(setting: Setting) -> Iterator[Outcome]:
    """Damage some files of a copy of the package, and ask it twice."""
    sound, copy = setting.folder / "sound", setting.folder / "copy"
    for folder in (sound, copy):
        shutil.copytree(_PACKAGE, folder / "phaze_opt", ignore=shutil.ignore_patterns("*.pyc"))
        if not (folder / "phaze_opt" / "cli").exists():
            shutil.copytree(_PACKAGE.parent / "cli", folder / "phaze_opt" / "cli")
    for line in _LINES:
        _ask(sound, line)
    expected = {line: _ask(sound, line).stdout for line in _LINES}
    used = {line: _used(sound, line) for line in _LINES}
    files = [path.relative_to(sound) for path in sorted(sound.rglob("*.nbc"))]
    for number in setting.numbers():
        random = setting.random(number)
        _restore(sound, copy, files)
        damage, line = random.choice(_DAMAGES), random.choice(_LINES)
        most = min(_MOST_DAMAGED, len(used[line]))
        for name in random.sample(used[line], random.randint(1, most)):
            damage(random, copy / name)
        first, second = _ask(copy, line), _ask(copy, line)
        lines = first.stderr.splitlines()
        if (first.returncode, first.stdout) != (0, expected[line]):
            yield f"{line[:2]} after {damage}: {first.returncode}, {first.stderr[-300:]!r}"
        elif len(lines) > 1 or not all(one.startswith("Compiling anew: ") for one in lines):
            yield f"{line[:2]} after {damage} said {first.stderr[-300:]!r}"
        elif (second.stdout, second.stderr) != (first.stdout, ""):
            yield f"{line[:2]} after {damage}, again: {second.stderr[-300:]!r}"
        else:
            yield None


def _restore(sound: Path, copy: Path, files: list[Path]) -> None:
    """Bring the compiled code of a copy back."""
    for name in files:
        path = copy / name
        path.parent.chmod(0o755)
        if path.is_dir():
            path.rmdir()
        if not path.exists() or path.read_bytes() != (sound / name).read_bytes():
            shutil.copy(sound / name, path)
        path.chmod(0o644)


def _used(package: Path, line: tuple[str, ...]) -> list[Path]:
    """Return the files with compiled code that a command reads."""
    opened = _ask(package, line, _LISTING).stderr.splitlines()
    return [Path(name).relative_to(package) for name in opened if name.endswith(".nbc")]


def _ask(
    package: Path, line: tuple[str, ...], before: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command of a copy of the package in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    cache = {"XDG_CACHE_HOME": str(package / "cache"), "PYTHONPATH": str(package)}
    return subprocess.run(
        [sys.executable, "-c", before + _PROGRAM, *line],
        cwd=package,
        env={**environment, **cache},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=5 * LONGEST_WAIT_S,
    )


CASE = Case("compiled", "compiled code damaged, or open to others", 60, 0, 0.1, run)
