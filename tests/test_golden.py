import json
from typing import Any

import pytest

from phaze_opt.evaluation import COST_MODEL_VERSION
from phaze_opt.scheduling.schedule_problem import Schedule
from tests.golden import PATH, cases, numbers, run_case

HINT = "raise COST_MODEL_VERSION and run python -m tests.golden"


def test_numbers_change_only_with_the_version() -> None:
    """The evaluations are what they were when this cost-model version was declared."""
    golden = json.loads(PATH.read_text("utf-8"))
    assert golden["cost_model_version"] == COST_MODEL_VERSION, HINT
    assert [row["case"] for row in golden["evaluations"]] == json.loads(json.dumps(cases()))
    cache: dict[str, Schedule] = {}
    for row in golden["evaluations"]:
        now = numbers(run_case(row["case"], cache))
        assert_close(now, row["numbers"], str(row["case"]))


def test_the_cases_cover_every_option() -> None:
    """Tensor degrees, ZeRO stages, schedules, recomputes, kinds of chips and networks all occur."""
    rows = json.loads(PATH.read_text("utf-8"))["evaluations"]
    feasible = [row for row in rows if row["numbers"]["feasible"]]
    trainings = [row["case"]["training"] for row in feasible]
    assert {row["numbers"]["degrees"][2] for row in feasible} == {1, 2, 4, 8}
    assert {training.get("zero", 0) for training in trainings} == {0, 1, 2, 3}
    assert {training.get("recompute", "none") for training in trainings} == {
        "none",
        "selective",
        "full",
    }
    assert {training.get("pipeline_schedule", "1f1b") for training in trainings} == {
        "1f1b",
        "gpipe",
        "interleaved",
    }
    assert any(training.get("sequence_parallel") for training in trainings)
    assert len({row["case"]["accelerator"] for row in feasible}) >= 4
    assert len({row["case"]["cluster"] for row in feasible}) == 4
    assert {row["numbers"]["degrees"][3] for row in feasible} == {
        "tensor-data-pipeline",
        "tensor-pipeline-data",
    }


def assert_close(now: Any, then: Any, where: str) -> None:
    """Compare nested plain data, floats to 1e-9."""
    if isinstance(then, dict):
        assert now.keys() == then.keys(), f"{where}: {HINT}"
        for key in then:
            assert_close(now[key], then[key], f"{where}, {key}")
    elif isinstance(then, float):
        assert now == pytest.approx(then, rel=1e-9), f"{where}: {HINT}"
    else:
        assert now == then, f"{where}: {HINT}"
