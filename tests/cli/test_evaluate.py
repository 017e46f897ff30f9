"""``phaze-opt evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Phaze, Ran

TINY = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"


def evaluate(phaze: Phaze, *more: str, **changes: str) -> Ran:
    """Evaluate a small model."""
    options = {
        "model": TINY,
        "accelerator": "tpuv4-phaze",
        "cluster": "tpuv4-ici-flat",
        "devices": "4",
        "global-batch": "16",
        "microbatch": "2",
        **changes,
    }
    pairs = [part for key, value in options.items() for part in (f"--{key}", value)]
    return phaze("evaluate", *pairs, *more)


def test_json_has_the_promised_keys(phaze: Phaze) -> None:
    """The JSON holds what scripts rely on, and its parts add up."""
    record: dict[str, Any] = evaluate(phaze, "--json").json
    assert record["feasible"] is True and record["reason"] is None
    assert record["throughput_samples_per_s"] == pytest.approx(16 / record["time_per_batch_s"])
    assert sum(record["time_breakdown_s"].values()) == pytest.approx(record["time_per_batch_s"])
    assert 0 < record["mfu"] <= 1
    placement = record["placement"]
    assert placement.keys() >= {"pipeline", "data", "tensor", "microbatches", "stages"}
    for stage in placement["stages"]:
        memory = stage["memory_bytes"]
        parts = ("parameters", "gradients", "optimizer", "stash", "transient")
        assert sum(memory[part] for part in parts) == memory["total"]
    for layer in record["layers"]:
        assert layer["forward_schedule"].keys() >= {"status", "bound_s", "gap"}


def test_table_says_the_same(phaze: Phaze) -> None:
    """The table shows the numbers of the JSON."""
    record = evaluate(phaze, "--json").json
    table = evaluate(phaze).out
    assert f"{record['throughput_samples_per_s']:,.1f} samples/s" in table
    assert "bound by" in table and "block" in table


def test_degrees_are_taken(phaze: Phaze) -> None:
    """A given placement is used, and is never faster than the solved one."""
    given = evaluate(phaze, "--placement", "2x2x1", "--json").json
    assert [given["placement"][key] for key in ("pipeline", "data", "tensor")] == [2, 2, 1]
    solved = evaluate(phaze, "--json").json
    assert solved["time_per_batch_s"] <= given["time_per_batch_s"]


def test_timeline_is_written(phaze: Phaze) -> None:
    """The pipeline's timeline has a lane per stage and ends with the batch; none if infeasible."""
    ran = evaluate(phaze, "--placement", "2x2x1", "--timeline", "t.json", "--json")
    events = json.loads(Path("t.json").read_text("utf-8"))["traceEvents"]
    assert sum(event["name"] == "thread_name" for event in events) == 2
    end_us = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert end_us == pytest.approx(1e6 * ran.json["time_per_batch_s"])
    assert evaluate(phaze, "--set", "hbm_bytes=200000", "--timeline", "no.json").code == 5
    assert not Path("no.json").exists()
    assert evaluate(phaze, "--timeline", "no/such/folder.json").code == 2


def test_infeasible_still_answers(phaze: Phaze) -> None:
    """What does not fit exits with 5, with the same keys and the reason on stdout."""
    ran = evaluate(phaze, "--set", "hbm_bytes=200000", "--json")
    assert ran.code == 5
    record = ran.json
    assert record["feasible"] is False
    assert record["throughput_samples_per_s"] == record["mfu"] == 0.0
    assert record["time_per_batch_s"] is None and record["placement"] is None
    assert record["reason"].endswith(".")
    assert record.keys() == evaluate(phaze, "--json").json.keys()
    table = evaluate(phaze, "--set", "hbm_bytes=200000")
    assert table.code == 5 and "infeasible" in table.out


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "bert-huge"}, "Unknown model"),
        ({"model": "gpt:layers=2"}, "hidden"),
        ({"accelerator": "tpuv5"}, "Did you mean"),
        ({"cluster": "ethernet"}, "Unknown cluster"),
        ({"devices": "0"}, "devices is 0"),
        ({"devices": "many"}, "--devices"),
        ({"global-batch": "0"}, "global_batch is 0"),
        ({"microbatch": "32"}, "global batch of 16"),
        ({"microbatch": "0"}, "microbatch is 0"),
        ({"recompute": "some"}, "selective"),
        ({"optimizer": "lion"}, "adam"),
        ({"placement": "2x2"}, "PPxDPxTP"),
        ({"set": "pe_x=-3"}, "pe_x"),
        ({"set": "glb_mib=nan"}, "glb"),
    ],
)
def test_bad_values_are_named(phaze: Phaze, changes: dict[str, str], sentence: str) -> None:
    """A value that is not allowed is named, with exit code 2 and nothing on stdout."""
    ran = evaluate(phaze, **changes)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.sentence
