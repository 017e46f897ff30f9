"""Seconds and bytes of operators, against sums over arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.estimator.attention import exposed_share, masked_work
from phaze_opt.estimator.attention_tiles import CoreColumn
from phaze_opt.estimator.chips import chip_column
from phaze_opt.estimator.estimate import (
    PoolWork,
    estimate_on_cores,
    estimate_work,
    work_on_pools,
)
from phaze_opt.estimator.operator_table import OperatorTable, operator_table
from phaze_opt.estimator.operator_work import binding_resources
from phaze_opt.estimator.tensor_core import GemmColumn, pools_of
from phaze_opt.estimator.vector_core import kept_row_bytes, vector_operator
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.units import MIB
from phaze_opt.validation.scans import forward_scan
from phaze_opt.workload.graph import Gemm, Operator, OperatorGraph, VectorWork
from phaze_opt.workload.recurrences import ScanShape
from tests.estimator.test_least_seconds import MODELS, passes
from tests.strategies import any_accelerators
from tests.workload.graphs import Moved, graph_of

FLASH = "gpt:layers=2,hidden=512,heads=8,sequence=512,vocab=1000,attention=flash"


@pytest.mark.parametrize("model", [*MODELS, FLASH])
@settings(max_examples=10, deadline=None)
@given(chips=st.lists(any_accelerators, min_size=1, max_size=4), on_all=st.booleans())
def test_equals_its_definition(model: str, chips: list[Accelerator], on_all: bool) -> None:
    """One loop over chips and operators gives what arrays of all of them do, to the bit."""
    tensor_cores = [chip.num_tc if on_all else 1 for chip in chips]
    vector_cores = np.array([chip.num_vc if on_all else 1 for chip in chips])
    pools = pools_of(chips, tensor_cores)
    for graph in passes(model):
        table = operator_table(graph)
        link_s = np.linspace(0.0, 1e-4, len(table.operators))
        on_pools = work_on_pools(table, pools).rows(pools.which)
        work = estimate_work(table, chips, link_s, on_pools, tensor_cores, vector_cores)
        defined = defined_work(table, chips, link_s, on_pools, np.array(tensor_cores), vector_cores)
        for name, expected in defined.items():
            mode = work.seconds if name.endswith("_s") else work.traffic
            assert np.array_equal(getattr(mode, name), expected), name


@given(rate=st.sampled_from([1e9, 4e10, 1e15]))
def test_threads_move_bytes_of_operators_without_products(rate: float) -> None:
    """A vector operator waits for what its cores have in flight, a product does not."""
    plain = load_accelerator("h100")
    limited = replace(plain, calibration=replace(plain.calibration, vector_core_bytes_per_s=rate))
    for graph in passes(FLASH):
        free, held = (estimate_on_cores(graph, chip, chip.num_vc) for chip in (plain, limited))
        for place, operator in enumerate(graph.operators):
            moved = graph.moved_bytes[place]
            least_s = moved / (rate * plain.num_vc) if not operator.gemms and operator.vector else 0
            assert held.vc_s[place] >= max(free.vc_s[place], least_s * (1 - 1e-12))
            if operator.gemms or least_s == 0:
                assert held.latency_s[place] == free.latency_s[place]
            assert held.hbm_s[place] == free.hbm_s[place]


@given(
    *(st.sampled_from(sizes) for sizes in ((1, 2), (1, 4), (1, 8), (64, 256), (1e9, 2.4e10))),
    st.booleans(),
)
def test_threads_of_a_scan_load_operands_for_every_head(
    batch: int, chunks: int, groups: int, chunk: int, rate: float, on_all: bool
) -> None:
    """Products wait for the operands of all heads, however many share them; others for memory."""
    shape = ScanShape(batch, chunks * chunk, 8, groups, 64, 128, chunk)
    graph, plain = forward_scan(shape), load_accelerator("h100")
    limited, free = (
        replace(plain, calibration=replace(plain.calibration, scan_core_bytes_per_s=each))
        for each in (rate, None)
    )
    cores = plain.num_vc if on_all else 1
    held, without = (estimate_on_cores(graph, chip, cores) for chip in (limited, free))
    tokens = batch * chunks * chunk
    states, scores = 64 * 128 * 4 // chunk, 2 * chunk  # bytes per token and head
    each_head = {
        "chunk_states": 2 * 64 + 2 * 128 + states,
        "pass_states": states + states // 2 + 4,
        "chunk_scan": scores + 2 * 128 + 2 * 64 + states // 2 + 2 * 64,
    }
    for place, operator in enumerate(graph.operators):
        least_s = 0.0
        if operator.id in each_head:
            least_s = each_head[operator.id] * tokens * 8 / (rate * cores)
        elif operator.id == "chunk_scores":
            least_s = (4 * 128 + 4 * chunk) * tokens * groups / (rate * cores)
        assert held.vc_s[place] == pytest.approx(max(without.vc_s[place], least_s), rel=0.01)
        assert held.latency_s[place] >= without.latency_s[place]
        assert held.hbm_s[place] == without.hbm_s[place]


def defined_work(
    table: OperatorTable,
    chips: Sequence[Accelerator],
    link_s: FloatArray,
    on_pools: PoolWork,
    tensor_cores: IntArray,
    vector_cores: IntArray,
) -> dict[str, FloatArray]:
    """Return the fields of `ModeSeconds` and `Traffic`."""

    def summed(owner: IntArray, values: FloatArray) -> FloatArray:
        sums = np.zeros((len(chips), len(table.operators)))
        for place, operator in enumerate(owner):
            sums[:, operator] += values[:, place]
        return sums

    def of_cores(values: FloatArray, column: CoreColumn) -> FloatArray:
        sums = summed(table.gemm_owner, values)
        sums[:, table.attention_owner] = on_pools.attention[:, :, column]
        return sums

    clock_hz = chip_column(chips, "sustained_clock_hz")
    products = on_pools.products[:, table.gemm_kind]
    masked = masked_work(table, chips, on_pools.attention)
    lanes = vector_cores[:, np.newaxis] * chip_column(chips, "pe_vc")
    vc_s = summed(table.vector_owner, np.ceil(masked.elements / lanes) * masked.lane_cycles)
    vc_s /= clock_hz
    exposed_s = exposed_share(table, chips) * vc_s
    tc_s = of_cores(products[:, :, GemmColumn.ARRAY_CYCLES], CoreColumn.ARRAY_CYCLES)
    tc_s = tc_s / chip_column(chips, "array_clock_hz") + exposed_s
    macs = np.broadcast_to(table.product_macs.sum(axis=1), tc_s.shape).copy()
    scores = on_pools.attention[:, :, CoreColumn.SCORES]
    macs[:, table.attention_owner] = scores * table.macs_per_score
    elements = chip_column(chips, "pe_x") * chip_column(chips, "pe_y")
    limited_hz = chip_column(chips, "power_limited_clock_hz")
    seconds_per_mac = 1.0 / (tensor_cores[:, np.newaxis] * elements * limited_hz)
    tc_s = np.maximum(tc_s, macs * seconds_per_mac)
    m, n, k, batch, _ = table.gemms.astype(np.float64).T
    operands, results = 2 * batch * (m * k + k * n), 2 * batch * m * n
    glb_read = products[:, :, GemmColumn.GLB_READ_BYTES] - operands
    glb_write = products[:, :, GemmColumn.GLB_WRITE_BYTES] - results
    overflows = table.row_bytes > chip_column(chips, "l2_vc_bytes")
    kept = kept_row_bytes(
        chip_column(chips, "glb_bytes"),
        vector_cores[:, np.newaxis],
        is_managed=chip_column(chips, "concurrent_operators"),
    )
    again = table.reread_bytes + table.cached_bytes * (table.row_bytes / 2 > kept)
    reads = table.read_bytes + summed(table.vector_owner, again * overflows)
    by_threads = np.zeros(len(table.operators))
    by_threads[table.vector_owner] = 1.0
    by_threads[[*table.gemm_owner, *table.attention_owner]] = 0.0
    threads_rate = vector_cores[:, np.newaxis] * chip_column(chips, "vector_core_bytes_per_s")
    vc_s = np.maximum(vc_s, by_threads * (reads + table.write_bytes) / threads_rate)
    scan_rate = vector_cores[:, np.newaxis] * chip_column(chips, "scan_core_bytes_per_s")
    vc_s = np.maximum(vc_s, table.scan_bytes / scan_rate)
    extra = summed(
        table.gemm_owner, products[:, :, GemmColumn.HBM_EXTRA_BYTES] * table.gemm_blocked
    )
    has_hbm = chip_column(chips, "has_hbm")
    traffic = {
        "l2_read": of_cores(products[:, :, GemmColumn.L2_BYTES], CoreColumn.L2_BYTES),
        "glb_read": reads + of_cores(glb_read, CoreColumn.GLB_READ_BYTES),
        "glb_write": table.write_bytes + of_cores(glb_write, CoreColumn.GLB_WRITE_BYTES),
        "hbm_read": (reads + extra) * has_hbm,
        "hbm_write": table.write_bytes * has_hbm,
    }
    glb_rate = chip_column(chips, "glb_bytes_per_cycle") * clock_hz
    glb_s = (traffic["glb_read"] + traffic["glb_write"]) / glb_rate
    hbm_bytes = traffic["hbm_read"] + traffic["hbm_write"]
    hbm_s = hbm_bytes / chip_column(chips, "sustained_hbm_bytes_per_s")
    times = [tc_s, vc_s, glb_s, hbm_s, np.broadcast_to(link_s, tc_s.shape)]
    overhead_s = chip_column(chips, "calibration.operator_overhead_s") * table.has_work
    names = ("tc_s", "vc_s", "glb_s", "hbm_s", "link_s")
    latency_s = np.maximum.reduce(times) + overhead_s
    own = {"latency_s": latency_s, "exposed_lanes_s": exposed_s}
    return dict(zip(names, times, strict=True)) | own | traffic


times = hnp.arrays(np.float64, (7, 12), elements=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 5.0]))


@given(times)
def test_what_takes_longest_binds(times_s: FloatArray) -> None:
    """The first of equal ones; a constant if it is longer than all of them; lanes that delay."""
    constant_s, *busy_s, exposed_s = times_s
    latency_s = np.max(busy_s, axis=0) + constant_s
    binding = np.argmax([*busy_s, constant_s], axis=0)
    delayed = (binding == 0) & (2.0 * exposed_s > busy_s[0])
    tc_s, vc_s, glb_s, hbm_s, link_s = busy_s
    resources = binding_resources(latency_s, tc_s, vc_s, glb_s, hbm_s, link_s, exposed_s)
    assert resources.tolist() == np.where(delayed, 1, binding).tolist()


def lane_cycles(elements: int, cores: int, lanes: int) -> float:
    """Cycles of additions on the lanes of some vector cores, as estimated."""
    graph = OperatorGraph((Operator("add", vector=(VectorWork("add", elements, 1),)),))
    chip = Accelerator(num_tc=1, num_vc=cores, pe_x=8, pe_y=8, pe_vc=lanes, glb_bytes=2**21)
    table, pools = operator_table(graph), pools_of([chip], [1])
    on_pools = work_on_pools(table, pools).rows(pools.which)
    work = estimate_work(table, [chip], np.zeros(1), on_pools, [1], [cores])
    cycles = float(work.seconds.vc_s[0, 0]) * chip.sustained_clock_hz
    return round(cycles / vector_operator("add").cycles)


@given(st.integers(1, 10**9), st.integers(1, 2048), st.integers(2, 256))
def test_lanes_are_a_roofline_and_never_hurt(elements: int, cores: int, lanes: int) -> None:
    """Work over lanes is the least time; twice the cores never take longer."""
    cycles = lane_cycles(elements, cores, lanes)
    assert cycles * cores * lanes >= elements
    assert lane_cycles(elements, 2 * cores, lanes) <= cycles


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_two_parts_together_never_cost_more(first: int, second: int) -> None:
    """T(b1 + b2) ≤ T(b1) + T(b2)."""
    whole = lane_cycles(first + second, 4, 128)
    assert whole <= lane_cycles(first, 4, 128) + lane_cycles(second, 4, 128)


@pytest.mark.parametrize("glb_mib", [1, 8])
def test_only_a_product_alone_is_cut_into_blocks(glb_mib: int) -> None:
    """It reads operands again that the buffer cannot hold; several products hand theirs over."""
    chip = replace(load_accelerator("tpuv4-phaze"), glb_bytes=glb_mib * MIB)
    product = Gemm(8192, 8192, 8192)
    once_bytes = 2 * 3 * 8192**2

    def hbm_bytes(count: int) -> float:
        graph = graph_of([Moved(Operator("op", gemms=(product,) * count), once_bytes)])
        mode = estimate_on_cores(graph, chip, chip.num_tc)
        return float(mode.hbm_s[0]) * chip.sustained_hbm_bytes_per_s

    assert hbm_bytes(2) == pytest.approx(once_bytes)
    assert hbm_bytes(1) > 1.5 * once_bytes
