"""Communication of the replicas beside compute: queues, volumes, and the times they lead to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.arrays import FloatArray
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement.overlap import backward_queue_s, forward_queue_s, left_after_s
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.placement.synchronisation import hidden_share
from phaze_opt.training import Training
from tests.placement.simulation import Simulation, best_s, simulate_pass
from tests.placement.strategies import all_degrees, problems, with_experts, with_link

OVERLAPS = st.sampled_from(["none", "data", "all"])
"""The simulation has no ``partial``, which lies between the first two."""
OPTIONS = st.fixed_dictionaries(
    {
        "overlap": OVERLAPS,
        "zero": st.integers(0, 3),
        "pipeline_schedule": st.sampled_from(["1f1b", "gpipe"]),
        "sequence_parallel": st.booleans(),
    }
)
seconds = st.floats(0.0, 2.0)
layers = st.lists(st.tuples(seconds, seconds, seconds, st.floats(0.0, 1.0)), min_size=1, max_size=7)


def with_options(problem: PlacementProblem, options: dict[str, Any]) -> PlacementProblem:
    """Return a problem with other training options, and collectives in its layers."""
    changed = {
        tensor_degree: tuple(
            replace(
                layer,
                passes=with_link(
                    layer.passes, 0.3 * (tensor_degree > 1), 0.2 * (tensor_degree > 1)
                ),
            )
            for layer in chain
        )
        for tensor_degree, chain in problem.layers.items()
    }
    training = replace(problem.training, **options)
    return replace(problem, layers=changed, training=training)


def listed(run: slice, *columns: FloatArray) -> list[list[float]]:
    """Return some layers of columns as lists."""
    return [column[run].tolist() for column in columns]


def attempt(problem: PlacementProblem, degrees: Degrees | None) -> Placement | None:
    """Place a problem, or return nothing where it does not fit."""
    try:
        return solve_placement(problem, degrees)
    except InfeasibleError:
        return None


@settings(max_examples=80, deadline=None)
@given(layers)
def test_queues_are_those_of_a_simulation(rows: list[tuple[float, float, float, float]]) -> None:
    """Every run of layers waits, and leaves over, what an event simulation finds."""
    busy, gather, reduce_, link = (np.array(column) for column in zip(*rows, strict=True))
    blocked = busy * link
    wait_s, total_s = forward_queue_s(gather, busy - blocked)
    back_wait_s, left_s, *totals_s = backward_queue_s(gather, reduce_, busy - blocked)
    nothing = np.zeros(len(rows))
    for i in range(len(rows)):
        for j in range(i + 1, len(rows) + 1):
            run = slice(i, j)
            end_s, _ = simulate_pass(*listed(run, busy, blocked, gather, nothing))
            assert wait_s[i, j] == pytest.approx(end_s - busy[run].sum(), abs=1e-9)
            back = slice(j - 1, i - 1 if i else None, -1)
            end_s, over_s = simulate_pass(*listed(back, busy, blocked, gather, reduce_))
            assert back_wait_s[i, j] == pytest.approx(end_s - busy[run].sum(), abs=1e-9)
            assert left_s[i, j] == pytest.approx(over_s, abs=1e-9)
            sums = [gather[run].sum(), gather[run].sum(), reduce_[run].sum()]
            table_s = [total_s[i, j], *(table[i, j] for table in totals_s)]
            assert table_s == pytest.approx(sums)


@settings(max_examples=200, deadline=None)
@given(layers, st.floats(1.0, 5.0))
def test_exposed_never_exceeds_the_total_nor_grows_with_bandwidth(
    rows: list[tuple[float, float, float, float]], factor: float
) -> None:
    """Waits and leftovers are at most all transfers, and no more on a faster network."""
    busy, gather, reduce_, _ = (np.array(column) for column in zip(*rows, strict=True))
    wait_s, left_s, *_ = (table[0, -1] for table in backward_queue_s(gather, reduce_, busy))
    assert wait_s + left_s <= (gather.sum() + reduce_.sum()) * (1 + 1e-12) + 1e-12
    assert forward_queue_s(gather, busy)[0][0, -1] <= gather.sum() * (1 + 1e-12)
    faster = backward_queue_s(gather / factor, reduce_ / factor, busy)
    assert sum(table[0, -1] for table in faster[:2]) <= (wait_s + left_s) * (1 + 1e-9) + 1e-12


@given(layers)
def test_endless_compute_hides_all_but_one_layer(
    rows: list[tuple[float, float, float, float]],
) -> None:
    """The first gather has nothing to hide behind, nor have the gradients that come last."""
    _, gather, reduce_, _ = (np.array(column) for column in zip(*rows, strict=True))
    endless = np.full(len(rows), 1e6)
    assert forward_queue_s(gather, endless)[0][0, -1] == gather[0]
    wait_s, left_s, _, _ = backward_queue_s(gather, reduce_, endless)
    assert wait_s[0, -1] == gather[-1]
    assert left_s[0, -1] == pytest.approx(reduce_[0], abs=1e-9)


@given(st.lists(st.tuples(seconds, st.floats(0.0, 10.0)), min_size=1, max_size=8))
def test_a_queue_over_chunks_is_a_simulation(rows: list[tuple[float, float]]) -> None:
    """Transfers that can start at any time are served in that order, one after the other."""
    service, until_end = (np.array(column) for column in zip(*rows, strict=True))
    end_s = float(until_end.max())
    free_s = 0.0
    for when, length in sorted((end_s - u, s) for s, u in rows):
        free_s = max(free_s, when) + length
    # Ties are served in any order: the queue ends at the same time.
    assert left_after_s(service, until_end, 1.0) == pytest.approx(
        max(0.0, free_s - end_s), abs=1e-9
    )


@settings(max_examples=50, deadline=None)
@given(with_experts(problems(most_layers=5, most_devices=8)), OPTIONS)
def test_given_degrees_take_the_simulated_time(
    problem: PlacementProblem, options: dict[str, Any]
) -> None:
    """Placements take as long as the simulation says, under every option."""
    problem = with_options(problem, options)
    for degrees in all_degrees(problem):
        placement = attempt(problem, degrees)
        if placement is None:
            continue
        sizes = [len(stage.layers) for stage in placement.stages]
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        expected = Simulation(problem, degrees).time_s(starts)
        assert placement.time_per_batch_s == pytest.approx(expected, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(with_experts(problems(most_layers=5, most_devices=8)), OPTIONS)
def test_solved_equals_brute_force(problem: PlacementProblem, options: dict[str, Any]) -> None:
    """No degrees and no split are faster under the true cost, simulated."""
    problem = with_options(problem, options)
    best, placement = best_s(problem), attempt(problem, None)
    assert (best is None) == (placement is None)
    if placement is not None:
        assert placement.time_per_batch_s == pytest.approx(best, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(problems(most_layers=5, most_devices=8), OPTIONS, st.sampled_from([0.0, 0.2, 1.0]))
def test_overlap_is_never_slower_than_none(
    problem: PlacementProblem, options: dict[str, Any], core_share: float
) -> None:
    """Whatever it takes from the cores, communication beside compute costs no more than after."""
    problem = replace(with_options(problem, options), collective_core_share=core_share)
    apart = replace(problem, training=replace(problem.training, overlap="none"))
    for degrees in all_degrees(problem):
        beside, after = attempt(problem, degrees), attempt(apart, degrees)
        assert (beside is None) == (after is None)
        if beside is not None and after is not None:
            assert beside.time_per_batch_s <= after.time_per_batch_s * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(
    problems(most_layers=5, most_devices=8),
    OPTIONS,
    st.sampled_from([0.0, 0.2, 1.0]),
    st.integers(1, 2),
)
def test_partial_overlap_lies_between(
    problem: PlacementProblem, options: dict[str, Any], core_share: float, interleave: int
) -> None:
    """Of none and data: gradients as without overlap, gathers nearly as with it."""
    if interleave > 1:
        options = {**options, "pipeline_schedule": "interleaved", "interleave": interleave}
    problem = replace(with_options(problem, options), collective_core_share=core_share)
    for degrees in all_degrees(problem):
        times_s = []
        for overlap in ("data", "partial", "none"):
            training = replace(problem.training, overlap=overlap)
            placed = attempt(replace(problem, training=training), degrees)
            times_s.append(0.0 if placed is None else placed.time_per_batch_s)
        assert times_s[0] <= times_s[1] * (1 + 1e-9)
        assert times_s[1] <= times_s[2] * (1 + 1e-9)


def test_partial_overlap_hides_a_share_of_the_gathers() -> None:
    """Of what data hides; a layer's gradients are not hidden at all."""
    hidden, share = {}, hidden_share()
    assert 0.0 < share < 1.0
    for overlap in ("none", "partial", "data"):
        (stage,) = solve_placement(stack(3, overlap=overlap), Degrees(1, 8, 1)).stages
        hidden[overlap] = {each.kind: each.hidden_s for each in stage.communication}
    gathers = [hidden[overlap]["parameter_gather"] for overlap in hidden]
    assert gathers[0] == 0.0 < gathers[2]
    assert gathers[1] == pytest.approx(share * gathers[2])
    gradients = [hidden[overlap]["gradient_synchronisation"] for overlap in hidden]
    assert gradients[0] == gradients[1] == 0.0 < gradients[2]


@settings(max_examples=25, deadline=None)
@given(problems(most_layers=5, most_devices=8), OPTIONS)
def test_fewer_bytes_of_gradients_are_never_slower(
    problem: PlacementProblem, options: dict[str, Any]
) -> None:
    """And the bytes of the optimizer are what is reduced where nothing is said."""
    problem = with_options(problem, {**options, "optimizer": "adam"})

    def placed(dtype: Any) -> Placement | None:
        training = replace(problem.training, gradient_dtype=dtype)
        return attempt(replace(problem, training=training), None)

    own, full, half = placed(None), placed("fp32"), placed("bf16")
    assert own == full
    if half is not None and full is not None:
        assert half.time_per_batch_s <= full.time_per_batch_s * (1 + 1e-9)
        sent = [
            sum(each.sent_bytes for stage in of.stages for each in stage.communication)
            for of in (half, full)
        ]
        if half.degrees == full.degrees and options["zero"] == 0 and half.pipeline == 1:
            assert sent[0] == pytest.approx(sent[1] / 2.0)


@settings(max_examples=60, deadline=None)
@given(problems(most_layers=5, most_devices=8), OPTIONS)
def test_communication_adds_up(problem: PlacementProblem, options: dict[str, Any]) -> None:
    """Exposed is at most all, nothing is negative, and the breakdown sums to the time."""
    placement = attempt(with_options(problem, options), None)
    if placement is None:
        return
    for stage in placement.stages:
        for each in stage.communication:
            assert -1e-12 <= each.exposed_s <= each.total_s * (1 + 1e-9) + 1e-12, each
            assert each.sent_bytes >= 0.0
    parts = placement.time_breakdown_s
    assert sum(parts.values()) == pytest.approx(placement.time_per_batch_s, rel=1e-9)
    assert min(parts.values()) >= 0.0


def stack(zero: int, microbatches: int = 4, **options: Any) -> PlacementProblem:
    """Return six equal layers on eight devices with a flat network."""
    layer = LayerCost("", LayerPasses.of(1.0, 2.0), 1000, 0, 10, 5, 8)
    return PlacementProblem(
        layers={1: tuple(replace(layer, name=f"block.{index}") for index in range(6))},
        edges=tuple((index, index + 1) for index in range(5)),
        cluster=Cluster("flat", (NetworkLevel(1e4, 0.0, "switch"),), 8),
        training=Training(8 * microbatches, optimizer="adam", zero=zero, **options),
        hbm_usable_bytes=1e9,
        hbm_bytes_per_s=1e15,
    )


@pytest.mark.parametrize("overlap", ["none", "data"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_volumes_are_the_published_ones(zero: int, overlap: str) -> None:
    """Per device, of Ψ parameters with 4-byte gradients and 2-byte weights (Rajbhandari, 2020).

    ZeRO 0 sends the gradients twice, ZeRO 1 gradients and weights once; ZeRO 2 gradients and ZeRO 3
    gradients and twice the weights, for every microbatch.
    """
    (stage,) = solve_placement(stack(zero, overlap=overlap), Degrees(1, 8, 1)).stages
    sent = {each.kind: each.sent_bytes for each in stage.communication}
    share, parameters, m = 7 / 8, 6000, 4
    adam = OPTIMIZERS["adam"]
    gradients = share * parameters * adam.gradient_bytes
    weights = share * parameters * adam.weight_bytes
    expected = {0: 2 * gradients, 1: gradients, 2: m * gradients, 3: m * gradients}[zero]
    assert sent["gradient_synchronisation"] == pytest.approx(expected)
    gathers = {0: None, 1: weights, 2: weights, 3: 2 * m * weights}[zero]
    assert sent.get("parameter_gather") == (None if gathers is None else pytest.approx(gathers))


def test_long_backwards_hide_all_gradients_but_the_last() -> None:
    """Six layers of 2 s hide transfers of 0.7 s each, but for the one of the first layer."""
    slow = solve_placement(stack(0, overlap="none"), Degrees(1, 8, 1))
    fast = solve_placement(stack(0), Degrees(1, 8, 1))
    one_layer_s = 2 * 7 / 8 * 1000 * 4 / 1e4
    assert slow.time_breakdown_s["gradient_synchronisation"] == pytest.approx(6 * one_layer_s)
    assert fast.time_breakdown_s["gradient_synchronisation"] == pytest.approx(one_layer_s)
    assert fast.time_per_batch_s < slow.time_per_batch_s


def test_cores_that_communicate_are_missed() -> None:
    """With a tenth of the cores on the network, hidden seconds cost a tenth of themselves."""
    free = solve_placement(stack(0), Degrees(1, 8, 1))
    shared = solve_placement(replace(stack(0), collective_core_share=0.1), Degrees(1, 8, 1))
    (hidden_s,) = [
        each.hidden_s
        for each in free.stages[0].communication
        if each.kind == "gradient_synchronisation"
    ]
    assert shared.time_per_batch_s - free.time_per_batch_s == pytest.approx(0.1 * hidden_s)


def test_the_first_microbatch_accumulates_nothing() -> None:
    """Gradients are added up from the second microbatch on; a single one has nothing to add."""
    problem = replace(stack(0, overlap="none"), hbm_bytes_per_s=1e5)
    placement = solve_placement(problem, Degrees(1, 8, 1))
    accumulation_s = 6000 * 8 / 1e5
    assert placement.time_breakdown_s["gradient_accumulation"] == pytest.approx(3 * accumulation_s)
    single = replace(stack(0, microbatches=1, overlap="none"), hbm_bytes_per_s=1e5)
    assert (
        solve_placement(single, Degrees(1, 8, 1)).time_breakdown_s["gradient_accumulation"] == 0.0
    )


def test_messages_are_split_over_the_tensor_group() -> None:
    """Each of four devices sends a quarter over the slow link and gathers over the fast one."""
    layer = LayerCost("", LayerPasses.of(1.0, 2.0), 10, 0, 10, 5, 8000)
    levels = (NetworkLevel(1e6, 0.0, "switch", 4), NetworkLevel(1e3, 0.0, "switch"))
    problem = replace(
        stack(0),
        layers={4: tuple(replace(layer, name=f"block.{index}") for index in range(6))},
        cluster=Cluster("nodes", levels, 8),
    )
    split = solve_placement(problem, Degrees(2, 1, 4)).stages[1].communication[0]
    gathered_s = 3 / 4 * 8000 / 1e6
    messages = problem.training.microbatches(1)
    assert split.total_s == pytest.approx(messages * (2000 / 1e3 + gathered_s))
    whole = replace(problem, training=replace(problem.training, sequence_parallel=True))
    (sent,) = solve_placement(whole, Degrees(2, 1, 4)).stages[1].communication[:1]
    assert sent.total_s == pytest.approx(messages * 8000 / 1e3)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaved_overlap_hides_more_and_costs_no_more(zero: int, chunks: int) -> None:
    """Under the interleaved schedule overlap is no slower either, and hides something."""
    options: dict[str, Any] = {"pipeline_schedule": "interleaved", "interleave": chunks}
    twice = {1: stack(zero).layers[1] + stack(zero).layers[1]}
    none, data = (
        solve_placement(
            replace(stack(zero, overlap=overlap, **options), layers=twice), Degrees(2, 4, 1)
        )
        for overlap in ("none", "data")
    )
    assert data.time_per_batch_s < none.time_per_batch_s
    for stage in data.stages:
        assert all(each.exposed_s <= each.total_s * (1 + 1e-9) for each in stage.communication)
        assert any(each.hidden_s > 0.0 for each in stage.communication)
