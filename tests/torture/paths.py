"""Every place of the command line that takes a path, and paths at which no file can be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.cli.conftest import SMALL_STUDY
from tests.scheduling.test_residency_file import ROW
from tests.torture.answering import ask, file_hashes, in_folder, why_wrong
from tests.torture.case import Case, Outcome, Setting
from tests.torture.world import World

MODEL = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
_CHIP = ("--accelerator", "tpuv4-lanes", "--cluster", "flat-4GiB")
_BATCH = ("--devices", "8", "--global-batch", "8", "--microbatch", "1")
_STORED = ("--storage", "sqlite:///phaze.db")
_STORAGE = ("--storage", "sqlite:///{}.db")
_GEMM = ("--gemm", "gemm.csv")

LINES: tuple[tuple[str, ...], ...] = (
    ("accelerator", "new", "h100", "--output", "{}.toml"),
    ("accelerator", "new", "{}"),
    ("accelerator", "show", "{}.toml"),
    ("accelerator", "show", "based.toml"),
    ("accelerator", "check", "{}.toml"),
    ("accelerator", "compare", "{}.json", "h100"),
    ("cluster", "new", "dgx-h100", "--output", "{}.toml"),
    ("cluster", "show", "{}.toml"),
    ("cluster", "show", "based.toml"),
    ("calibrate", "{}.toml", *_GEMM),
    ("calibrate", "chip.toml", "--gemm", "{}.csv"),
    ("calibrate", "chip.toml", *_GEMM, "--attention", "{}.csv"),
    ("calibrate", "chip.toml", *_GEMM, "--collectives", "{}.csv"),
    ("calibrate", "chip.toml", *_GEMM, "--vector", "{}.csv"),
    ("calibrate", "chip.toml", *_GEMM, "--output", "{}.toml"),
    ("estimate", "collective", "--cluster", "flat-4GiB", "--csv", "{}.csv"),
    ("estimate", "gemm", "--accelerator", "h100", "--csv", "{}.csv"),
    ("estimate", "experts", "--accelerator", "h100", "--csv", "{}.csv"),
    ("estimate", "dispatch", "--cluster", "dgx-h100", "--csv", "{}.csv"),
    ("validate", "training", "--csv", "{}.csv"),
    ("validate", "trace", "{}.json", "--accelerator", "h100"),
    ("import-config", "{}.toml"),
    ("import-config", "{}.yml"),
    ("import-config", "{}.sh"),
    ("place", "{}.json", "--format", "phaze"),
    ("schedule", "{}.json"),
    ("schedule", "layer.json", "--trace", "{}.json"),
    ("evaluate", "--model", MODEL, *_CHIP, *_BATCH, "--timeline", "{}.json"),
    ("evaluate", "--model", MODEL, *_CHIP, *_BATCH, "--timeline", "{}.html"),
    ("evaluate", "--model", MODEL, *_CHIP, *_BATCH, "--chakra", "{}"),
    ("evaluate", "--model", MODEL, *_CHIP, *_BATCH, "--chakra", "{}", "--chakra-ranks", "stages"),
    ("evaluate", "--model", "{}.json", *_CHIP, *_BATCH),
    ("evaluate", "--model", "hf:{}", *_CHIP, *_BATCH),
    ("report", "small", *_STORED, "--output", "{}.html"),
    ("report", "small", *_STORAGE, "--output", "a.html"),
    ("plot", "small", "history", *_STORED, "--output", "{}.html"),
    ("plot", "small", "history", *_STORAGE, "--output", "a.html"),
    ("spec", "check", "{}.toml"),
    ("spec", "schema", "--output", "{}.json"),
    ("spec", "new", "--output", "{}.toml"),
    ("study", "create", "{}.toml", *_STORED),
    ("study", "create", "study.toml", *_STORAGE),
    ("study", "run", "small", *_STORAGE),
    ("study", "show", "small", *_STORAGE),
    ("study", "best", "small", *_STORAGE),
    ("study", "best", "small", *_STORED, "--accelerator-toml", "{}.toml"),
    ("study", "ls", *_STORAGE),
    ("study", "trials", "small", *_STORAGE),
    ("study", "diff", "small", "small", *_STORAGE),
    ("study", "delete", "small", "--yes", *_STORAGE),
    ("study", "compare", "small", *_STORAGE),
    ("study", "compare", "small", *_STORED, "--html", "{}.html"),
    ("study", "enumerate", "small", *_STORAGE),
    ("study", "enumerate", "small", *_STORED, "--certificate", "{}.json"),
    ("study", "verify", "{}.json"),
    ("study", "pareto", "small", *_STORAGE),
    ("study", "robust", "missing", *_STORAGE),
    ("study", "export", "small", *_STORED, "--format", "csv", "--output", "{}.csv"),
    ("study", "export", "small", *_STORED, "--format", "bundle", "--output", "{}.zip"),
    ("study", "export", "small", *_STORAGE, "--format", "csv", "--output", "a.csv"),
    ("study", "import", "{}.zip", *_STORED),
    ("study", "import", "bundle.zip", *_STORAGE),
    ("study", "merge", "small", "small", "new", *_STORAGE),
    ("study", "copy", "small", "new", *_STORAGE),
    ("study", "copy", "small", "new", *_STORED, "--to", "sqlite:///{}.db"),
    ("study", "workers", "small", *_STORAGE),
    ("study", "stop", "small", *_STORAGE),
    ("validate", "operators", "--plot", "{}.html"),
    ("workload", "show", "{}.json"),
    ("workload", "show", MODEL, "--graph", "{}.dot"),
    ("workload", "show", MODEL, "--schedule-problem", "{}.json"),
    ("workload", "capture", MODEL, "--output", "{}.json"),
)
"""A line for every parameter that is a path, or may be one; ``{}`` stands for it."""

PATHS = (
    *("x" * 300, "x" * 240, "x/" * 3000 + "x", "loop", "loop/x", "layer.json/x", "missing/x"),
    *("~nobody/x", "folder/.", "\udcff", "é" * 100, "a\nb", "-"),
)
"""Names too long or nearly so, links to themselves, a file as folder, letters that are no text."""

_ENDS = (".toml", ".json", ".csv", ".html", ".dot", ".zip", ".db", "")


def run(setting: Setting) -> Iterator[Outcome]:
    """Give a path to one parameter."""
    folder = setting.folder / "world"
    folder.mkdir()
    with in_folder(folder):
        _make(folder)
        world = World(folder, setting.folder / "sound")
        for number in setting.numbers():
            random = setting.random(number)
            path, line = random.choice(PATHS), random.choice(LINES)
            base = json.dumps(f"{path}.toml") if path.isprintable() else '"layer.json/x.toml"'
            (folder / "based.toml").write_text(f"base = {base}\n")
            before = file_hashes(folder)
            answer = ask([part.replace("{}", path) for part in line])
            after = file_hashes(folder)
            outcome = why_wrong(answer, before, after)
            yield None if outcome is None else f"{path[:30]!r} in {' '.join(line)}: {outcome}"
            world.restore(after)


def _make(folder: Path) -> None:
    """Make what lines name beside the path."""
    for end in _ENDS:
        (folder / f"loop{end}").symlink_to(f"loop{end}")
    (folder / "folder").mkdir()
    (folder / "layer.json").write_text(json.dumps(ROW))
    (folder / "study.toml").write_text(SMALL_STUDY)
    rows = ("m,n,k,latency_s", "512,512,512,1e-5", "1024,1024,1024,2e-5", "2048,2048,2048,1e-4")
    (folder / "gemm.csv").write_text("\n".join(rows))
    for command in (
        ("accelerator", "new", "h100", "--output", "chip.toml"),
        ("study", "create", "study.toml", *_STORED),
        ("study", "run", "small", "--trials", "2", *_STORED),
        ("study", "export", "small", *_STORED, "--format", "bundle", "--output", "bundle.zip"),
    ):
        assert ask(command).code == 0, command


CASE = Case("paths", "paths at which no file can be", 1000, 8, 0.02, run)
