"""Seconds of every operator, and the bytes that it moves between the memories of a chip.

Compulsory traffic is the tensors that an operator reads and writes. To it come the repeated reads:
of tiles from the global buffer, of blocks and long rows from the HBM. Fused attention keeps its
scores in the cores. Operators without products move their bytes by threads of the vector cores,
which have so many in flight (`Calibration.vector_core_bytes_per_s`): that is time of these cores.
So do kernels of a state-space scan, whose products wait for them
(`Calibration.scan_core_bytes_per_s`, `operator_table.scan_bytes`).

The time of the global buffer counts what the cores read and write. What the HBM fills and drains
passes through a port of its own: it takes energy, and no time of the cores' side. That holds with
and without residency, since the same plan must take the same time under both: time for the filling
in the plans with residency alone would slow products that residency does not change (by up to 3 %
where the buffer binds them), and in both kinds of plans would change those without.

A chip without HBM has its operands in the global buffer, whose bandwidth is all that binds: its HBM
has an infinite rate here, takes no time, and what it would move is not counted
(`estimate.estimate_work`).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import lazily_compiled
from phaze_opt.estimator.attention_tiles import CoreColumn
from phaze_opt.estimator.tensor_core import GemmColumn


class ChipColumn(IntEnum):
    """Last axis of what `operator_work` takes of the chips, for the cores that an operator uses."""

    CLOCK_HZ = 0
    ARRAY_CLOCK_HZ = 1
    LANES = 2
    L2_VC_BYTES = 3
    GLB_BYTES_PER_S = 4
    HBM_BYTES_PER_S = 5
    OVERHEAD_S = 6
    ATTENTION_OVERLAP = 7
    ATTENTION_BACKWARD_OVERLAP = 8
    LIMITED_SECONDS_PER_MAC = 9
    KEPT_ROW_BYTES = 10
    VECTOR_BYTES_PER_S = 11
    SCAN_BYTES_PER_S = 12


class WorkTable(IntEnum):
    """First axis of what `operator_work` returns."""

    LATENCY_S = 0
    TC_S = 1
    VC_S = 2
    GLB_S = 3
    HBM_S = 4
    LINK_S = 5
    EXPOSED_LANES_S = 6
    L2_READ_BYTES = 7
    GLB_READ_BYTES = 8
    GLB_WRITE_BYTES = 9
    HBM_READ_BYTES = 10
    HBM_WRITE_BYTES = 11


_COLUMNS = len(WorkTable)


@lazily_compiled(
    "f8[:, :, ::1](f8[:, ::1], f8[:, :, ::1], i8[::1], i8[::1], f8[::1], f8[::1], f8[::1],"
    " f8[:, :, ::1], i8[::1], i8[::1], f8[::1], f8[:, ::1], f8[:, ::1], f8[:, ::1], i8[::1],"
    " f8[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[::1])"
)
def operator_work(
    chips: FloatArray,
    products: FloatArray,
    gemm_owner: IntArray,
    gemm_kind: IntArray,
    operand_bytes: FloatArray,
    result_bytes: FloatArray,
    gemm_blocked: FloatArray,
    attention: FloatArray,
    attention_owner: IntArray,
    attention_direction: IntArray,
    macs_per_score: FloatArray,
    product_cycles: FloatArray,
    elements: FloatArray,
    lane_cycles: FloatArray,
    vector_owner: IntArray,
    row_bytes: FloatArray,
    reread_bytes: FloatArray,
    cached_bytes: FloatArray,
    read_bytes: FloatArray,
    write_bytes: FloatArray,
    scan_bytes: FloatArray,
    has_work: FloatArray,
    link_s: FloatArray,
) -> FloatArray:
    """Estimate all operators on some cores of each chip.

    Each operator's work is added up in the order of its products and vector works, so that the bits
    do not depend on the other operators and chips.

    Parameters
    ----------
    chips : (chips, len(ChipColumn))
        With the cores that an operator may use. The rate of an HBM that is not there is infinite.
    products : (chips, distinct products, len(GemmColumn))
        See `tensor_core.products_on_pools`.
    gemm_owner, gemm_kind, operand_bytes, result_bytes, gemm_blocked
        See `operator_table.OperatorTable`.
    attention : (chips, fused attention cores, len(CoreColumn))
        See `attention_tiles.attention_on_pools`.
    attention_owner, attention_direction, macs_per_score
        As in the table.
    product_cycles : (chips or 1, operators)
        Cycles of one processing element for all products but those of fused attention, see
        `operator_table.array_cycles`.
    elements, lane_cycles : (chips or 1, vector works)
        Elements, and lane cycles per element. Each round takes one element per lane; the last round
        takes as long as a full one.
    vector_owner, row_bytes, reread_bytes, cached_bytes, read_bytes, write_bytes, scan_bytes, \
    has_work
        As in the table. What the power limit leaves for multiply-accumulates, see `power_limit`, is
        part of the time of the arrays.
    link_s : (operators,)
        Seconds on the network.

    Returns
    -------
    work : (len(WorkTable), chips, operators)
        The fields of `estimate.ModeSeconds` and `traffic.Traffic`.
    """
    operators = len(link_s)
    work = np.zeros((_COLUMNS, len(chips), operators))
    reread = np.empty(operators)
    by_threads = np.zeros(operators)
    by_threads[vector_owner] = 1.0
    by_threads[gemm_owner] = 0.0
    by_threads[attention_owner] = 0.0
    for chip in range(len(chips)):
        tc, vc = work[WorkTable.TC_S, chip], work[WorkTable.VC_S, chip]
        exposed = work[WorkTable.EXPOSED_LANES_S, chip]
        l2_read = work[WorkTable.L2_READ_BYTES, chip]
        glb_read = work[WorkTable.GLB_READ_BYTES, chip]
        glb_write = work[WorkTable.GLB_WRITE_BYTES, chip]
        hbm_read = work[WorkTable.HBM_READ_BYTES, chip]
        own = chips[chip]
        for place in range(len(gemm_owner)):
            i, product = gemm_owner[place], products[chip, gemm_kind[place]]
            tc[i] += product[GemmColumn.ARRAY_CYCLES]
            l2_read[i] += product[GemmColumn.L2_BYTES]
            glb_read[i] += product[GemmColumn.GLB_READ_BYTES] - operand_bytes[place]
            glb_write[i] += product[GemmColumn.GLB_WRITE_BYTES] - result_bytes[place]
            hbm_read[i] += product[GemmColumn.HBM_EXTRA_BYTES] * gemm_blocked[place]
        for place in range(len(attention_owner)):
            i, core = attention_owner[place], attention[chip, place]
            tc[i] = core[CoreColumn.ARRAY_CYCLES]
            l2_read[i] = core[CoreColumn.L2_BYTES]
            glb_read[i] = core[CoreColumn.GLB_READ_BYTES]
            glb_write[i] = core[CoreColumn.GLB_WRITE_BYTES]
        reread[:] = 0.0
        of_elements = elements[chip if len(elements) > 1 else 0]
        own_cycles = product_cycles[chip if len(product_cycles) > 1 else 0]
        of_cycles = lane_cycles[chip if len(lane_cycles) > 1 else 0]
        for place in range(len(vector_owner)):
            i = vector_owner[place]
            rounds = np.ceil(of_elements[place] / own[ChipColumn.LANES])
            vc[i] += rounds * of_cycles[place]
            if row_bytes[place] > own[ChipColumn.L2_VC_BYTES]:
                reread[i] += reread_bytes[place]
                # Rows are kept in bf16, half of what they are in fp32.
                if 0.5 * row_bytes[place] > own[ChipColumn.KEPT_ROW_BYTES]:
                    reread[i] += cached_bytes[place]
        for i in range(operators):
            vc[i] /= own[ChipColumn.CLOCK_HZ]
            tc[i] /= own[ChipColumn.ARRAY_CLOCK_HZ]
            tc[i] = max(tc[i], own_cycles[i] * own[ChipColumn.LIMITED_SECONDS_PER_MAC])
        for place in range(len(attention_owner)):
            i, overlap = attention_owner[place], own[ChipColumn.ATTENTION_OVERLAP]
            if attention_direction[place] > 0:
                overlap = own[ChipColumn.ATTENTION_BACKWARD_OVERLAP]
            exposed[i] = (1.0 - overlap) * vc[i]
            macs = attention[chip, place, CoreColumn.SCORES] * macs_per_score[place]
            tc[i] = max(tc[i] + exposed[i], macs * own[ChipColumn.LIMITED_SECONDS_PER_MAC])
        for i in range(operators):
            reads, written = read_bytes[i] + reread[i], write_bytes[i]
            glb_read[i] += reads
            glb_write[i] += written
            hbm_read[i] += reads
            # Without products threads load and store, with so many bytes in flight.
            moved = by_threads[i] * (reads + written)
            vc[i] = max(vc[i], moved / own[ChipColumn.VECTOR_BYTES_PER_S])
            vc[i] = max(vc[i], scan_bytes[i] / own[ChipColumn.SCAN_BYTES_PER_S])
            glb_s = (glb_read[i] + glb_write[i]) / own[ChipColumn.GLB_BYTES_PER_S]
            hbm_s = (hbm_read[i] + written) / own[ChipColumn.HBM_BYTES_PER_S]
            busy_s = max(tc[i], vc[i], glb_s, hbm_s, link_s[i])
            work[WorkTable.LATENCY_S, chip, i] = busy_s + own[ChipColumn.OVERHEAD_S] * has_work[i]
            work[WorkTable.GLB_S, chip, i] = glb_s
            work[WorkTable.HBM_S, chip, i] = hbm_s
            work[WorkTable.LINK_S, chip, i] = link_s[i]
            work[WorkTable.HBM_WRITE_BYTES, chip, i] = written
    return work


@lazily_compiled("i8[::1](f8[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[::1])")
def binding_resources(
    latency_s: FloatArray,
    tc_s: FloatArray,
    vc_s: FloatArray,
    glb_s: FloatArray,
    hbm_s: FloatArray,
    link_s: FloatArray,
    exposed_s: FloatArray,
) -> IntArray:
    """Return what takes longest of each operator: a place in `estimate.RESOURCES`.

    Tensor cores that wait for lanes most of their time are bound by the lanes.

    Parameters
    ----------
    latency_s, tc_s, vc_s, glb_s, hbm_s, link_s, exposed_s : (operators,)
        See `estimate.ModeSeconds`.
    """
    resources = np.empty(len(latency_s), dtype=np.int64)
    for i in range(len(latency_s)):
        resource, longest_s = 0, tc_s[i]
        if vc_s[i] > longest_s:
            resource, longest_s = 1, vc_s[i]
        if glb_s[i] > longest_s:
            resource, longest_s = 2, glb_s[i]
        if hbm_s[i] > longest_s:
            resource, longest_s = 3, hbm_s[i]
        if link_s[i] > longest_s:
            resource, longest_s = 4, link_s[i]
        if latency_s[i] - longest_s > longest_s:
            resource = 5
        if resource == 0 and 2.0 * exposed_s[i] > tc_s[i]:
            resource = 1
        resources[i] = resource
    return resources
