import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.scheduling.problem_file import read_problems
from phaze_opt.scheduling.schedule_problem import ScheduleProblem
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.schedule_rules import broken_rules

FILE = Path(__file__).parents[1] / "data" / "scheduling" / "exact_makespans.jsonl.gz"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[ScheduleProblem, float]]:
    """All problems with their proven optimal makespans."""
    text = gzip.decompress(FILE.read_bytes())
    path = tmp_path_factory.mktemp("reference") / "problems.jsonl"
    path.write_bytes(text)
    rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    makespans_s = [float(row["optimal_makespan_s"]) for row in rows]
    return list(zip(read_problems(path), makespans_s, strict=True))


def test_every_reference_problem_is_proven(
    reference: list[tuple[ScheduleProblem, float]],
) -> None:
    """All 252 layer graphs reach their optimal makespan, with proof, and keep all rules."""
    assert len(reference) == 252
    for problem, makespan_s in reference:
        schedule = solve_schedule(problem)
        assert schedule.status == "optimal", problem.name
        assert schedule.makespan_s == pytest.approx(makespan_s, rel=1e-9), problem.name
        assert broken_rules(problem, schedule) == [], problem.name
