"""What operators need in the global buffer, and what may stay in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.estimator.estimate import estimate_on_cores
from phaze_opt.estimator.gemm_traffic import repeated_bytes
from phaze_opt.estimator.single import gemm_graph
from phaze_opt.estimator.working_sets import (
    LEAST_STAGED_BYTES,
    kept_tensors,
    saved_bytes,
    working_sets,
)
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.units import MIB
from phaze_opt.workload.graph import (
    Collective,
    Gemm,
    Operator,
    OperatorGraph,
    Tensor,
    TensorRead,
    VectorWork,
)
from tests.workload.graphs import Moved, graph_of

sizes = st.integers(1, 8192)
gemms = st.builds(Gemm, sizes, sizes, sizes, st.sampled_from([1, 7]))


@given(gemms, st.sampled_from([2, 8, 12, 32, 128]))
def test_the_levels_of_a_product(gemm: Gemm, glb_mib: int) -> None:
    """Level 0 is that of the estimate; every level fits, and less room never means less traffic."""
    chip = load_accelerator("tpuv4-lanes", glb_mib=glb_mib)
    graph = gemm_graph(gemm)
    sets = working_sets(graph, chip)
    operands = 2 * np.array([gemm.m * gemm.k, gemm.k * gemm.n], dtype=np.float64)
    traffic = gemm.batch * (sets.operand_reads[0] * operands).sum(axis=-1)
    result = 2 * gemm.m * gemm.n * gemm.batch
    again = repeated_bytes(gemm.m, gemm.n, gemm.k, 2.0, float(chip.glb_bytes)) * gemm.batch
    assert np.isclose(traffic[0], gemm.batch * operands.sum() + again, rtol=1e-12)
    assert np.allclose(traffic - traffic[0], sets.extra_bytes[0], rtol=1e-9, atol=1.0)
    assert (sets.extra_bytes >= -1e-6 * traffic[0]).all()
    assert (sets.operand_reads >= 1.0).all()
    assert (sets.working_bytes <= chip.glb_bytes).all()
    hbm_s = estimate_on_cores(graph, chip, chip.num_tc).hbm_s[0]
    assert np.isclose(hbm_s * chip.sustained_hbm_bytes_per_s, traffic[0] + result, rtol=1e-9)


@given(gemms, st.sampled_from([2, 8, 32]))
def test_a_larger_buffer_has_the_levels_of_a_smaller_one(gemm: Gemm, glb_mib: int) -> None:
    """Or one that needs no more room and reads neither operand more often."""
    graph = gemm_graph(gemm)
    small, large = (
        working_sets(graph, load_accelerator("tpuv4-lanes", glb_mib=size))
        for size in (glb_mib, 2 * glb_mib)
    )
    for room, reads in zip(small.working_bytes[0], small.operand_reads[0], strict=True):
        fits = large.working_bytes[0] <= room
        assert (fits & (large.operand_reads[0] <= reads).all(axis=-1)).any()


@given(st.booleans(), st.sampled_from([1, 2, 8, 128]), st.integers(1, 2**24), st.integers(1, 2**20))
def test_more_vector_cores_need_no_more_room(
    is_fused: bool, cores: int, moved_bytes: int, rows: int
) -> None:
    """Alone they may be used in part; in a fused core they work on what comes from the arrays.

    Buffers that are small in any case are not looked at.
    """
    core = (Gemm(64, 64, 64), Gemm(64, 64, 64)) if is_fused else ()
    work = (VectorWork("softmax", rows, 64),)
    graph = graph_of([Moved(Operator("op", core, work), moved_bytes)])
    fewer = load_accelerator("tpuv4-lanes", num_vc=cores)
    few, many = (working_sets(graph, replace(fewer, num_vc=count)) for count in (cores, 2 * cores))
    for room, factor in zip(few.working_bytes[0], few.lane_factor[0], strict=True):
        # Twice the lanes take at least half as long, rounded up to whole rounds.
        as_fast = many.lane_factor[0] <= 2.0 * factor
        assert ((many.working_bytes[0] <= max(room, LEAST_STAGED_BYTES)) & as_fast).any()


def test_who_saves_what_where_a_tensor_stays() -> None:
    """A product saves its repeated reads of an operand; a collective is left out."""
    elements = 4096 * 4096
    size = 2 * elements
    operators = (
        Operator("v"),
        Operator("product", gemms=(Gemm(4096, 4096, 4096),)),
        Operator("n", collective=Collective("all_reduce", size)),
    )
    vector, product, network = (TensorRead(index, elements) for index in range(3))
    first, second = replace(product, first_operand=True), replace(product, second_operand=True)
    graph = OperatorGraph(
        operators,
        (
            Tensor(elements, writers=((0, elements),), readers=(first, network)),
            Tensor(elements, writers=((2, elements),), readers=(product,)),
            Tensor(elements, readers=(vector, second)),
            Tensor(elements, readers=(vector, network)),
        ),
    )
    chip = load_accelerator("tpuv4-lanes", glb_mib=8)
    kept = kept_tensors(graph)
    assert [tensor.outlives for tensor in kept] == [True, True]
    assert [[read.operator for read in tensor.readers] for tensor in kept] == [[1], [0, 1]]
    sets = working_sets(graph, chip)
    saved = saved_bytes(graph, sets)
    assert saved.shape == (4, sets.extra_bytes.shape[1])
    assert (saved[0] == size).all() and (saved[2] == size).all()
    assert (saved[1] == size * sets.operand_reads[1, :, 0]).all()
    assert (saved[3] == size * sets.operand_reads[1, :, 1]).all()
    assert chip.glb_bytes == 8 * MIB and saved.max() > size


def test_what_several_operators_write_together_is_kept_in_parts() -> None:
    """Each part from its own writer on; readers save their share of each."""
    operators = tuple(map(Operator, ("w0", "w1", "w2", "r")))
    written = (0, 10), (1, 10), (2, 10)
    tensor = Tensor(30, "uint8", writers=written, readers=(TensorRead(3, 30),))
    kept = kept_tensors(OperatorGraph(operators, (tensor,)))
    assert [tensor.size_bytes for tensor in kept] == [10, 10, 10]
    assert [tensor.readers[0].bytes for tensor in kept] == [10.0, 10.0, 10.0]
