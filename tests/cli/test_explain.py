"""``phaze-opt explain``."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from tests.cli.conftest import Phaze, Ran

TINY = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
OPTIONS = {
    "model": TINY,
    "accelerator": "tpuv4-phaze",
    "cluster": "tpuv4-ici-flat",
    "devices": "4",
    "global-batch": "16",
    "microbatch": "2",
}


def run(phaze: Phaze, command: str, *more: str, **changes: str) -> Ran:
    """Run a command on a small model."""
    pairs = [part for key, value in {**OPTIONS, **changes}.items() for part in (f"--{key}", value)]
    return phaze(command, *pairs, *more)


def test_json_has_all_of_evaluate_and_the_reasons(phaze: Phaze) -> None:
    """The record of ``evaluate`` is part of the record of ``explain``."""
    record: dict[str, Any] = run(phaze, "explain", "--json").json
    evaluation = run(phaze, "evaluate", "--json").json
    for key in evaluation.keys() - {"layers"}:
        assert record[key] == evaluation[key]
    assert record.keys() - evaluation.keys() == {
        "stage_time", "memory", "searched_tensor", "gains", "fixes",
    }  # fmt: skip
    assert sum(record["stage_time"]["parts_s"].values()) == pytest.approx(
        record["time_per_batch_s"]
    )
    for layer in record["layers"]:
        for name in ("forward", "backward"):
            binding = layer[f"{name}_binding"]
            assert sum(binding["bound_s"].values()) == pytest.approx(layer[f"{name}_s"])
            assert binding["critical_path"][0]["start_s"] == 0.0
        assert layer["recompute_binding"] is None
    names = {gain["resource"] for gain in record["gains"]}
    assert names >= {"compute", "lanes", "glb", "hbm", "hbm_size", "link_0", "overhead"}


@pytest.mark.parametrize(
    ("resource", "field", "before"),
    [
        ("hbm", "hbm_bytes_per_s", 1200e9),
        ("glb", "glb_bytes_per_cycle", 4096),
        ("clock", "clock_hz", 1.05e9),
    ],
)
def test_a_gain_can_be_checked_with_evaluate(
    phaze: Phaze, resource: str, field: str, before: float
) -> None:
    """Setting the field to a tenth more gives the time that was predicted."""
    (gain,) = [
        gain
        for gain in run(phaze, "explain", "--json").json["gains"]
        if gain["resource"] == resource
    ]
    changed = run(phaze, "evaluate", "--json", set=f"{field}={before * 1.1!r}").json
    assert changed["time_per_batch_s"] == pytest.approx(gain["time_per_batch_s"], rel=1e-12)


def test_what_fits_can_be_checked_with_evaluate(phaze: Phaze) -> None:
    """The options of every fix, added to the line, give what it says."""
    given = {"placement": "1x4x1", "set": "hbm_bytes=1000000", "optimizer": "adam"}
    ran = run(phaze, "explain", "--json", **given)
    assert ran.code == 5
    assert ran.json["feasible"] is False and ran.json["gains"] == []
    assert {fix["feasible"] for fix in ran.json["fixes"]} == {True, False}
    for fix in ran.json["fixes"]:
        words = [word for option in fix["options"] for word in shlex.split(option)]
        tried = run(phaze, "evaluate", "--json", *words, **given)
        assert tried.code == (0 if fix["feasible"] else 5)
        assert tried.json["time_per_batch_s"] == fix["time_per_batch_s"]


def test_words_come_before_tables(phaze: Phaze) -> None:
    """A person reads sentences first, then tables, none wider than 80 columns."""
    lines = run(phaze, "explain").out.splitlines()
    assert lines[2].startswith("It trains ")
    assert any(line.startswith("What binds each layer") for line in lines)
    assert max(len(line.rstrip()) for line in lines) <= 80
    infeasible = run(phaze, "explain", set="hbm_bytes=200000")
    assert infeasible.code == 5
    assert "It does not fit: " in infeasible.out
    assert "What was tried to make it fit" in infeasible.out


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "bert-huge"}, "Unknown model"),
        ({"accelerator": "tpuv5"}, "Did you mean"),
        ({"devices": "many"}, "--devices"),
        ({"microbatch": "32"}, "global batch of 16"),
        ({"placement": "2x2"}, "PPxDPxTP"),
        ({"set": "pe_x=-3"}, "pe_x"),
    ],
)
def test_bad_values_are_named(phaze: Phaze, changes: dict[str, str], sentence: str) -> None:
    """A value that is not allowed is named, with exit code 2 and nothing on stdout."""
    ran = run(phaze, "explain", **changes)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.sentence


def test_both_commands_take_the_same_options(phaze: Phaze) -> None:
    """Every option of ``evaluate`` but the timeline is one of ``explain``."""

    def options(command: str) -> set[str]:
        words = phaze(command, "--help").out.replace("│", " ").split()
        return {word for word in words if word.startswith("--")}

    assert options("evaluate") - {"--timeline"} <= options("explain")
