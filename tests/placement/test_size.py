"""Memory of a placement: known before it is taken, and refused where it is too much."""

from __future__ import annotations

import gc
import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.degrees import Degrees
from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_DEVICES, MOST_PLACEMENT_BYTES
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement import candidate_costs
from phaze_opt.placement.candidates import _size_of_degree, candidate_grids
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.size import ONE_CANDIDATE, placement_bytes
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.training import Training
from tests.placement.strategies import problems
from tests.placement.test_solve_placement import solved

TENSOR_DEGREES = (1, 2, 4, 8)


def chain(layers: int, network: str, devices: int, zero: int = 0) -> PlacementProblem:
    """Return a model of equal layers, at the tensor degrees that a transformer has."""
    block = LayerCost("block", LayerPasses.of(1e-3, 2e-3), 10**6, 0, 10**5, 10**5, 10**5)
    return PlacementProblem(
        layers=dict.fromkeys(TENSOR_DEGREES, layers * (block,)),
        edges=tuple((index, index + 1) for index in range(layers - 1)),
        cluster=load_cluster(network, devices),
        training=Training(4 * devices, 1, zero=zero),
        hbm_usable_bytes=8e9,
        hbm_bytes_per_s=1e12,
        step_parameters_per_s=1e12,
        accumulation_parameters_per_s=1e12,
    )


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([0, 1, 3]), st.booleans())
def test_candidates_are_counted_without_listing_them(
    problem: PlacementProblem, zero: int, has_levels: bool
) -> None:
    """As many classes as there are, and numbers of replicas."""
    cluster, training = problem.cluster, replace(problem.training, zero=zero)
    if has_levels:
        (outer,) = cluster.levels
        cluster = replace(cluster, levels=(replace(outer, group_size=4), outer))
    problem = replace(problem, cluster=cluster, training=training)
    layers = len(problem.layers[min(problem.layers)])
    grids = candidate_grids(problem)
    for tensor_degree in problem.layers:
        size = _size_of_degree(tensor_degree, layers, cluster, training)
        of_degree = [grid for grid in grids if grid.tensor == tensor_degree]
        assert size.classes == sum(len(grid.data) for grid in of_degree)
        assert size.replicas == len({data for grid in of_degree for data in grid.data.tolist()})


@pytest.mark.parametrize(
    ("network", "layers", "devices", "zero"),
    [
        ("tpuv4-ici-flat", 300, 64, 0),
        ("tpuv4-ici-flat", 150, 256, 1),
        ("dgx-a100", 26, 4096, 0),
        ("dgx-a100", 26, 2048, 3),
    ],
)
def test_no_placement_takes_more(network: str, layers: int, devices: int, zero: int) -> None:
    """The bound holds, of chains and of numbers of replicas, and is none out of the air."""
    problem = chain(layers, network, devices, zero)
    sizes = [
        _size_of_degree(tensor_degree, layers, problem.cluster, problem.training)
        for tensor_degree in TENSOR_DEGREES
    ]
    gc.collect()
    tracemalloc.start()
    solve_placement(problem)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < placement_bytes(layers, sizes) < 10**9


@pytest.mark.parametrize(
    ("network", "layers", "devices", "zero", "words"),
    [
        ("dgx-a100", 26, 10**6, 2, r"1,000,000 devices may need 5\.\d GB .* fewer devices or a"),
        ("tpuv4-ici-flat", 10_000, 1024, 1, r"10,000 layers .* 7\d\.\d GB .* fewer layers\."),
        ("tpuv4-ici-flat", 3_000, 1024, 1, r"3,000 layers .* or --placement PPxDPxTP\."),
    ],
)
def test_what_is_too_large_is_refused_before_it_is_made(
    network: str, layers: int, devices: int, zero: int, words: str
) -> None:
    """With what it would need, and what needs less; at once, and in no memory to speak of."""
    problem = chain(layers, network, devices, zero)
    tracemalloc.start()
    started_s = time.process_time()
    with pytest.raises(InputError, match=words):
        solve_placement(problem)
    spent_s = time.process_time() - started_s
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 2**20 and spent_s < 1.0


def test_given_degrees_need_less() -> None:
    """One candidate at one tensor degree; but a chain of 10,000 layers is too long for it, too."""
    assert placement_bytes(3_000, [ONE_CANDIDATE]) < MOST_PLACEMENT_BYTES
    with pytest.raises(InputError, match=r"10,000 layers .* 19\.\d GB .* fewer layers\."):
        solve_placement(chain(10_000, "tpuv4-ici-flat", 1024), Degrees(8, 128, 1))


@pytest.mark.parametrize(
    ("network", "layers", "devices", "zero"),
    [
        ("tpuv4-ici-flat", 26, MOST_DEVICES, 0),
        ("tpuv4-ici-flat", 98, MOST_DEVICES, 0),
        ("tpuv4-ici-flat", 1_002, 1024, 0),
        ("dgx-a100", 1_002, 1024, 1),
        ("dgx-a100", 26, 2**18, 0),
        ("dgx-a100", 98, MOST_DEVICES, 0),
        ("nvl72", 98, MOST_DEVICES, 0),
        ("trn2-efa", 98, MOST_DEVICES, 0),
        ("nvl72", 98, 2**16, 1),
    ],
)
def test_what_works_well_is_not_refused(network: str, layers: int, devices: int, zero: int) -> None:
    """Any number of devices that switches join, and chains of 1,000 layers."""
    cluster, training = load_cluster(network, devices), Training(4 * devices, 1, zero=zero)
    sizes = [
        _size_of_degree(tensor_degree, layers, cluster, training)
        for tensor_degree in TENSOR_DEGREES
    ]
    assert placement_bytes(layers, sizes) < MOST_PLACEMENT_BYTES


@settings(max_examples=25, deadline=None)
@given(problems(), st.sampled_from([0, 1, 3]))
def test_tables_that_are_forgotten_are_made_again(problem: PlacementProblem, zero: int) -> None:
    """The answer does not depend on how many are kept."""
    problem = replace(problem, training=replace(problem.training, zero=zero))
    expected = solved(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidate_costs, "MOST_KEPT_BYTES", 1)
        assert solved(problem) == expected


@pytest.mark.parametrize("network", ["dgx-a100", "nvl72"])
def test_a_million_replicas_that_share_states(network: str) -> None:
    """In classes, in seconds; what these leave out is next to nothing."""
    started_s = time.process_time()
    placement = solve_placement(chain(26, network, 10**6, zero=1))
    assert time.process_time() - started_s < 20.0
    assert placement.gap is not None and 0.0 <= placement.gap < 1e-4
