import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.estimator.estimate import RESOURCES, ModeEstimate, estimate_each
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import energy_constants
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.presets import load_cluster
from phaze_opt.units import MIB
from phaze_opt.workload.graph import (
    Collective,
    Gemm,
    Operator,
    OperatorGraph,
    VectorWork,
    side_by_side,
)
from tests.estimator.products import estimate
from tests.strategies import accelerators, gemms
from tests.workload.graphs import Moved, graph_of

CLUSTER = Cluster("test", (NetworkLevel(100e9, 1e-6, "switch"),), devices=8)


def product(gemm: Gemm, *epilogue: VectorWork) -> Moved:
    """Make an operator around one product with its compulsory traffic."""
    return Moved(
        Operator("mm", gemms=(gemm,), vector=epilogue),
        2 * gemm.batch * (gemm.m * gemm.k + gemm.k * gemm.n),
        2 * gemm.batch * gemm.m * gemm.n,
    )


vector_operators = st.builds(
    lambda kind, rows, columns: Moved(
        Operator("vector", vector=(VectorWork(kind, rows, columns),)),
        2 * rows * columns,
        2 * rows * columns,
    ),
    st.sampled_from(["softmax", "gelu", "add", "layer_norm"]),
    st.integers(1, 4096),
    st.integers(1, 4096),
)
operators = st.one_of(gemms.map(product), vector_operators)


def binding(mode: ModeEstimate) -> list[str]:
    """Name the resource that binds each operator."""
    return [RESOURCES[index] for index in mode.binding_index()]


def beside(*members: Moved) -> OperatorGraph:
    """Make a graph without edges."""
    return side_by_side(tuple([graph_of([member]) for member in members]))


@given(st.lists(operators, min_size=1, max_size=6), accelerators)
def test_latency_is_never_below_any_roofline(
    members: list[Moved], accelerator: Accelerator
) -> None:
    """HBM traffic, multiply-accumulates and the constant per operator bound from below."""
    every = estimate(beside(*members), accelerator, CLUSTER).all_cores
    for index, (operator, read_bytes, write_bytes, _) in enumerate(members):
        traffic_s = (read_bytes + write_bytes) / accelerator.sustained_hbm_bytes_per_s
        compute_s = operator.flops / accelerator.peak_flops_per_s
        overhead_s = accelerator.calibration.operator_overhead_s
        assert every.latency_s[index] >= max(traffic_s, compute_s) + overhead_s


@given(
    st.lists(operators, min_size=1, max_size=6),
    accelerators,
    st.sampled_from(["num_tc", "num_vc", "glb_bytes_per_cycle", "hbm_bytes_per_s", "clock_hz"]),
)
def test_more_of_anything_is_never_slower_on_all_cores(
    members: list[Moved], accelerator: Accelerator, field: str
) -> None:
    """More cores, bandwidth or clock never slow an operator that may use them all."""
    graph = beside(*members)
    more = dataclasses.replace(accelerator, **{field: 2 * getattr(accelerator, field)})
    before = estimate(graph, accelerator, CLUSTER).all_cores.latency_s
    after = estimate(graph, more, CLUSTER).all_cores.latency_s
    assert np.all(after <= before * (1 + 1e-12))


@given(gemms, accelerators)
def test_energy_is_at_least_that_of_the_arithmetic(gemm: Gemm, accelerator: Accelerator) -> None:
    """No product takes less energy than its multiply-accumulates."""
    mode = estimate(beside(product(gemm)), accelerator, CLUSTER).all_cores
    assert mode.energy_j[0] >= gemm.flops / 2 * energy_constants().mac_pj * 1e-12


@given(st.lists(operators, min_size=2, max_size=6), accelerators)
def test_an_operator_does_not_depend_on_its_neighbours(
    members: list[Moved], accelerator: Accelerator
) -> None:
    """A graph's estimates are those of its operators alone, bit for bit."""
    together = estimate(beside(*members), accelerator, CLUSTER)
    for index, operator in enumerate(members):
        alone = estimate(beside(operator), accelerator, CLUSTER)
        assert alone.one_core.latency_s[0] == together.one_core.latency_s[index]
        assert alone.all_cores.energy_j[0] == together.all_cores.energy_j[index]


@given(
    st.lists(st.tuples(st.lists(operators, max_size=3), st.sampled_from([1, 2, 8])), max_size=3),
    accelerators,
)
def test_several_graphs_at_once_are_each_by_itself(
    members: list[tuple[list[Moved], int]], accelerator: Accelerator
) -> None:
    """Graphs that are estimated together have, bit for bit, the numbers of each alone."""
    graphs = [beside(*own) for own, _ in members]
    tensor_degrees = [tensor_degree for _, tensor_degree in members]
    together = estimate_each(graphs, accelerator, CLUSTER, tensor_degrees)
    for graph, tensor_degree, both in zip(graphs, tensor_degrees, together, strict=True):
        alone = estimate(graph, accelerator, CLUSTER, tensor_degree)
        for mode, same in ((both.one_core, alone.one_core), (both.all_cores, alone.all_cores)):
            for values, expected in zip(mode.arrays(), same.arrays(), strict=True):
                assert np.array_equal(values, expected)


def test_a_fused_epilogue_overlaps_with_its_product() -> None:
    """A fused operator takes the longer of its two parts, not their sum."""
    accelerator = Accelerator(
        num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=1024, glb_bytes=128 * MIB
    )
    gemm = Gemm(4096, 4096, 4096)
    gelu = VectorWork("gelu", 4096, 4096)
    mode = estimate(beside(product(gemm), product(gemm, gelu)), accelerator, CLUSTER).all_cores
    assert mode.latency_s[1] == mode.latency_s[0]
    assert mode.vc_s[1] > 0.0
    assert mode.energy_j[1] > mode.energy_j[0]


def test_lanes_bind_softmax_on_the_published_point() -> None:
    """On two cores of 128 lanes softmax waits for the lanes; on 2 × 1024 for the HBM."""
    accelerator = Accelerator(
        num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB
    )
    size = 16 * 512 * 512
    softmax = beside(
        Moved(
            Operator("softmax", vector=(VectorWork("softmax", size // 512, 512),)),
            2 * size,
            2 * size,
        )
    )
    narrow = estimate(softmax, accelerator, CLUSTER).all_cores
    wide = estimate(softmax, dataclasses.replace(accelerator, pe_vc=1024), CLUSTER).all_cores
    assert binding(narrow) == ["lanes"]
    assert narrow.latency_s[0] > 4 * wide.latency_s[0]


def test_a_collective_binds_the_link_and_only_in_a_group() -> None:
    """An all-reduce costs network time with tensor parallelism and only its constant without."""
    accelerator = Accelerator(
        num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB
    )
    graph = beside(Moved(Operator("sum", collective=Collective("all_reduce", 8 * MIB))))
    cluster = load_cluster("tpuv4-ici-flat", 8)
    alone = estimate(graph, accelerator, cluster, tensor_parallel=1).all_cores
    group = estimate(graph, accelerator, cluster, tensor_parallel=4).all_cores
    assert alone.latency_s[0] == accelerator.calibration.operator_overhead_s
    assert group.link_s[0] >= 2 * 3 / 4 * 8 * MIB / 270e9
    assert binding(group) == ["link"]


def test_binding_names_are_the_documented_ones() -> None:
    """Whatever binds has a documented name, an operator without work included."""
    accelerator = Accelerator(num_tc=1, num_vc=1, pe_x=8, pe_y=8, pe_vc=8, glb_bytes=2 * MIB)
    graph = beside(Moved(Operator("view")), product(Gemm(64, 64, 64)))
    assert set(binding(estimate(graph, accelerator, CLUSTER).one_core)) <= set(RESOURCES)


def test_a_private_buffer_too_small_for_one_tile_is_refused() -> None:
    """The error names the buffer and the tile."""
    accelerator = Accelerator(
        num_tc=1, num_vc=1, pe_x=128, pe_y=128, pe_vc=8, glb_bytes=2 * MIB, l2_tc_bytes=2048
    )
    with pytest.raises(InputError, match="l2_tc_bytes is 2048"):
        estimate(beside(product(Gemm(512, 512, 512))), accelerator, CLUSTER)
