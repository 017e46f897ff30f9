"""JSON of every command: numbers are numbers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phaze_opt.cli.main import program, run_with
from phaze_opt.cli.output import print_json, print_json_rows

from tests.cli.conftest import SMALL_STUDY
from tests.cli.test_place import PHAZE
from tests.cli.test_readable import FOUR, TINY
from tests.scheduling.test_residency_file import ROW

PRODUCTS = "m,n,k,latency_s\n4096,4096,4096,1e-3\n8192,4096,4096,2e-3\n8192,8192,4096,4e-3\n"
CONFIGS = Path(__file__).parent.parent / "data" / "framework_configs"
ROUTED = ("--topk", "2", "--experts", "8")
COLLECTIVE = ("--kind", "all_reduce", "--devices", "8", "--bytes", "1e9")
ON_CHIP = ("--accelerator", "h100")

COMMANDS = [
    ("evaluate", *FOUR),
    ("explain", *FOUR),
    ("estimate", "gemm", *ON_CHIP, "--m", "64", "--n", "64", "--k", "64"),
    ("estimate", "vector", *ON_CHIP, "--op", "softmax", "--shape", "64x64"),
    ("estimate", "attention", *ON_CHIP, "--sequence", "128", "--heads", "2"),
    ("estimate", "cast", "--accelerator", "h100", "--precision", "fp8", "--shape", "64x64"),
    ("estimate", "experts", *ON_CHIP, "--tokens", "64", "--hidden", "64", *ROUTED, "--ffn", "64"),
    (
        "estimate",
        "dispatch",
        "--cluster",
        "dgx-h100",
        "--tokens",
        "64",
        "--hidden",
        "64",
        *ROUTED,
        "--devices",
        "4",
    ),
    ("estimate", "collective", "--cluster", "dgx-h100", *COLLECTIVE),
    ("schedule", "problem.json"),
    ("place", str(PHAZE / "004.json"), "--format", "phaze"),
    ("calibrate", "h100", "--gemm", "products.csv"),
    ("import-config", str(CONFIGS / "megatron_gpt3.sh")),
    ("validate", "memory"),
    ("study", "show", "small"),
    ("study", "best", "small"),
    ("study", "ls"),
    ("study", "trials", "small"),
    ("study", "diff", "small", "two"),
    ("study", "compare", "small", "copy"),
    ("study", "enumerate", "few"),
    ("study", "verify", "certificate.json"),
    ("study", "pareto", "few"),
    ("study", "robust", "few"),
    ("study", "workers", "small"),
    ("spec", "check", "small.toml"),
    ("accelerator", "ls"),
    ("accelerator", "show", "h100"),
    ("accelerator", "check", "h100"),
    ("accelerator", "compare", "h100", "a100-80", "--model", "bert-large"),
    ("cluster", "ls"),
    ("cluster", "bill", "dgx-h100", "--devices", "64"),
    ("cluster", "show", "tpuv4-torus"),
    ("cluster", "collective", "dgx-h100", *COLLECTIVE),
    ("workload", "ls"),
    ("workload", "show", TINY),
]

NUMBER = r"[-+]?(\d[\d,]*\.?\d*|\.\d+)([eE][-+]?\d+)?"
NUMBER_AS_TEXT = re.compile(
    rf"{NUMBER}(\s*[/,;×x]\s*{NUMBER})*\s*"
    r"(%|×|[nµm]?s|J|W|mm²|([kKMGTP]i?)?B(/s)?|GHz|T?FLOP/s|samples(/s)?|tokens(/s)?)?"
    r"|.*\d%"
)
NAMES = {"cost_model_version", "version", "placement"}
"""Keys of text that may look like a number: the name of a version, and PPxDPxTP."""


def numbers_as_text(plain: Any, key: str = "") -> list[str]:
    """List the texts of a JSON document that are numbers, with or without a unit."""
    if isinstance(plain, dict):
        if plain.get("field") in NAMES:
            return []
        return [text for key, entry in plain.items() for text in numbers_as_text(entry, key)]
    if isinstance(plain, list):
        return [text for entry in plain for text in numbers_as_text(entry, key)]
    is_one = isinstance(plain, str) and key not in NAMES and NUMBER_AS_TEXT.fullmatch(plain.strip())
    return [f"{key}: {plain}"] if is_one else []


def has_area_of_unsaid_model(plain: Any) -> bool:
    """Look for an area beside which stands neither its model nor the area by the other one."""
    if isinstance(plain, dict):
        unsaid = "area_mm2" in plain and plain.keys().isdisjoint(("area_model", "area_chip_mm2"))
        return unsaid or any(map(has_area_of_unsaid_model, plain.values()))
    return isinstance(plain, list) and any(map(has_area_of_unsaid_model, plain))


@pytest.mark.parametrize("text", ["12", "1.5e9", "300 / 50", "12 ms", "64 MiB", "lanes 53%", "2×4"])
def test_a_number_in_words_is_seen(text: str) -> None:
    """With a unit, several in one text, and as a share; words and names are none."""
    assert numbers_as_text({"key": [text]}) == [f"key: {text}"]
    assert not numbers_as_text({"cost_model_version": text, "key": f"h100 {text} block.1"})


def json_commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command that has ``--json``."""
    if any("--json" in parameter.opts for parameter in command.params):
        yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from json_commands(below, (*path, name))


def test_every_command_with_json_is_listed() -> None:
    """A new command must be added to the list of this module."""
    for words in json_commands(program()):
        assert any(command[: len(words)] == words for command in COMMANDS), words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Work in a folder with the studies and files that the commands name."""
    path = tmp_path_factory.mktemp("json")
    before = Path.cwd()
    storage = os.environ.pop("PHAZE_STORAGE", None)
    os.chdir(path)
    Path("problem.json").write_text(json.dumps(ROW))
    Path("products.csv").write_text(PRODUCTS)
    Path("small.toml").write_text(SMALL_STUDY)
    two = SMALL_STUDY.replace('"small"', '"two"')
    Path("two.toml").write_text(
        two.replace("[space]", 'objectives = ["throughput", "area"]\n\n[space]')
    )
    few = SMALL_STUDY.replace('"small"', '"few"').replace("max = 64", "max = 2")
    Path("few.toml").write_text(few.replace("max = 2048", "max = 4"))
    assert run_with(["study", "create", "few.toml"]) == 0
    for name in ("small", "two"):
        assert run_with(["study", "create", f"{name}.toml"]) == 0
        assert run_with(["study", "run", name]) == 0
    assert run_with(["study", "copy", "small", "copy"]) == 0
    assert run_with(["study", "enumerate", "few", "--certificate", "certificate.json"]) == 0
    yield path
    os.chdir(before)
    if storage is not None:
        os.environ["PHAZE_STORAGE"] = storage


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_numbers_are_numbers(
    folder: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """No value of any command's JSON is a number as text, and no area is one of an unsaid model."""
    capsys.readouterr()
    assert run_with([*command, "--json"]) == 0
    out = capsys.readouterr().out
    plain = json.loads(out) if out.startswith("[") or out.startswith("{\n") else None
    documents = [plain] if plain is not None else [json.loads(line) for line in out.splitlines()]
    assert documents
    assert [text for document in documents for text in numbers_as_text(document)] == []
    assert not any(map(has_area_of_unsaid_model, documents))


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@settings(max_examples=60)
@given(st.lists(st.dictionaries(st.text(min_size=1), scalars, min_size=1), max_size=4))
def test_rows_are_printed_one_by_one_as_all_at_once(rows: list[dict[str, Any]]) -> None:
    """The same bytes, for whoever reads the list before it has ended."""
    printed = []
    for show in (print_json, lambda rows: print_json_rows(iter(rows))):
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            try:
                show(rows)
            except ValueError:
                printed.append("refused")  # endless numbers are no JSON
                continue
        printed.append(stream.getvalue())
    assert printed[0] == printed[1]
