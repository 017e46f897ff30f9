"""Execution traces by Chakra's schema, read back and replayed without the code that wrote them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import PipelineScheduleName
from phaze_opt.degrees import Degrees
from phaze_opt.errors import ConflictError, InfeasibleError, InputError
from phaze_opt.evaluation import place_on_slice
from phaze_opt.interchange import chakra
from phaze_opt.interchange.batch_nodes import LayerPieces
from phaze_opt.interchange.chakra import check_new_folder, write_traces
from phaze_opt.interchange.layer_pieces import pieces_of_layers
from phaze_opt.named_point import named_point
from phaze_opt.network.level_values import with_level_values
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.point import cost_point
from phaze_opt.training import Training
from tests.interchange.traces import COLLECTIVE, COMPUTE, ends, read_folder, replay
from tests.placement.strategies import all_degrees, problems
from tests.placement.test_interleaved import equal_layers
from tests.placement.test_training_options import with_options
from tests.placement.test_zero_bubble import split_problems, with_weights


def check(
    problem: PlacementProblem, placement: Placement, layers: LayerPieces | None = None
) -> None:
    """Write, read, replay: our time per batch, and every node at its own time."""
    with TemporaryDirectory() as folder:
        write_traces(Path(folder) / "traces", problem, placement, layers)
        traces, groups = read_folder(Path(folder) / "traces")
    assert len(traces) == placement.devices
    assert sorted(traces) == list(range(placement.devices))
    replay(traces, groups, by_control=False)
    spans = list(map(ends, traces.values()))
    starts_each = placement.order is not None
    time_us = max(end - (begin if starts_each else 0) for begin, end in spans)
    assert time_us == pytest.approx(1e6 * placement.time_per_batch_s, rel=1e-12, abs=1.01)
    for trace in traces.values():
        assert trace.version == "1.0.0"
        assert trace.metadata["time_per_batch_s"] == placement.time_per_batch_s
    computed = sum(
        node.duration
        for trace in traces.values()
        for node in trace.nodes.values()
        if node.type == COMPUTE and "microbatch" in node.name
    )
    copies = placement.devices // placement.pipeline
    load_s = sum(stage.load_s for stage in placement.stages) * placement.microbatches * copies
    assert computed <= 1e6 * load_s + sum(len(trace.nodes) for trace in traces.values())


def checked_at_any_degrees(problem: PlacementProblem, data: st.DataObject) -> None:
    """Place a problem, mostly in several stages, and check it, if it fits."""
    degrees = data.draw(st.sampled_from([*reversed(list(all_degrees(problem))), None]))
    try:
        placement = solve_placement(problem, degrees)
    except InfeasibleError:
        return
    check(problem, placement)


@settings(max_examples=30, deadline=None)
@given(
    problems(most_layers=4, most_devices=8),
    st.sampled_from(["1f1b", "gpipe"]),
    st.integers(0, 3),
    st.sampled_from(["none", "data"]),
    st.data(),
)
def test_a_replay_of_all_ranks_takes_as_long(
    problem: PlacementProblem,
    schedule: PipelineScheduleName,
    zero: int,
    overlap: str,
    data: st.DataObject,
) -> None:
    """Whatever is placed, under every stage of ZeRO, with and without overlap."""
    options = {"pipeline_schedule": schedule, "zero": zero, "overlap": overlap}
    checked_at_any_degrees(with_options(problem, **options), data)


@settings(max_examples=20, deadline=None)
@given(split_problems(), st.integers(0, 1), st.data())
def test_schedules_that_put_weight_gradients_off_too(
    problem: PlacementProblem, zero: int, data: st.DataObject
) -> None:
    """Also where a schedule runs whole backwards, as 1F1B does."""
    checked_at_any_degrees(with_options(problem, zero=zero), data)


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("zero", [0, 1])
def test_interleaved_chunks(chunks: int, zero: int) -> None:
    """Chunks go round the stages."""
    problem = with_options(equal_layers(chunks, bandwidth=100.0), zero=zero)
    problem = replace(problem, cluster=replace(problem.cluster, devices=8))
    check(problem, solve_placement(problem, Degrees(4, 2, 1)))


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v"])
@pytest.mark.parametrize("zero", [0, 1])
def test_weight_gradients_apart(schedule: PipelineScheduleName, zero: int) -> None:
    """Every stage begins by itself, after its weights; where a V turns nothing is sent."""
    problem = with_options(with_weights(schedule, 8), zero=zero)
    level = replace(problem.cluster.levels[0], bandwidth_bytes_per_s=100.0)
    problem = replace(problem, cluster=replace(problem.cluster, levels=(level,), devices=8))
    check(problem, solve_placement(problem, Degrees(4, 2, 1)))


@pytest.mark.parametrize(
    ("degrees", "options"),
    [
        ((2, 2, 2), {"zero": 1, "overlap": "data"}),
        ((2, 1, 4), {"sequence_parallel": True, "recompute": "full"}),
        ((1, 4, 2), {"zero": 3, "overlap": "all", "recompute": "selective"}),
    ],
)
@pytest.mark.parametrize("chip", ["h100", "tpuv4-lanes"])
def test_layers_are_cut_at_their_collectives(
    chip: str, degrees: tuple[int, int, int], options: dict[str, Any]
) -> None:
    """Compute and collectives of every layer are nodes, and the replay takes as long."""
    model = "gpt:layers=4,hidden=1024,heads=8,sequence=1024,vocab=8192"
    training = Training(16, 2, optimizer="adam", **options)
    point = named_point(model, chip, "dgx-h100", training, degrees, devices=8).point
    placed, evaluation = place_on_slice(cost_point(point))
    placement = evaluation.placement
    assert placement is not None
    layers = pieces_of_layers(placed.costs[placement.tensor])
    check(placed.problem, placement, layers)
    collectives = sum(
        piece.collective is not None
        for layer in layers
        for pieces in layer.values()
        for piece in pieces
    )
    assert collectives >= 4 * 4


def test_replicas_inside_the_stages_and_outside() -> None:
    """Ranks are those of the order that was found, and all replicas exchange their gradients."""
    stated = {"network.1.topology": "fat-tree", "network.1.taper": 8.0}
    leaves = {**stated, "network.1.leaf_devices": 16}
    cluster = with_level_values(load_cluster("dgx-h100", 64), leaves, "")
    model = "gpt:layers=8,hidden=1024,heads=8,sequence=512,vocab=8000"
    training = Training(64, 1, rank_order="solve")
    placements = []
    for degrees in ((2, 16, 2), (4, 8, 2), (4, 16, 1)):
        point = named_point(model, "h100", cluster, training, degrees).point
        placed, evaluation = place_on_slice(cost_point(point))
        assert evaluation.placement is not None
        placements.append(evaluation.placement)
        check(placed.problem, evaluation.placement)
    assert any(placement.replicas_inside for placement in placements)


def test_one_rank_of_every_stage(tmp_path: Path) -> None:
    """The files are those of the same ranks among all."""
    problem = equal_layers(2)
    problem = replace(problem, cluster=replace(problem.cluster, devices=8))
    placement = solve_placement(problem, Degrees(4, 2, 1))
    write_traces(tmp_path / "all", problem, placement)
    write_traces(tmp_path / "stages", problem, placement, ranks="stages")
    every, some = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.et")}
        for name in ("all", "stages")
    )
    assert (len(every), len(some)) == (8, 4)
    assert some.items() <= every.items()


def test_replicas_are_a_group(tmp_path: Path) -> None:
    """Gradients are exchanged among the ranks that hold the same layers."""
    problem = with_options(equal_layers(1, bandwidth=1e3), zero=1, overlap="none")
    problem = replace(problem, cluster=replace(problem.cluster, devices=8))
    write_traces(tmp_path / "a", problem, solve_placement(problem, Degrees(4, 2, 1)))
    traces, groups = read_folder(tmp_path / "a")
    assert sorted(groups.values()) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    sent = [node for node in traces[0].nodes.values() if node.type == COLLECTIVE]
    assert [node.attributes["comm_type"] for node in sent] == [7, 2]
    # 600 parameters: gradients of 4 bytes go in whole, weights of 2 bytes by half.
    assert [node.attributes["comm_size"] for node in sent] == [2400, 600]


def test_too_many_nodes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, and no folder."""
    problem = equal_layers(1)
    placement = solve_placement(problem, Degrees(4, 1, 1))
    monkeypatch.setattr(chakra, "MOST_NODES", 70)
    with pytest.raises(InputError, match=r"at most 70 are written; --chakra-ranks stages or fewer"):
        write_traces(tmp_path / "a", problem, placement)
    assert not list(tmp_path.iterdir())


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    """A file, a folder that holds something, a folder in none; an empty one may be."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    for name, error in (("file", InputError), ("full", ConflictError), ("a/b", InputError)):
        with pytest.raises(error, match=r"^The folder .*[^.]\.$"):
            check_new_folder(tmp_path / name)
    problem = equal_layers(1)
    (tmp_path / "empty").mkdir()
    write_traces(tmp_path / "empty", problem, solve_placement(problem, Degrees(4, 1, 1)))
    assert len(list((tmp_path / "empty").iterdir())) == 5
