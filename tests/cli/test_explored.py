"""What the what-if page is told of one or two points, and how it takes them along."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from phaze_opt.cli.explored import READY, PointAnswers

import phaze_opt as po
from phaze_opt.spec.study_spec import read_spec
from phaze_opt.units import format_number
from tests.cli.conftest import Phaze

SMALL = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
LEAST = {
    "model": SMALL,
    "accelerator": "tpuv4-lanes",
    "cluster": "tpuv4-ici-flat",
    "devices": "4",
    "global_batch": "16",
    "microbatch": "1",
}
RICH = {
    **LEAST,
    "microbatch": "2",
    "recompute": "full",
    "placement": "1x4x1",
    "software": "megatron",
    "zero": "1",
    "residency": "none",
    "attention": "eager",
    "changes": ["glb_mib=64", "network.0.latency_us=2"],
}


def told(answers: PointAnswers, kind: str, *points: dict[str, Any]) -> Any:
    """Ask about points, and return what is said of them."""
    query: dict[str, Any] = {}
    for place, point in enumerate(points):
        query |= {f"{'b.' if place else ''}{name}": value for name, value in point.items()}
    proper, answer = answers(f"{kind}?{urlencode(query, doseq=True)}")
    assert proper, answer
    return json.loads(answer)


def test_the_numbers_are_those_of_evaluate() -> None:
    """Headline, range, timeline and reasons; two points stand side by side."""
    answers = PointAnswers()
    training = po.Training(16, 1)
    expected = po.evaluate(SMALL, "tpuv4-lanes", "tpuv4-ici-flat", training, devices=4)
    numbers = told(answers, "numbers", LEAST, RICH)
    first, second = numbers["designs"]
    speed = format_number(expected.throughput_samples_per_s)
    assert first["headline"] == f"{speed} samples/s"
    assert first["sizes"]["glb_mib"] == 128.0 and second["sizes"]["glb_mib"] == 64.0
    assert set(numbers["figures"]) == {"time", "memory", "binding"}
    assert numbers["figures"]["time"]["data"][0]["y"] == ["A", "B"]
    assert numbers["comparison"].startswith("B trains 0.")
    shown = told(answers, "range", LEAST)["designs"][0]
    assert "<svg" in shown["timeline"] and "forward" in shown["timeline"]
    reasons = told(answers, "reasons", LEAST)["designs"][0]
    assert speed in reasons["sentences"][0] and len(reasons["gains"]) > 5
    assert all(len(row) == 5 for row in reasons["gains"])


def test_a_chip_with_a_range_has_one_on_the_page() -> None:
    """The slowest and the fastest chips of the name stand around the number."""
    shown = told(PointAnswers(), "range", LEAST | {"accelerator": "h100", "cluster": "dgx-h100"})
    assert "samples/s on chips of this name" in shown["designs"][0]["range"]


def test_what_does_not_fit_is_shown_with_what_would() -> None:
    """It has memory, no time and no throughput; the reasons name changes."""
    small_memory = LEAST | {"changes": ["hbm_bytes=100000"]}
    answers = PointAnswers()
    (design,) = told(answers, "numbers", small_memory)["designs"]
    assert not design["feasible"] and design["facts"][0][0] == "infeasible"
    (reasons,) = told(answers, "reasons", small_memory)["designs"]
    assert reasons["fixes"] and reasons["gains"] == []


@pytest.mark.parametrize(
    "point",
    [LEAST, RICH, LEAST | {"recompute": "solve"}],
    ids=["least", "rich", "solved"],
)
def test_copies_give_the_same_run(point: dict[str, Any], phaze: Phaze, tmp_path: Path) -> None:
    """As a command, as Python and as a study file, whatever is changed."""
    (design,) = told(PointAnswers(), "numbers", point)["designs"]
    words = shlex.split(design["copies"]["command"].replace("\\\n", " "))
    ran = phaze(*words[1:], "--json")
    assert ran.code == 0
    speed = ran.json["throughput_samples_per_s"]
    assert design["headline"] == f"{format_number(speed)} samples/s"
    printed = io.StringIO()
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(printed):
        exec(design["copies"]["python"], names)
    assert names["result"].throughput_samples_per_s == speed
    path = tmp_path / "what-if.toml"
    path.write_text(design["copies"]["spec"], encoding="utf-8")
    left_out = "# A study file does not state --placement.\n" if point is RICH else "name ="
    assert design["copies"]["spec"].startswith(left_out)
    spec = read_spec(path)
    assert (spec.model, spec.devices, spec.global_batch) == (SMALL, 4, 16)
    assert spec.recompute == names["training"].recompute != "solve"
    glb_mib = names["chip"].glb_bytes / 2**20
    assert list(spec.space.values_of("glb_mib")) == [glb_mib / 2, glb_mib, 2 * glb_mib]
    assert phaze("spec", "check", str(path)).code == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("model", "secret.json"),
        ("model", "hf:/etc"),
        ("model", "gpt:../../x.json"),
        ("accelerator", "/etc/passwd"),
        ("accelerator", "chip.toml"),
        ("cluster", "../net.toml"),
        ("cluster", "net.json"),
        ("accelerator", "a\\b.toml"),
    ],
)
def test_no_file_is_read_that_the_command_line_did_not_name(
    option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is there or not."""
    monkeypatch.chdir(tmp_path)
    for name in ("secret.json", "chip.toml", "net.json"):
        Path(name).write_text('base = "h100"\n', encoding="utf-8")
    (design,) = told(PointAnswers(), "numbers", LEAST | {option: value})["designs"]
    assert "reads no files of its own" in design["reason"]


def test_named_files_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly as the command line named them."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('base = "tpuv4-lanes"\nglb_mib = 32\n', encoding="utf-8")
    answers = PointAnswers((("accelerator", ("mine.toml",)),))
    (design,) = told(answers, "numbers", LEAST | {"accelerator": "mine.toml"})["designs"]
    assert design["sizes"]["glb_mib"] == 32.0
    (design,) = told(answers, "numbers", LEAST | {"accelerator": "./mine.toml"})["designs"]
    assert "reads no files" in design["reason"]


def test_one_wrong_point_leaves_the_other() -> None:
    """It has its own sentence."""
    numbers = told(PointAnswers(), "numbers", LEAST, LEAST | {"accelerator": "h1000"})
    assert "samples/s" in numbers["designs"][0]["headline"]
    assert "Did you mean 'h100'" in numbers["designs"][1]["reason"]
    assert numbers["figures"]["time"]["data"][0]["y"] == ["A"]


def test_a_process_makes_itself_ready() -> None:
    """Without capturing a model, which may take a minute."""
    assert PointAnswers()(READY) == (True, b"{}")


@pytest.mark.parametrize(
    "question",
    ["", "numbers", "files?model=bert-large", "numbers?model=%ff", f"numbers?{'a=1&' * 999}"],
)
def test_damaged_questions_have_one_sentence(question: str) -> None:
    """Nothing fails, and nothing else is said."""
    proper, answer = PointAnswers()(question)
    plain = json.loads(answer)
    sentence = plain["designs"][0]["reason"] if proper else plain["reason"]
    assert sentence.endswith(".") and "Unexpected" not in sentence
