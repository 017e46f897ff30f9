"""The timeline of a batch through its pipeline."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import PipelineScheduleName
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError
from phaze_opt.placement.describe import placement_replay
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.report.timeline import timeline_events, write_timeline
from tests.placement.strategies import problems
from tests.placement.test_interleaved import equal_layers
from tests.placement.test_training_options import with_options
from tests.placement.test_zero_bubble import with_weights

PER_MICROBATCH = ("forward", "recompute", "backward")


def slices(events: list[dict[str, Any]], lane: int) -> list[dict[str, Any]]:
    """Return the work on one lane by start."""
    own = [event for event in events if event["ph"] == "X" and event["tid"] == lane]
    return sorted(own, key=lambda event: (event["ts"], event["dur"]))


def check(placement: Placement) -> None:
    """Hold one timeline to its laws."""
    events = timeline_events(placement)
    finish_s = placement_replay(placement).finish_s
    scale = 1e6 * placement.time_per_batch_s
    ends = []
    for lane, finish in enumerate(finish_s, start=1):
        work = slices(events, lane)
        for first, second in pairwise(work):
            assert first["ts"] + first["dur"] <= second["ts"] + 1e-12 * scale
        replayed = [event for event in work if event["name"] in PER_MICROBATCH]
        last = replayed[-1]["ts"] + replayed[-1]["dur"]
        assert last == pytest.approx(1e6 * finish, rel=1e-12)
        ends.append(work[-1]["ts"] + work[-1]["dur"])
        chunks = len(placement.stages[lane - 1].work)
        for kind in ("forward", "backward"):
            of_kind = [event for event in work if event["name"] == kind]
            assert len(of_kind) == chunks * placement.microbatches
    assert max(ends) == pytest.approx(scale, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    problems(),
    st.sampled_from(["1f1b", "gpipe"]),
    st.integers(0, 3),
    st.sampled_from(["none", "data"]),
)
def test_a_lane_does_one_thing_at_a_time(
    problem: PlacementProblem, schedule: PipelineScheduleName, zero: int, overlap: str
) -> None:
    """No two slices of a stage overlap; its last one ends with the replay, one with the batch."""
    options = {"pipeline_schedule": schedule, "zero": zero, "overlap": overlap}
    try:
        placement = solve_placement(with_options(problem, **options))
    except InfeasibleError:
        return
    check(placement)


@pytest.mark.parametrize("chunks", [1, 2, 3, 6])
def test_interleaved_chunks_share_a_lane(chunks: int) -> None:
    """All chunks of a stage are on its lane."""
    check(solve_placement(equal_layers(chunks), Degrees(4, 1, 1)))


def test_the_file_is_one_document(tmp_path: Path) -> None:
    """The file names the process and every stage's lane."""
    placement = solve_placement(equal_layers(1), Degrees(4, 1, 1))
    path = tmp_path / "timeline.json"
    write_timeline(path, placement)
    events = json.loads(path.read_text("utf-8"))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names[0] == "4x1x1 1f1b"
    assert names[1] == "stage 1: block.0 to block.5"
    assert len(names) == 5


@pytest.mark.parametrize("schedule", ["zb-1p", "zb-2p", "zb-v"])
def test_weight_gradients_are_drawn_apart(schedule: PipelineScheduleName) -> None:
    """A slice for every F, B and W, none over another, as long as the stage works."""
    placement = solve_placement(with_weights(schedule), Degrees(4, 1, 1))
    events = timeline_events(placement)
    for lane, stage in enumerate(placement.stages, start=1):
        work = slices(events, lane)
        for first, second in pairwise(work):
            assert first["ts"] + first["dur"] <= second["ts"] + 1e-3
        for kind in ("forward", "backward", "weight gradient"):
            of_kind = [event for event in work if event["name"] == kind]
            assert len(of_kind) == len(stage.work) * placement.microbatches
        busy_us = sum(event["dur"] for event in work if event["name"] != "optimizer")
        expected_s = placement.microbatches * stage.load_s - sum(
            work.first_saving_s for work in stage.work
        )
        assert busy_us == pytest.approx(1e6 * expected_s, rel=1e-6)
