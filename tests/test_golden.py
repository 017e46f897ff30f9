import json
from typing import Any

import pytest

from phaze_opt.evaluation import COST_MODEL_VERSION
from phaze_opt.scheduling.schedule_problem import Schedule
from tests.golden import PATH, cases, numbers, run_case

HINT = "raise COST_MODEL_VERSION and run python -m tests.golden"


def test_numbers_change_only_with_the_version() -> None:
    """Fifty evaluations are what they were when this cost-model version was declared."""
    golden = json.loads(PATH.read_text("utf-8"))
    assert golden["cost_model_version"] == COST_MODEL_VERSION, HINT
    assert [row["case"] for row in golden["evaluations"]] == json.loads(json.dumps(cases()))
    cache: dict[str, Schedule] = {}
    for row in golden["evaluations"]:
        now = numbers(run_case(row["case"], cache))
        assert_close(now, row["numbers"], str(row["case"]))


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
