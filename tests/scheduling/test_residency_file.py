import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaze_opt.errors import InputError
from phaze_opt.scheduling.problem_file import read_problems, result_row, to_row
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.residency_problems import as_problem, random_residency

ROW: dict[str, Any] = {
    "name": "two",
    "num_tc": 4,
    "num_vc": 4,
    "glb_bytes": 8,
    "hbm_bytes_per_s": 1.0,
    "operators": [
        {"id": "a", "core": "TC", "latency_s": 40.0, "intra_op_latency_s": 10.0, "hbm_bytes": 10.0},
        {"id": "b", "core": "VC", "latency_s": 40.0, "intra_op_latency_s": 9.0, "hbm_bytes": 8.0},
    ],
    "edges": [],
    "tensors": [{"from": "a", "to": ["b"], "bytes": 4}],
}


def read(tmp_path: Path, row: dict[str, Any]) -> Any:
    """Read one problem from a file."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(row))
    (problem,) = read_problems(path)
    return problem


def with_tensor(**changes: Any) -> dict[str, Any]:
    """Give the row with another tensor."""
    return {**ROW, "tensors": [{**ROW["tensors"][0], **changes}]}


def test_what_is_not_stated(tmp_path: Path) -> None:
    """An operator that its HBM bytes explain is bound by them, another one by all the rest."""
    problem = read(tmp_path, ROW)
    assert problem.edges == ((0, 1),)
    assert problem.residency.other_s.tolist() == [[0.0], [9.0]]
    assert problem.residency.saved_bytes.tolist() == [[4.0], [4.0]]
    schedule = solve_schedule(problem)
    assert schedule.makespan_s == 6.0 + 9.0
    assert solve_schedule(problem, residency=False).makespan_s == 19.0


def test_a_line_says_what_stays(tmp_path: Path) -> None:
    """The result has the promised keys, with the tensors that stay and the bytes that flow."""
    problem = read(tmp_path, ROW)
    row = result_row(problem, solve_schedule(problem))
    assert list(row)[-3:] == ["method", "hbm_bytes", "resident"]
    assert row["hbm_bytes"] == 10.0
    assert row["resident"] == [
        {"from": "a", "to": ["b"], "bytes": 4, "start_s": 0.0, "end_s": 15.0}
    ]
    off = result_row(problem, solve_schedule(problem, residency=False))
    assert (off["hbm_bytes"], off["resident"]) == (18.0, [])
    utilisation: Any = row["utilisation"]
    assert utilisation["hbm"] == {"average": pytest.approx(10 / 15), "peak": 1.0}


def test_without_tensors_nothing_is_new(tmp_path: Path) -> None:
    """A problem without tensors has no residency, and its line no new keys."""
    problem = read(tmp_path, {**ROW, "tensors": []})
    assert problem.residency is None
    assert list(result_row(problem, solve_schedule(problem)))[-1] == "utilisation"


def test_more_hbm_bytes_than_the_latency_allows(tmp_path: Path) -> None:
    """A latency below the time of the HBM bytes is raised to it."""
    slow = {**ROW, "hbm_bytes_per_s": 0.5}
    assert [one.intra_op_latency_s for one in read(tmp_path, slow).operators] == [20.0, 16.0]


def test_written_and_read_back(tmp_path: Path) -> None:
    """A problem that was written is read as an equal problem with an equal schedule."""
    for seed in range(40):
        problem = as_problem(random_residency(random.Random(seed)))
        made = problem.residency
        assert made is not None
        again = read(tmp_path, to_row(problem))
        if not made.graph.tensors:
            assert again == replace(problem, residency=None)
            continue
        assert replace(again, residency=None) == replace(problem, residency=None)
        assert again.residency.graph.tensors == made.graph.tensors
        for name in ("working_bytes", "hbm_bytes", "other_s", "overhead_s", "saved_bytes"):
            assert np.array_equal(getattr(again.residency, name), getattr(made, name)), name
        first, second = solve_schedule(problem), solve_schedule(again)
        assert replace(first, solve_s=0.0) == replace(second, solve_s=0.0)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**ROW, "glb_bytes": None}, "needs glb_bytes and hbm_bytes_per_s"),
        ({**ROW, "glb_bytes": -1}, "glb_bytes is -1"),
        ({**ROW, "hbm_bytes_per_s": 0}, "hbm_bytes_per_s is 0"),
        (with_tensor(to=["z"]), "'z'"),
        (with_tensor(**{"from": "z"}), "'z'"),
        (with_tensor(to=["a"]), "cycle"),
        (with_tensor(to=["b", "b"]), "each once"),
        (with_tensor(bytes=-1), "bytes of a tensor is -1"),
        (with_tensor(size=1), "size"),
        (with_tensor(saved_bytes=[[4.0]]), "has 1 lists"),
        (with_tensor(saved_bytes=[[4.0], [4.0, 4.0]]), "has 2 numbers"),
        (with_tensor(saved_bytes=[[40.0], [4.0]]), "saves operator 'a'"),
        ({**ROW, "edges": [["b", "a"]]}, "cycle"),
        ({**ROW, "tensors": [3]}, "object"),
        ({**ROW, "operators": [], "tensors": [{"to": [], "bytes": 1}]}, "no operator"),
    ],
)
def test_malformed_residency_is_refused(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    """Every kind of wrong entry is refused in one sentence."""
    with pytest.raises(InputError, match=words):
        read(tmp_path, row)
