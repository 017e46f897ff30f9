"""What commands print for people: at most 80 columns, right plurals, and no raw numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from phaze_opt.cli.main import run_with

from tests.cli.conftest import SMALL_STUDY

COLUMNS = 80

TINY = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
ONE_TOKEN = "gpt:layers=1,hidden=64,heads=1,sequence=1,vocab=128"
RUN = ("--accelerator", "tpuv4-lanes", "--cluster", "tpuv4-ici-flat", "--microbatch", "1")
ONE = ("--model", ONE_TOKEN, *RUN, "--devices", "1", "--global-batch", "1")
FOUR = ("--model", TINY, *RUN, "--devices", "4", "--global-batch", "16", "--placement", "2x1x1")
HUGE = ("--model", "gpt3-175b", *RUN, "--devices", "8", "--global-batch", "8")

CATALOGUES = [
    ("workload", "ls"),
    ("workload", "show", TINY),
    ("workload", "show", ONE_TOKEN),
    ("workload", "show", "gpt3-175b"),
    ("accelerator", "ls"),
    ("accelerator", "show", "h100"),
    ("accelerator", "compare", "h100", "tpuv4-lanes"),
    ("accelerator", "compare", "h100", "tpuv4-lanes", "--model", TINY),
    ("cluster", "ls"),
    ("cluster", "show", "tpuv4-torus"),
    ("cluster", "collective", "dgx-h100", "--group", "64", "--size-bytes", "1e9"),
    ("cluster", "collective", "dgx-h100", "--group", "1", "--size-bytes", "1"),
    ("evaluate", *ONE),
    ("evaluate", *FOUR),
    ("evaluate", *HUGE),
    ("explain", *ONE),
    ("explain", *FOUR),
    ("explain", *HUGE),
    ("spec", "check", "small.toml"),
    ("validate", "attention"),
]

STUDY = [
    ("study", "ls"),
    *(
        ("study", verb, name)
        for name in ("small", "single", "two")
        for verb in ("show", "best", "trials", "workers")
    ),
    ("study", "enumerate", "small"),
    ("study", "enumerate", "single"),
    ("study", "pareto", "single"),
    ("study", "show", "single"),
    ("study", "diff", "small", "single"),
    ("study", "diff", "small", "two"),
    ("study", "compare", "small", "copy"),
    ("study", "run", "single"),
    ("study", "export", "single", "--output", "trials.csv"),
    ("study", "export", "single", "--format", "bundle", "--output", "single.zip"),
    ("study", "import", "single.zip", "--name", "again"),
    ("study", "merge", "single", "again", "both"),
]

EXCEPTIONS = re.compile(
    r"\([0-9a-f]{12}\)"  # hash of a study
    r"|\('[0-9a-f]{21}…"  # hash of a workload
    r"|\bversion \d+"
)
RAW_NUMBERS = {
    "a power of ten": re.compile(r"\d[eE][+-]?\d"),
    "digits that nobody reads": re.compile(r"(?<![.\d])\d{7,}|[1-9]\.\d{6,}|0\.\d{9,}"),
    "a whole number with a point": re.compile(r"(?:\d{2}|,)\d{3}\.0\b"),
    "several of one thing": re.compile(
        r"(?<![\d.,×/ ])1 (?:bound|box|byte|chip|combination|design|device|evaluation|file|layer|"
        r"level|line|microbatch|operator|point|problem|replica|row|run|sample|stage|stud|token|"
        r"trial|variant|variation|worker)(?:s|es|ies)\b(?!/)"
    ),
    "one of several things": re.compile(
        r"(?<![.,])\b(?:0|[2-9]|\d\d+) (?:design|device|evaluation|layer|point|trial)\b"
    ),
    "a time too short": re.compile(r"\b0\.0\d* [nµm]?s\b"),
}
"""What no person wants to read, by what it is."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Work in a folder with a study of some trials, one of one, and one of two objectives."""
    path = tmp_path_factory.mktemp("readable")
    before = Path.cwd()
    storage = os.environ.pop("PHAZE_STORAGE", None)
    os.chdir(path)
    single = SMALL_STUDY.replace("devices = 4", "devices = 1").replace("batch = 16", "batch = 1")
    single = single.replace("{ min = 1, max = 2 }", "[1]").replace("{ min = 2, max = 2048 }", "128")
    specs = {
        "small": SMALL_STUDY,
        "single": single.replace("trials = 6", "trials = 1"),
        "two": SMALL_STUDY.replace("[space]", 'objectives = ["throughput", "area"]\n\n[space]'),
    }
    for name, text in specs.items():
        Path(f"{name}.toml").write_text(text.replace('"small"', f'"{name}"'), encoding="utf-8")
        assert run_with(["study", "create", f"{name}.toml"]) == 0
        assert run_with(["study", "run", name]) == 0
    assert run_with(["study", "copy", "small", "copy"]) == 0
    yield path
    os.chdir(before)
    if storage is not None:
        os.environ["PHAZE_STORAGE"] = storage


def words_of(command: tuple[str, ...]) -> str:
    """Name a command in a test's name."""
    return " ".join(word for word in command if ":" not in word)[:60]


@pytest.mark.parametrize("command", [*CATALOGUES, *STUDY], ids=words_of)
def test_what_people_read(
    folder: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """In a pipe, where nobody names a width."""
    capsys.readouterr()
    assert run_with(list(command)) in (0, 5)
    captured = capsys.readouterr()
    check(captured.out)
    check(captured.err, width=1000)  # sentences, which a terminal breaks


@pytest.mark.parametrize("columns", [60, 100])
def test_columns_are_honoured(
    folder: Path, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A narrower table is broken at its cells, and a wider one is not."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in (("study", "trials", "small"), ("accelerator", "ls"), ("evaluate", *FOUR)):
        capsys.readouterr()
        assert run_with(list(command)) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= max(columns, 79)


def check(text: str, width: int = COLUMNS) -> None:
    """Check every line of a text."""
    for line in text.splitlines():
        assert len(line) <= width, line
        shown = EXCEPTIONS.sub("", line)
        for what, pattern in RAW_NUMBERS.items():
            assert not pattern.search(shown), f"{what}: {line}"
