"""Pipelines over several kinds of device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import PipelineScheduleName
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement.candidates import Candidate
from phaze_opt.placement.kinds import MOST_LAYERS, KindsCosts, KindsPlacement, solve_kinds
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.placement.stage_kinds import replayed_on_kinds
from phaze_opt.placement.timing import ways_to_gather
from phaze_opt.training import Training
from tests.placement.strategies import all_degrees, all_splits, problems, scaled


def with_devices(problem: PlacementProblem, devices: int) -> PlacementProblem:
    """Return a problem on so many devices."""
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def solve(
    own: list[PlacementProblem], devices: tuple[int, int], known_s: float = np.inf
) -> tuple[KindsPlacement | None, float]:
    """Place layers over two kinds, with messages over the outermost level."""
    level = len(own[0].cluster.levels) - 1
    most = partial(most_of, devices)
    return solve_kinds(own, most, level, known_s)


def most_of(devices: tuple[int, int], each: int) -> list[int]:
    """Return how many stages of some devices each kind has."""
    return [count // each for count in devices]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[PlacementProblem], tuple[int, int]]:
    """Draw a chain on two kinds of device, with times and memories of their own."""
    problem = draw(problems(most_layers=5, most_devices=1))
    devices = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    schedule: PipelineScheduleName = draw(st.sampled_from(["1f1b", "gpipe"]))
    zero = draw(st.sampled_from([0, 0, 1, 2]))
    training = replace(problem.training, pipeline_schedule=schedule, zero=zero, overlap="data")
    problem = with_devices(replace(problem, training=training), sum(devices))
    factors = [draw(st.sampled_from([0.2, 0.7, 1.0, 3.0])) for _ in range(5)]
    layers = {
        tensor: tuple(
            replace(layer, passes=scaled(layer.passes, factor))
            for layer, factor in zip(own, factors, strict=False)
        )
        for tensor, own in problem.layers.items()
    }
    usable = draw(st.sampled_from([500.0, 1000.0, 1e9]))
    other = replace(problem, layers=layers, hbm_usable_bytes=usable, hbm_bytes_per_s=777.0)
    return [problem, other], devices


def all_times_s(own: list[PlacementProblem], devices: tuple[int, int]) -> Iterator[float]:
    """Replay every split of every number of stages on all kinds that it may have, where it fits."""
    costs = [KindsCosts(problem, 0) for problem in own]
    for degrees in all_degrees(own[0]):
        each = degrees.data * degrees.tensor
        most = [count // each for count in devices]
        if 0 in most:
            continue
        candidate = Candidate.of(degrees)
        for starts in all_splits(costs[0].layers, degrees.pipeline):
            layout = Layout.of_starts(candidate, np.array(starts), costs[0].layers)
            fits = [fitting(each_kind, layout) for each_kind in costs]
            for kinds in itertools.product(range(2), repeat=degrees.pipeline):
                if any(kinds.count(kind) > most[kind] for kind in range(2)):
                    continue
                if not all(fits[kind][stage] for stage, kind in enumerate(kinds)):
                    continue
                for way in ways_to_gather(costs[0], layout):
                    yield replayed_on_kinds(costs, way, kinds).time_s


def fitting(costs: KindsCosts, layout: Layout) -> list[bool]:
    """Say which stages of a layout fit the memory of a kind."""
    limit = costs.stages(layout.candidate).held.in_flight_limit[layout.first[0], layout.last[0]]
    return [bool(fits) for fits in limit >= costs.held(layout.candidate)[:0:-1]]


@settings(max_examples=60, deadline=None)
@given(pair=pairs())
def test_no_pipeline_is_faster(
    pair: tuple[list[PlacementProblem], tuple[int, int]],
) -> None:
    """Every degree, split and order of kinds, tried by the event replay; the answer is proven."""
    own, devices = pair
    found, bound_s = solve(own, devices)
    least_s = min(all_times_s(own, devices), default=np.inf)
    if found is None:
        assert least_s == np.inf == bound_s
        return
    assert found.placement.time_per_batch_s == pytest.approx(least_s, rel=1e-9)
    assert found.placement.status == "optimal"
    check(own, devices, found)


def check(own: list[PlacementProblem], devices: tuple[int, int], found: KindsPlacement) -> None:
    """Check what is said of the stages."""
    placement, kinds = found
    assert len(kinds) == placement.pipeline == len(placement.stages)
    assert sum(placement.time_breakdown_s.values()) == pytest.approx(placement.time_per_batch_s)
    each = placement.data * placement.tensor
    for kind, count in enumerate(devices):
        assert kinds.count(kind) * each <= count
    for stage, kind in zip(placement.stages, kinds, strict=True):
        assert stage.memory_bytes.total <= own[kind].hbm_usable_bytes
    names = [name for stage in placement.stages for name in stage.layers]
    assert names == list(own[0].names_of(placement.tensor))


@settings(max_examples=40, deadline=None)
@given(pair=pairs())
def test_equal_kinds_are_one(pair: tuple[list[PlacementProblem], tuple[int, int]]) -> None:
    """A pipeline over two kinds of the same device takes what it takes over one, to the bit."""
    (problem, _), devices = pair
    try:
        one = solve_placement(problem)
    except InfeasibleError:
        one = None
    found, _ = solve([problem, problem], devices)
    if one is None:
        assert found is None
        return
    most = most_of(devices, one.data * one.tensor)
    if found is not None:
        assert found.placement.time_per_batch_s >= one.time_per_batch_s * (1 - 1e-12)
    if 0 not in most and sum(most) >= one.pipeline:
        assert found is not None
        again_s = found.placement.time_per_batch_s
        if [stage.layers for stage in found.placement.stages] == [s.layers for s in one.stages]:
            assert found.placement.degrees != one.degrees or again_s == one.time_per_batch_s
        assert again_s == pytest.approx(one.time_per_batch_s, rel=1e-12)  # of ties, another one


@settings(max_examples=30, deadline=None)
@given(pair=pairs(), more=st.integers(1, 3), kind=st.integers(0, 1))
def test_more_devices_are_never_slower(
    pair: tuple[list[PlacementProblem], tuple[int, int]], more: int, kind: int
) -> None:
    """They may stay unused."""
    own, devices = pair
    found, _ = solve(own, devices)
    larger = (devices[0] + more * (kind == 0), devices[1] + more * (kind == 1))
    again, _ = solve([with_devices(each, sum(larger)) for each in own], larger)
    if found is not None:
        assert again is not None
        time_s = found.placement.time_per_batch_s
        assert again.placement.time_per_batch_s <= time_s * (1 + 1e-9)


def test_what_is_slower_than_known_is_not_found() -> None:
    """Nothing is returned, and the bound is what is known."""
    problem = chain(4)
    found, bound_s = solve([problem, problem], (2, 2))
    assert found is not None and bound_s == found.placement.time_per_batch_s
    assert solve([problem, problem], (2, 2), bound_s) == (None, bound_s)


def test_a_fast_kind_holds_more_layers() -> None:
    """Twice as fast devices hold two thirds of equal layers."""
    slow = chain(12)
    layers = tuple(replace(each, passes=scaled(each.passes, 0.5)) for each in slow.layers[1])
    fast = replace(slow, layers={1: layers})
    found, _ = solve([slow, fast], (1, 1))
    assert found is not None and found.placement.degrees_text == "2x1x1"
    held = dict(
        zip(found.kinds, [len(stage.layers) for stage in found.placement.stages], strict=True)
    )
    assert held == {0: 4, 1: 8}


def test_messages_go_over_the_level_that_is_named() -> None:
    """Whatever the number of stages, a slower level takes longer."""
    problem = chain(4)
    layers = tuple(replace(layer, output_bytes=10**8) for layer in problem.layers[1])
    slow = problem.cluster.levels[0]
    fast = replace(slow, bandwidth_bytes_per_s=1e12, group_size=2)
    far = replace(problem, layers={1: layers}, cluster=Cluster("two", (fast, slow), 4))
    times_s = []
    for level in (0, 1):
        found, _ = solve_kinds([far, far], partial(most_of, (1, 1)), level)
        assert found is not None and found.placement.pipeline == 2
        times_s.append(found.placement.time_per_batch_s)
    near = solve_placement(with_devices(far, 2), Degrees(2, 1, 1))
    assert times_s[0] == near.time_per_batch_s < times_s[1]


def chain(layers: int) -> PlacementProblem:
    """Return equal layers on four devices."""
    own = tuple(
        LayerCost(f"layer.{index}", LayerPasses.of(1.0, 2.0), 1, 0, 1, 0, 0)
        for index in range(layers)
    )
    cluster = Cluster("four", (NetworkLevel(1e9, 0.0, "switch"),), 4)
    edges = tuple((index, index + 1) for index in range(layers - 1))
    return PlacementProblem({1: own}, edges, cluster, Training(64, 1), 1e9, 1e9)


def test_long_chains_are_refused() -> None:
    """And what is no chain."""
    problem = chain(MOST_LAYERS + 1)
    with pytest.raises(InputError, match=f"has {MOST_LAYERS + 1} layers, but over several"):
        solve([problem, problem], (2, 2))
    other = replace(chain(3), edges=((0, 1), (1, 2), (0, 2)))
    with pytest.raises(InputError, match="is no chain"):
        solve([other, other], (2, 2))
