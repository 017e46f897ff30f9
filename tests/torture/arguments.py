"""Lines of arguments: commands and options as they are, values as nobody means them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from phaze_opt.cli.main import program

from tests.cli.conftest import SMALL_STUDY
from tests.torture.answering import Answer, ask, file_hashes, in_folder, why_wrong
from tests.torture.case import LONGEST_WAIT_S, Case, Outcome, Setting
from tests.torture.world import World

PROGRAM = "import sys; from phaze_opt.cli.main import run; sys.argv[0] = 'phaze-opt'; run()"
SECRET = "hunter2-do-not-print"
_LONG = {("dashboard",), ("explore",), ("validate",), ("study", "robust")}
"""Two serve until they are stopped, the others always do the same work of many seconds."""

_NAMES = {"accelerator": "h100", "cluster": "dgx-h100"}
"""What the commands of a noun know; those of all others know the study."""

# Written relative to an empty folder: a try may succeed, and then writes what it was asked to.
_SOUND = {
    "model": ("bert-large", "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"),
    "accelerator": ("tpuv4-lanes", "h100", "a100-80=8,h100=8"),
    "cluster": ("tpuv4-ici-flat", "dgx-h100", "flat-4GiB"),
    "devices": ("8", "16"),
    "global_batch": ("16", "64"),
    "microbatch": ("1", "2"),
    "placement": ("solve", "expert", "1x8x1"),
    "kind": ("all_reduce", "all_gather", "history", "area"),
    "new": ("copied",),
    "spec": ("study.toml",),
    "file": ("bundle.zip", "study.toml", "a.json"),
    "output": ("out.html", "out.json", "out.csv", "out.toml"),
    "trials": ("2", "3"),
    "workers": ("1",),
    "op": ("softmax", "gelu"),
    "shape": ("128x512",),
    "degrade": ("slow-device=0.8", "link=0.5", "lost-node=1"),
    "changes": ("glb_mib=64", "num_tc=4"),
    "storage": ("sqlite:///phaze.db",),
}
_NEEDED = (
    *("model", "accelerator", "cluster", "devices", "global_batch", "microbatch", "op", "shape"),
    *("kind", "storage", "output"),
)
"""Options that most lines have."""

_STORAGE = ("--storage", "sqlite:///phaze.db")
_STUDY = SMALL_STUDY.replace("max = 64", "max = 4").replace("max = 2048", "max = 64")
"""With a space that is enumerated in a moment."""

_MAKING = (
    ("study", "create", "study.toml", *_STORAGE),
    ("study", "run", "small", "--trials", "2", *_STORAGE),
    ("study", "export", "small", "--format", "bundle", "--output", "bundle.zip", *_STORAGE),
)
"""What makes the study, and the bundle, that lines name."""

_HOSTILE = (
    *("", " ", "0", "-1", "1", "3", "1e3", "1e999", "nan", "inf", "-inf", "0x10", "1_000"),
    *("9" * 400, str(2**31), str(2**63), str(10**12), "1.5", "1,2", "[1]", "{}", "true", "none"),
    *("é", "\u202e", "\x1b[31m", "%s%n", "{0}", "a=b", "=", "=1", "x" * 3000, "--", "-h", "-"),
    *("a.json", "missing.toml", "folder", "pipe", "empty.json", "deep.json", "study.toml"),
    *(
        "hf:missing",
        "gpt:layers=1e9",
        "gpt:layers=9999999999999,hidden=64",
        "llama:",
        "moe:experts=1e9",
        "1x1x1x1x1",
    ),
    *("sqlite:///missing.db", "sqlite:///folder", "sqlite:///pipe", "sqlite:///empty.json"),
    *(f"postgresql://me:{SECRET}@127.0.0.1:9/db", f"mysql://me:{SECRET}@h/db"),
)


def run(setting: Setting) -> Iterator[Outcome]:
    """Ask within this process."""
    return _ask_all(setting, ask)


def run_processes(setting: Setting) -> Iterator[Outcome]:
    """Ask a new process each time."""
    return _ask_all(setting, _ask_process)


def _ask_all(setting: Setting, ask_one: Any) -> Iterator[Outcome]:
    """Draw lines, and ask them."""
    folder = setting.folder / "world"
    lines = list(_commands(program(), ()))
    folder.mkdir()
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "empty.json").touch()
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "a.json").write_text('{"a": 1}')
    (folder / "study.toml").write_text(_STUDY)
    with in_folder(folder):
        for command in _MAKING:
            ask(command)
        world = World(folder, setting.folder / "sound")
        for number in setting.numbers():
            random = setting.random(number)
            line = _line(random, *random.choice(lines))
            answer = ask_one(line)
            after = file_hashes(folder)
            outcome = why_wrong(answer, world.hashes, after)
            if outcome is None and SECRET in answer.out + answer.err:
                outcome = f"shows a password: {answer.sentence[:200]!r}"
            yield None if outcome is None else f"{line!r}: {outcome}"
            world.restore(after)


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that ends soon, with its name."""
    if hasattr(command, "commands"):
        for name, one in sorted(command.commands.items()):
            yield from _commands(one, (*path, name))
    elif path not in _LONG:
        yield path, command


def _line(random: Random, path: tuple[str, ...], command: Any) -> list[str]:
    """Draw a line of one command, sound but for some of its values."""
    line = list(path)
    care = random.random()
    for parameter in command.params:
        needed = parameter.required or parameter.name in _NEEDED
        if random.random() > (0.9 if needed else 0.15):
            continue
        value = _value(random, path, parameter, care)
        if parameter.param_type_name == "argument":
            line.append(value)
        elif parameter.name not in ("help", "install_completion", "show_completion"):
            line.append(random.choice(parameter.opts + parameter.secondary_opts))
            if not getattr(parameter, "is_flag", False):
                line.append(value)
    if random.random() < 0.1:
        line.insert(random.randrange(len(line) + 1), random.choice(_HOSTILE))
    return line


def _value(random: Random, path: tuple[str, ...], parameter: Any, care: float) -> str:
    """Draw a value, a sound one the more often the greater the care."""
    if random.random() < care:
        if parameter.name in ("name", "first", "second"):
            return _NAMES.get(path[0], "small")
        if parameter.name in _SOUND:
            return random.choice(_SOUND[parameter.name])
        choices = getattr(getattr(parameter, "type", None), "choices", None)
        if choices:
            return str(random.choice(list(choices)))
        return str(random.choice((1, 2, 8, 64)))
    return random.choice(_HOSTILE)


def _ask_process(line: Sequence[str]) -> Answer:
    """Run one command as a process."""
    started_s = _children_s()
    code: int | None
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *line],
            capture_output=True,
            timeout=LONGEST_WAIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        code, out, err = None, error.stdout or b"", error.stderr or b""
    seconds = _children_s() - started_s
    return Answer(code, out.decode(errors="replace"), err.decode(errors="replace"), seconds)


def _children_s() -> float:
    """Return the seconds of processor time of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


CASE = Case("arguments", "argument lines", 10_000, 15, 0.3, run)
PROCESSES = Case("processes", "argument lines, each a process", 300, 0, 0.12, run_processes)
