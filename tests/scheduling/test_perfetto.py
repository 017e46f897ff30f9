import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.errors import InputError
from phaze_opt.scheduling.perfetto import MOST_LANES, schedule_events, trace_events, write_events
from phaze_opt.scheduling.schedule_problem import ScheduleOperator, ScheduleProblem
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.residency_problems import as_problem, random_residency
from tests.scheduling.strategies import layer_like
from tests.scheduling.tile_problems import random_tiled


def work_by_lane(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Events that take time, by lane and start."""
    lanes: dict[int, list[dict[str, Any]]] = {}
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: float(e["ts"])):
        lanes.setdefault(event["tid"], []).append(event)
    return lanes


@pytest.mark.parametrize("seed", range(5))
def test_lanes_do_one_thing_at_a_time(seed: int) -> None:
    """On no core do two operators overlap, and every lane has a name."""
    problem = layer_like(seed, 30, 4, intra_operator="per-type")
    events = trace_events(problem, solve_schedule(problem))
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    lanes = work_by_lane(events)
    assert set(lanes) <= named
    for work in lanes.values():
        for first, second in pairwise(work):
            assert first["ts"] + first["dur"] <= second["ts"] * (1 + 1e-12) + 1e-9


def test_a_lane_per_core() -> None:
    """An operator on all cores shows on every lane of its type."""
    problem = ScheduleProblem("wide", 3, 2, (ScheduleOperator("a", "TC", 3.0, 1.0),), ())
    events = trace_events(problem, solve_schedule(problem))
    assert sum(event["name"] == "thread_name" for event in events) == 5
    assert sum(event["name"] == "a" for event in events) == 3


def test_thousands_of_idle_cores_share_a_lane() -> None:
    """Cores beyond the first that only work all together are one lane."""
    count = 4096
    problem = ScheduleProblem("huge", count, 1, (ScheduleOperator("a", "TC", 3.0, 1.0),), ())
    events = trace_events(problem, solve_schedule(problem))
    labels = [event["args"] for event in events if event["name"] == "thread_name"]
    assert len(labels) < MOST_LANES
    assert {"name": f"TC 0 to {count - 1}"} in labels


def test_what_stays_has_lanes_of_its_own() -> None:
    """Every stay once, with its bytes; on no lane do two overlap."""
    shown = 0
    for seed in range(10):
        problem = as_problem(random_residency(random.Random(seed)))
        schedule = solve_schedule(problem)
        events: list[dict[str, Any]] = trace_events(problem, schedule)
        tensors = [event for event in events if event.get("cat") == "tensor"]
        stays = () if schedule.residency is None else schedule.residency.tensors
        assert sorted((event["ts"], event["args"]["bytes"]) for event in tensors) == sorted(
            (1e6 * stay.start_s, problem.tensors[stay.tensor].bytes) for stay in stays
        )
        lanes = work_by_lane(tensors)
        named = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
        assert all(named[lane].startswith("global buffer") for lane in lanes)
        for work in lanes.values():
            for first, second in pairwise(work):
                assert first["ts"] + first["dur"] <= second["ts"] * (1 + 1e-12) + 1e-9
        shown += len(tensors)
    assert shown > 5


def test_operators_that_take_turns_are_one_bar() -> None:
    """With their number of tiles and HBM bytes; what they pass stays as two tiles."""
    shown = 0
    for seed in range(60):
        problem = as_problem(random_tiled(random.Random(seed), 4, 3))
        schedule = solve_schedule(problem, method="branch-and-bound")
        kept = schedule.residency
        events: list[dict[str, Any]] = trace_events(problem, schedule)
        for work in work_by_lane(events).values():
            for first, second in pairwise(work):
                assert first["ts"] + first["dur"] <= second["ts"] * (1 + 1e-12) + 1e-9
        names = [event["name"] for event in events if event["ph"] == "X"]
        for group in () if kept is None else kept.groups:
            assert kept is not None and problem.residency is not None
            ids = [problem.operators[one].id for one in group.operators]
            assert not set(ids) & set(names)
            bar = f"{', '.join(ids)}: {group.tiles} tiles in turns"
            (found,) = {
                (event["ts"], event["args"]["hbm_fraction"])
                for event in events
                if event["name"] == bar
            }
            moved_bytes = sum(kept.hbm_bytes[one] for one in group.operators)
            moved_s = moved_bytes / problem.residency.hbm_bytes_per_s
            assert found[0] == 1e6 * group.start_s
            assert found[1] == pytest.approx(moved_s / (group.end_s - group.start_s))
            for i in group.passed:
                room = {e["args"]["bytes"] for e in events if e["name"].startswith("tiles of ")}
                assert 2 * -(-problem.tensors[i].bytes // group.tiles) in room
            shown += 1
    assert shown > 1


def test_file_holds_one_process_per_schedule(tmp_path: Path) -> None:
    """A trace of two schedules is one JSON document with two processes."""
    pairs = [
        (problem, solve_schedule(problem)) for problem in (layer_like(0, 9, 2), layer_like(1, 9, 2))
    ]
    path = tmp_path / "trace.json"
    write_events(path, schedule_events(pairs))
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}
    with pytest.raises(InputError, match="cannot be written"):
        write_events(tmp_path, schedule_events(pairs))
