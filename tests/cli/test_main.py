"""The command line as a whole: what it imports, how it fails, what it prints where."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from phaze_opt.cli import main as main_module
from phaze_opt.cli.main import program

import phaze_opt
from phaze_opt.evaluation import COST_MODEL_VERSION
from phaze_opt.printing import without_passwords
from tests.cli.conftest import Phaze

ROOT = Path(__file__).parents[2]
HEAVY = (
    *("torch", "ortools", "optuna", "pandas", "numba", "scipy", "sqlalchemy", "plotly"),
    "google.protobuf",
)

COMMANDS = [
    ("evaluate",),
    ("explain",),
    ("dashboard",),
    ("schedule",),
    ("place",),
    ("cluster", "ls"),
    ("cluster", "show"),
    ("estimate", "gemm"),
    ("estimate", "vector"),
    ("calibrate",),
    ("validate",),
    ("spec", "check"),
    *(("study", verb) for verb in ("create", "run", "show", "best", "ls", "trials", "delete")),
    *(("study", verb) for verb in ("stop", "export")),
    *(("accelerator", verb) for verb in ("ls", "show", "compare")),
    *(("workload", verb) for verb in ("ls", "show", "capture")),
]


def test_importing_the_command_line_is_light() -> None:
    """Neither the import nor the help loads anything heavy."""
    program = (
        "import sys; from phaze_opt.cli.main import run_with; run_with(['--help']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_the_version_is_said_at_once() -> None:
    """Name, package and cost model on one line; nothing heavy is loaded, numpy neither."""
    program = (
        "import sys; from phaze_opt.cli.main import run_with; assert run_with(['--version']) == 0;"
        f"print([name for name in (*{HEAVY!r}, 'numpy') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert phaze_opt.__version__ == stated["project"]["version"]
    assert (done.stdout, done.stderr) == (
        f"phaze-opt {phaze_opt.__version__} (cost model {COST_MODEL_VERSION})\n",
        "[]\n",
    )


def test_a_noun_alone_is_that_of_the_whole_program() -> None:
    """What is made for one noun has its commands, options and help, and nothing else."""
    whole = program()
    assert len(whole.commands) > 10
    for noun, command in whole.commands.items():
        alone = program(noun)
        assert list(alone.commands) == [noun]
        assert described(alone.commands[noun]) == described(command)
        assert alone.help == whole.help


def described(command: Any) -> Any:
    """Return the help, the options and the commands of a command, all the way down."""
    options = [
        (
            parameter.name,
            parameter.opts,
            parameter.secondary_opts,
            parameter.default,
            parameter.required,
        )
        for parameter in command.params
    ]
    below = {
        name: described(subcommand) for name, subcommand in getattr(command, "commands", {}).items()
    }
    return command.name, command.help, options, below


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_help_has_an_example(phaze: Phaze, command: tuple[str, ...]) -> None:
    """The help of every command shows how it is used."""
    ran = phaze(*command, "--help")
    assert ran.code == 0
    assert "xample" in ran.out
    assert f"phaze-opt {' '.join(command)}" in ran.out


@pytest.mark.parametrize(
    "command",
    [
        *(("accelerator", "ls"), ("accelerator", "show", "tpuv4-phaze"), ("cluster", "ls")),
        *(("accelerator", "compare", "a100-80", "mi210"), ("cluster", "show", "dgx-a100")),
        *(("workload", "ls"), ("validate", "operators", "--rows")),
        ("cluster", "collective", "dgx-a100", "--group", "64", "--size-bytes", "1e9"),
    ],
    ids=" ".join,
)
def test_tables_fit_80_columns(phaze: Phaze, command: tuple[str, ...]) -> None:
    """Where nothing limits the width, no line is longer than 80 columns."""
    lines = phaze(*command).out.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        # Usage.
        (("evaluat",), 2, "evaluate"),
        (("study", "show"), 2, "Missing argument"),
        (("study", "show", "x", "--jsno"), 2, "--json"),
        (("spec", "check", "none.toml"), 3, "no study file"),
        # Unknown names.
        (("accelerator", "show", "tpuv4-phase"), 2, "Did you mean 'tpuv4-phaze'"),
        (("accelerator", "show", "tpuv4-phaze", "--set", "num_ct=3"), 2, "Did you mean"),
        (("accelerator", "show", "tpuv4-phaze", "--set", "num_tc"), 2, "key=value"),
        (("workload", "show", "bert-larg"), 2, "Did you mean 'bert-large'"),
        # Storages.
        (("study", "show", "x"), 3, "no study database"),
        (("study", "ls", "--storage", "mango:///x"), 2, "not supported"),
        (("study", "ls", "--storage", "sqlite:////none/of/this/a.db"), 3, "no study database"),
    ],
)
def test_errors_are_one_sentence(
    phaze: Phaze, arguments: tuple[str, ...], code: int, sentence: str, tmp_path: Path
) -> None:
    """A mistake gives its exit code, one sentence, nothing on stdout, and changes nothing."""
    ran = phaze(*arguments)
    assert ran.code == code
    assert sentence in ran.sentence
    assert ran.sentence.startswith("Error: ")
    assert ran.out == ""
    assert list(tmp_path.iterdir()) == []


def test_unexpected_errors_are_one_sentence(
    phaze: Phaze, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A defect gives one sentence, and with --debug its traceback."""

    def fail(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("by\nzero \x1b[31m")

    monkeypatch.setattr(main_module, "program", fail)
    ran = phaze("study", "ls")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert "\x1b" not in ran.err and "by zero" in ran.err
    main_module.run_with(["study", "ls"], debug=True)
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_is_130(phaze: Phaze, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C outside of a run ends with 130 and no traceback."""

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "program", interrupt)
    ran = phaze("study", "ls")
    assert (ran.code, ran.out, ran.err) == (130, "", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("study", "ls", "--", "{url}"),
        ("study", "show", "{url}"),
        ("study", "show", "{url}", "--debug"),
        ("{url}",),
        ("--{url}",),
        ("evaluate", "--model", "{url}"),
        ("study", "ls", "--storage", "mysql+x://me:hunter2@h/db"),
        ("spec", "check", "{url}"),
    ],
)
@pytest.mark.parametrize(
    "url", ["postgresql://me:hunter2@h/db", "postgresql://h:9/db?user=me&password=hunter2"]
)
def test_a_password_in_a_wrong_place_is_not_repeated(
    phaze: Phaze, arguments: tuple[str, ...], url: str
) -> None:
    """Whatever the mistake is, no error shows the password of a URL."""
    ran = phaze(*(argument.format(url=url) for argument in arguments))
    assert ran.code in (2, 3)
    assert "Error: " in ran.err and "hunter2" not in ran.out + ran.err


def test_a_note_does_not_repeat_a_password(phaze: Phaze) -> None:
    """A URL where a name should stand is written into the file, and masked in what is said."""
    ran = phaze("cluster", "new", "postgresql://me:hunter2@h/db", "--output", "a.toml")
    assert ran.code == 0
    assert "a.toml holds postgresql://me:***@h/db." in ran.err and "hunter2" not in ran.out


def test_passwords_are_found_in_any_text() -> None:
    """Also with an @ of their own; what holds none stays as it is."""
    assert without_passwords("'p://me:a@b@h/db' q://i:x@h") == "'p://me:***@h/db' q://i:***@h"
    for text in ("sqlite:///a@b.db", "http://host:80/x", "me@host: 5", "https://h/?page=2"):
        assert without_passwords(text) == text
