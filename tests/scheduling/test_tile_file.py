"""Tiles in files with problems, and in the lines of their schedules."""

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
from tests.scheduling.residency_problems import as_problem
from tests.scheduling.tile_problems import random_tiled

TILES: list[dict[str, Any]] = [
    {"count": 4, "levels": [{"working_bytes": 1, "hbm_bytes": 10.0, "other_s": 1.0}]}
]
ROW: dict[str, Any] = {
    "name": "two",
    "num_tc": 4,
    "num_vc": 4,
    "glb_bytes": 6,
    "hbm_bytes_per_s": 1.0,
    "operators": [
        {
            "id": name,
            "core": core,
            "latency_s": 40.0,
            "intra_op_latency_s": 10.0,
            "hbm_bytes": 10.0,
            "other_s": 1.0,
            "tiles": TILES,
        }
        for name, core in (("a", "TC"), ("b", "VC"))
    ],
    "edges": [],
    "tensors": [{"from": "a", "to": ["b"], "bytes": 8}],
    "through": [["a", "b"]],
}


def read(tmp_path: Path, row: dict[str, Any]) -> Any:
    """Read one problem from a file."""
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(row))
    (problem,) = read_problems(path)
    return problem


def with_tiles(*tiles: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Give the row with other tiles of its first operator, and other keys."""
    first, second = ROW["operators"]
    return {**ROW, "operators": [{**first, "tiles": list(tiles)}, second], **changes}


def test_a_line_says_what_runs_tile_by_tile(tmp_path: Path) -> None:
    """8 bytes do not fit beside anything, two of 4 tiles do: 2 of 10 bytes are left to move."""
    problem = read(tmp_path, ROW)
    row = result_row(problem, solve_schedule(problem))
    assert list(row)[-4:] == ["method", "hbm_bytes", "resident", "groups"]
    assert (row["makespan_s"], row["hbm_bytes"], row["resident"]) == (4.0, 4.0, [])
    assert row["groups"] == [
        {
            "operators": ["a", "b"],
            "tiles": 4,
            "passed": [{"from": "a", "to": ["b"], "bytes": 8, "buffered_bytes": 4}],
            "held": [],
            "start_s": 0.0,
            "end_s": 4.0,
            "hbm_saved_bytes": 16.0,
        }
    ]
    off = result_row(problem, solve_schedule(problem, residency=False))
    assert (off["makespan_s"], off["groups"]) == (20.0, [])


def test_without_tiles_nothing_is_new(tmp_path: Path) -> None:
    """Tiles that hand nothing on are none, and the line has no new key."""
    for row in ({**ROW, "through": []}, with_tiles(through=[])):
        problem = read(tmp_path, row)
        assert problem.residency.tiling is None
        assert list(result_row(problem, solve_schedule(problem)))[-1] == "resident"


def test_what_is_held_is_read_once(tmp_path: Path) -> None:
    """An input that every tile reads: 1 byte is left of all that the operator moves."""
    problem = read(tmp_path, {**ROW, "held": [{"operator": "b", "bytes": 1}]})
    schedule = solve_schedule(problem)
    assert schedule.makespan_s == pytest.approx(2.0 + 1.0)
    groups: Any = result_row(problem, schedule)["groups"]
    assert [group["held"] for group in groups] == [[{"operator": "b", "bytes": 1}]]


def test_written_and_read_back(tmp_path: Path) -> None:
    """A problem that was written is read as an equal problem with an equal schedule."""
    groups = 0
    for seed in range(80):
        problem = as_problem(random_tiled(random.Random(seed), 4, 3))
        made = problem.residency
        assert made is not None and made.tiling is not None
        again = read(tmp_path, to_row(problem))
        if not made.graph.tensors or not made.tiling.graph.through:
            continue
        graph, own = again.residency.tiling.graph, made.tiling.graph
        assert (graph.counts, graph.through, graph.held) == (own.counts, own.through, own.held)
        for name in ("working_bytes", "hbm_bytes", "other_s", "saved_bytes"):
            read_back, written = again.residency.tiling.prices, made.tiling.prices
            assert np.array_equal(getattr(read_back, name), getattr(written, name)), name
        first, second = (solve_schedule(one, method="branch-and-bound") for one in (problem, again))
        assert replace(first, solve_s=0.0) == replace(second, solve_s=0.0)
        groups += 0 if first.residency is None else len(first.residency.groups)
    assert groups > 2


LEVEL = TILES[0]["levels"][0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**ROW, "through": [["a", "z"]]}, "'z'"),
        ({**ROW, "through": [["b", "a"]]}, "no edge"),
        ({**ROW, "held": [{"operator": "z", "bytes": 1}]}, "'z'"),
        ({**ROW, "held": [{"operator": "a", "bytes": -1}]}, "held input is -1"),
        (with_tiles({"count": 1, "levels": [LEVEL]}), "tiles of operator 'a' is 1"),
        (with_tiles(*TILES, *TILES), "each count once"),
        (with_tiles({"count": 2, "levels": []}), "at least one level"),
        (with_tiles({**TILES[0], "saved_bytes": []}), "a list for each of its 1"),
        (with_tiles({**TILES[0], "saved_bytes": [[11.0]]}), "save more bytes"),
        (with_tiles({"count": 2, "levels": [{**LEVEL, "other_s": -1.0}]}), "no size or time"),
        (with_tiles({"count": 2, "levels": [{**LEVEL, "size": 1}]}), "size"),
    ],
)
def test_malformed_tiles_are_refused(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    """Every kind of wrong entry is refused in one sentence."""
    with pytest.raises(InputError, match=words):
        read(tmp_path, row)
