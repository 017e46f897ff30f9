from dataclasses import replace

import pytest

from phaze_opt.choices import Overlap
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.training import Training

SYNCHRONISATION = "gradient_synchronisation"


def equal_layers(chunks: int, microbatches: int = 8, bandwidth: float = 1e12) -> PlacementProblem:
    """Return 24 equal layers on 4 devices, interleaved where there is more than one chunk."""
    layer = LayerCost("", LayerPasses.of(1.0, 2.0), 100, 0, 10, 5, 8)
    return PlacementProblem(
        layers={1: tuple(replace(layer, name=f"block.{index}") for index in range(24))},
        edges=tuple((index, index + 1) for index in range(23)),
        cluster=Cluster("flat", (NetworkLevel(bandwidth, 0.0, "switch"),), 4),
        training=Training(
            microbatches, pipeline_schedule="interleaved", interleave=chunks, optimizer="adam"
        ),
        hbm_usable_bytes=1e6,
        hbm_bytes_per_s=1e15,
    )


def test_one_chunk_is_1f1b() -> None:
    """Interleaved with a single chunk is the plain pipeline."""
    problem = equal_layers(1)
    plain = replace(problem, training=replace(problem.training, pipeline_schedule="1f1b"))
    assert solve_placement(problem) == solve_placement(plain)


@pytest.mark.parametrize("chunks", [1, 2, 3, 6])
def test_the_bubble_shrinks(chunks: int) -> None:
    """A batch takes m + (p − 1) / v loads, and the parts sum to it."""
    placement = solve_placement(equal_layers(chunks), Degrees(4, 1, 1))
    load_s = placement.stages[0].load_s
    assert placement.time_per_batch_s == pytest.approx((8 + 3 / chunks) * load_s, rel=1e-6)
    total = sum(placement.time_breakdown_s.values())
    assert total == pytest.approx(placement.time_per_batch_s, rel=1e-9)
    assert placement.time_breakdown_s["bubble"] == pytest.approx(3 / chunks * load_s, rel=1e-6)


@pytest.mark.parametrize("chunks", [2, 3, 6])
def test_transfers_grow_with_the_chunks(chunks: int) -> None:
    """With v chunks an inner stage sends and receives v times as often."""
    times = [
        solve_placement(equal_layers(v, bandwidth=10.0), Degrees(4, 1, 1)).time_breakdown_s[
            "transfer"
        ]
        for v in (1, chunks)
    ]
    assert times[1] == pytest.approx(chunks * times[0])


def test_the_first_stage_holds_more() -> None:
    """The first of p stages holds p · (1 + (p − 1) / (p · v)) microbatches of its six layers."""
    for chunks in (2, 3):
        placement = solve_placement(equal_layers(chunks), Degrees(4, 1, 1))
        share = 4 * (1 + 3 / (4 * chunks))
        assert placement.stages[0].memory_bytes.stash == pytest.approx(60 * share, abs=1)


def test_layers_go_round_the_stages() -> None:
    """With two chunks of three layers the first stage holds the first and the fifth."""
    placement = solve_placement(equal_layers(2), Degrees(4, 1, 1))
    expected = [f"block.{index}" for index in (0, 1, 2, 12, 13, 14)]
    assert list(placement.stages[0].layers) == expected


def test_solved_is_no_worse_than_given() -> None:
    """The best interleaved degrees are no slower than any given ones."""
    problem = equal_layers(2)
    best = solve_placement(problem).time_per_batch_s
    for degrees in ((4, 1, 1), (2, 2, 1), (2, 1, 1), (1, 4, 1), (1, 1, 1)):
        assert best <= solve_placement(problem, Degrees(*degrees)).time_per_batch_s


def test_what_cannot_be_interleaved() -> None:
    """The stages must divide the microbatches, and each chunk needs a layer."""
    with pytest.raises(InfeasibleError, match="a multiple of 4 microbatches"):
        solve_placement(equal_layers(2, microbatches=6), Degrees(4, 1, 1))
    with pytest.raises(InfeasibleError, match="at least 28 layers"):
        solve_placement(equal_layers(7), Degrees(4, 1, 1))
    tight = replace(equal_layers(2), hbm_usable_bytes=11_100.0)
    with pytest.raises(InfeasibleError, match=r"Stage 1 of 4 interleaved ones needs .* more than"):
        solve_placement(tight, Degrees(4, 1, 1))
    with pytest.raises(InfeasibleError, match="No degrees fit with 2 interleaved chunks"):
        solve_placement(replace(tight, hbm_usable_bytes=100.0))


def test_interleave_needs_its_schedule() -> None:
    """Chunks without the interleaved schedule are refused."""
    with pytest.raises(InputError, match="interleave is 2"):
        Training(8, interleave=2)
    with pytest.raises(InputError, match="interleave is 0"):
        Training(8, pipeline_schedule="interleaved", interleave=0)


@pytest.mark.parametrize("overlap", ["none", "data"])
def test_tied_gradients_of_one_stage_are_sent_once(overlap: Overlap) -> None:
    """Where two chunks of a stage hold the same weights, replicas exchange them once."""
    plain = equal_layers(2, bandwidth=1e3)
    training = replace(plain.training, global_batch=16, overlap=overlap)
    tied = [replace(layer, tied_parameters=40) for layer in plain.layers[1]]
    layers = tuple(tied[i] if i in (0, 12) else layer for i, layer in enumerate(plain.layers[1]))
    cluster = replace(plain.cluster, devices=8)
    problem = replace(plain, layers={1: layers}, training=training, cluster=cluster)
    first, *others = [
        sum(each.total_s for each in stage.communication if each.kind == SYNCHRONISATION)
        for stage in solve_placement(problem, Degrees(4, 2, 1)).stages
    ]
    assert others == pytest.approx([600 * 4 / 1e3] * 3)
    assert first == pytest.approx(560 * 4 / 1e3)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_cores_that_communicate_are_missed(share: float) -> None:
    """Of what runs beside the compute of several chunks, the cores' share takes time."""
    plain = equal_layers(2, bandwidth=1e3)
    training = replace(plain.training, global_batch=16)
    problem = replace(plain, training=training, cluster=replace(plain.cluster, devices=8))
    free, shared = (
        solve_placement(replace(problem, collective_core_share=taken), Degrees(4, 2, 1))
        for taken in (0.0, share)
    )
    for stage, other in zip(free.stages, shared.stages, strict=True):
        (before,) = (each for each in stage.communication if each.kind == SYNCHRONISATION)
        (after,) = (each for each in other.communication if each.kind == SYNCHRONISATION)
        assert 0.0 < before.exposed_s < before.total_s == after.total_s
        assert after.exposed_s == pytest.approx(before.exposed_s + share * before.hidden_s)
