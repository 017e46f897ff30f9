from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.training import Training
from tests.placement.strategies import all_degrees, problems, scaled


def solved(problem: PlacementProblem) -> Placement | None:
    """Return the placement, or nothing where none fits."""
    try:
        return solve_placement(problem)
    except InfeasibleError:
        return None


@settings(max_examples=25, deadline=None)
@given(problems())
def test_never_worse_than_given_degrees(problem: PlacementProblem) -> None:
    """No even split of any degrees is faster than the answer, and none fits where it does not."""
    placement = solved(problem)
    for degrees in all_degrees(problem):
        try:
            given_one = solve_placement(problem, degrees)
        except InfeasibleError:
            continue
        assert placement is not None
        limit = given_one.time_per_batch_s * (1 + 1e-12)
        assert placement.time_per_batch_s <= limit


@settings(max_examples=30, deadline=None)
@given(problems(most_layers=4), st.floats(1.0, 10.0))
def test_a_faster_inner_level_never_hurts(problem: PlacementProblem, factor: float) -> None:
    """More bandwidth inside nodes of four makes no given degrees slower."""
    (outer,) = problem.cluster.levels
    times: list[list[float]] = []
    for gain in (1.0, factor):
        inner = replace(
            outer, bandwidth_bytes_per_s=2 * gain * outer.bandwidth_bytes_per_s, group_size=4
        )
        levels = replace(problem, cluster=replace(problem.cluster, levels=(inner, outer)))
        times.append([])
        for degrees in all_degrees(levels):
            try:
                times[-1].append(solve_placement(levels, degrees).time_per_batch_s)
            except InfeasibleError:
                times[-1].append(float("inf"))
    assert all(after <= before * (1 + 1e-12) for before, after in zip(*times, strict=True))


@settings(max_examples=30, deadline=None)
@given(problems())
def test_breakdown_is_that_of_the_heaviest_stage(problem: PlacementProblem) -> None:
    """Work and what follows the last backward are those of the stage with the largest load."""
    placement = solved(problem)
    if placement is not None:
        heaviest = max(placement.stages, key=lambda stage: stage.load_s)
        parts = dict(placement.time_breakdown_s)
        assert parts.pop("optimizer") == heaviest.optimizer_s
        assert parts.pop("gradient_synchronisation") == heaviest.synchronisation_s
        del parts["bubble"]
        # The first microbatch adds nothing to the gradients of others.
        busy_s = placement.microbatches * heaviest.load_s - heaviest.work[0].first_saving_s
        assert sum(parts.values()) == pytest.approx(busy_s)


@settings(max_examples=30, deadline=None)
@given(problems())
def test_breakdown_sums_to_the_time(problem: PlacementProblem) -> None:
    """The parts along the stage with the largest load sum to the time, and none is negative."""
    placement = solved(problem)
    if placement is not None:
        parts = placement.time_breakdown_s
        assert sum(parts.values()) == pytest.approx(placement.time_per_batch_s, rel=1e-9)
        assert min(parts.values()) >= 0.0


@settings(max_examples=30, deadline=None)
@given(problems())
def test_every_stage_fits(problem: PlacementProblem) -> None:
    """Stages hold all layers in order, within memory, devices and batch."""
    placement = solved(problem)
    if placement is None:
        return
    names = [name for stage in placement.stages for name in stage.layers]
    assert names == [layer.name for layer in problem.layers[placement.tensor]]
    assert all(stage.memory_bytes.total <= problem.hbm_usable_bytes for stage in placement.stages)
    used = placement.pipeline * placement.data * placement.tensor
    assert used <= problem.cluster.devices
    assert placement.data * problem.training.microbatch <= problem.training.global_batch


@settings(max_examples=30, deadline=None)
@given(problems(forward_share=1 / 3))
def test_more_devices_are_never_slower(problem: PlacementProblem) -> None:
    """Twice the devices give the same time or less."""
    placement = solved(problem)
    if placement is not None:
        cluster = replace(problem.cluster, devices=2 * problem.cluster.devices)
        more = solve_placement(replace(problem, cluster=cluster))
        assert more.time_per_batch_s <= placement.time_per_batch_s * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(problems(forward_share=1 / 3))
def test_more_memory_is_never_slower(problem: PlacementProblem) -> None:
    """Twice the memory keeps a feasible problem feasible, and takes the same time or less."""
    placement = solved(problem)
    if placement is not None:
        larger = replace(problem, hbm_usable_bytes=2 * problem.hbm_usable_bytes)
        more = solve_placement(larger)
        assert more.time_per_batch_s <= placement.time_per_batch_s * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(problems(forward_share=1 / 3), st.sampled_from([1.5, 10.0]))
def test_more_bandwidth_is_never_slower(problem: PlacementProblem, factor: float) -> None:
    """A faster network and HBM give the same time or less."""
    placement = solved(problem)
    if placement is not None:
        levels = tuple(
            replace(level, bandwidth_bytes_per_s=factor * level.bandwidth_bytes_per_s)
            for level in problem.cluster.levels
        )
        faster = replace(
            problem,
            cluster=replace(problem.cluster, levels=levels),
            hbm_bytes_per_s=factor * problem.hbm_bytes_per_s,
        )
        more = solve_placement(faster)
        assert more.time_per_batch_s <= placement.time_per_batch_s * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from([2.0**-30, 2.0**30]))
def test_time_units_do_not_matter(problem: PlacementProblem, scale: float) -> None:
    """Tiny and huge time units give the same split and the scaled time.

    Powers of two scale without rounding, so that ties stay ties.
    """
    level = problem.cluster.levels[0]
    slower = replace(
        level,
        bandwidth_bytes_per_s=level.bandwidth_bytes_per_s / scale,
        latency_s=level.latency_s * scale,
    )
    slow = replace(
        problem,
        layers={
            tensor_degree: tuple(
                replace(layer, passes=scaled(layer.passes, scale)) for layer in layers
            )
            for tensor_degree, layers in problem.layers.items()
        },
        cluster=replace(problem.cluster, levels=(slower,)),
        hbm_bytes_per_s=problem.hbm_bytes_per_s / scale,
        step_parameters_per_s=problem.step_parameters_per_s / scale,
        accumulation_parameters_per_s=problem.accumulation_parameters_per_s / scale,
    )
    first, second = solved(problem), solved(slow)
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert second.time_per_batch_s == pytest.approx(first.time_per_batch_s * scale, rel=1e-9)
        assert [stage.layers for stage in second.stages] == [s.layers for s in first.stages]


def chain(hbm_usable_bytes: float = 1e6) -> PlacementProblem:
    """Return four equal layers with an embedding and a head on eight devices."""
    layer = LayerCost("", LayerPasses.of(1.0, 2.0), 100, 0, 10, 5, 8)
    names = ["embedding", *(f"block.{index}" for index in range(4)), "head"]
    level = NetworkLevel(1e3, 0.0, "switch")
    return PlacementProblem(
        layers={1: tuple(replace(layer, name=name) for name in names)},
        edges=tuple((index, index + 1) for index in range(5)),
        cluster=Cluster("flat", (level,), 8),
        training=Training(global_batch=16),
        hbm_usable_bytes=hbm_usable_bytes,
        hbm_bytes_per_s=1e6,
    )


@pytest.mark.parametrize("degrees", [None, Degrees(2, 4, 1)])
def test_a_problem_may_name_its_layers(degrees: Degrees | None) -> None:
    """Stages, and the reason why nothing fits, have the names that the layers could have had."""
    for problem in (chain(), chain(hbm_usable_bytes=700.0)):
        unnamed = tuple([layer.with_fields(name="kind") for layer in problem.layers[1]])
        named = replace(problem, layers={1: unnamed}, names=problem.names_of(1))
        answers = []
        for variant in (problem, named):
            try:
                answers.append(repr(solve_placement(variant, degrees).stages))
            except InfeasibleError as error:
                answers.append(str(error))
        assert answers[0] == answers[1]
        assert "block.0" in answers[0] or "embedding" in answers[0]


def test_given_degrees_split_the_repeated_layers_evenly() -> None:
    """Embedding and head stay outside of the count where the layers between are repeated."""
    problem = chain()
    special = problem.layers[1]
    layers = (
        replace(special[0], passes=LayerPasses.of(0.1, 2.0)),
        *special[1:-1],
        replace(special[-1], passes=LayerPasses.of(0.5, 2.0)),
    )
    placement = solve_placement(replace(problem, layers={1: layers}), Degrees(2, 4, 1))
    assert [len(stage.layers) for stage in placement.stages] == [3, 3]
    assert (placement.pipeline, placement.data, placement.tensor) == (2, 4, 1)
    assert placement.microbatches == 4


@pytest.mark.parametrize(
    ("degrees", "error", "message"),
    [
        (Degrees(2, 4, 3), InputError, "tensor degree 3"),  # a tensor degree that was not captured
        (Degrees(0, 4, 1), InputError, "at least 1"),  # no stages
        (
            Degrees(4, 4, 1),
            InfeasibleError,
            "needs 16 devices, but there are 8",
        ),  # too many devices
        (Degrees(8, 1, 1), InfeasibleError, "more stages than the 6 layers"),  # too many stages
    ],
)
def test_degrees_that_cannot_run(degrees: Degrees, error: type[Exception], message: str) -> None:
    """Given degrees that cannot run are refused with the reason."""
    with pytest.raises(error, match=message):
        solve_placement(chain(), degrees)


def test_data_degree_above_the_batch() -> None:
    """More replicas than samples are infeasible, with the batch that they would need."""
    problem = replace(chain(), training=Training(global_batch=4, microbatch=2))
    with pytest.raises(InfeasibleError, match="global batch of at least 8"):
        solve_placement(problem, Degrees(1, 4, 1))


def test_misfit_names_stage_and_bytes() -> None:
    """An infeasible split says which stage does not fit and by how much."""
    with pytest.raises(InfeasibleError, match=r"Stage 1 of 2 .* more than the usable 1000 B"):
        solve_placement(chain(hbm_usable_bytes=1000.0), Degrees(2, 1, 1))


def test_misfit_of_a_single_layer() -> None:
    """Where a layer alone does not fit, the layer is named."""
    with pytest.raises(InfeasibleError, match=r"Layer 'embedding' alone.* more than the usable"):
        solve_placement(chain(hbm_usable_bytes=100.0))


def test_both_rank_orders_are_tried_on_a_hierarchy() -> None:
    """On two levels the answer is no worse than on a flat network as slow as the outer one."""
    problem = chain()
    inner = NetworkLevel(1e5, 0.0, "switch", 4)
    outer = NetworkLevel(1e3, 0.0, "switch")
    both = replace(problem, cluster=Cluster("two levels", (inner, outer), 8))
    flat = replace(problem, cluster=Cluster("flat", (outer,), 8))
    assert solve_placement(both).time_per_batch_s <= solve_placement(flat).time_per_batch_s


def test_bad_graphs_are_refused() -> None:
    """Edges must go forward between existing layers."""
    with pytest.raises(InputError, match="must go forward"):
        solve_placement(replace(chain(), edges=((1, 0),)))


def test_uses_fewest_devices_among_equals() -> None:
    """Where more devices change nothing, they are left unused."""
    problem = replace(chain(), training=Training(global_batch=1))
    placement = solve_placement(problem)
    assert placement.pipeline * placement.data * placement.tensor == 1


def test_torus_slice_is_used() -> None:
    """A preset torus works as a cluster of any number of devices."""
    problem = replace(chain(), cluster=load_cluster("tpuv4-torus", 8))
    assert solve_placement(problem).time_per_batch_s > 0


def test_a_stage_without_stash_may_fill_the_memory() -> None:
    """What exactly fills the memory fits; one byte less does not."""
    layer = LayerCost("layer", LayerPasses.of(1.0, 2.0), 10, 0, 0, 0, 0)
    problem = PlacementProblem(
        layers={1: (layer,)},
        edges=(),
        cluster=load_cluster("flat-4GiB", 1),
        training=Training(4, 1),
        hbm_usable_bytes=40.0,
        hbm_bytes_per_s=1e12,
        step_parameters_per_s=1e12,
        accumulation_parameters_per_s=1e12,
    )
    assert solve_placement(problem).stages[0].memory_bytes.total == 40
    with pytest.raises(InfeasibleError):
        solve_placement(replace(problem, hbm_usable_bytes=39.0))
