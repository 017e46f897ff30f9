"""Bytes that each operator moves between the memories of a chip, and joules of every level.

Compulsory traffic is the tensors that an operator reads and writes. To it come the repeated reads:
of tiles from the global buffer, of blocks and long rows from the HBM. Fused attention keeps its
scores in the cores.

The time of the global buffer counts what the cores read and write. What the HBM fills and drains
passes through a port of its own: it takes energy, and no time of the cores' side. That holds with
and without residency, since the same plan must take the same time under both: time for the filling
in the plans with residency alone would slow products that residency does not change (by up to 3 %
where the buffer binds them), and in both kinds of plans would change those without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.estimator.attention_tiles import CoreColumn
from phaze_opt.estimator.chips import chip_column
from phaze_opt.estimator.gemm_traffic import ELEMENT_BYTES
from phaze_opt.estimator.operator_table import OperatorTable
from phaze_opt.estimator.tensor_core import Column
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import energy_per_event

ENERGY_LEVELS = ("arithmetic", "registers", "l2", "glb", "hbm", "network")
"""Parts of a chip, and the network, that take dynamic energy."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes that each operator moves; every array has shape (accelerators, operators).

    Attributes
    ----------
    l2_read
        From the private buffers of the tensor cores into their arrays.
    glb_read, glb_write
        Between the global buffer and the cores.
    hbm_read, hbm_write
        Between the HBM and the chip.
    """

    l2_read: FloatArray
    glb_read: FloatArray
    glb_write: FloatArray
    hbm_read: FloatArray
    hbm_write: FloatArray


def operator_traffic(
    table: OperatorTable,
    accelerators: Sequence[Accelerator],
    products: FloatArray,
    attention: FloatArray,
) -> Traffic:
    """Add repeated reads of tiles, blocks and long rows to the compulsory traffic.

    Parameters
    ----------
    table
        Operators.
    accelerators
        Chips that they run on.
    products : (accelerators, products, len(Column))
        Estimates of the products, see `tensor_core.gemm_table`.
    attention : (accelerators, fused attention cores, len(CoreColumn))
        See `attention_tiles.attention_on_pools`.
    """

    def repeated(of_products: FloatArray, column: CoreColumn) -> FloatArray:
        sums = table.sum_products(of_products)
        sums[:, table.attention_owner] = attention[:, :, column]
        return sums

    m, n, k, batch = table.gemms.astype(np.float64).T
    operands, results = ELEMENT_BYTES * batch * (m * k + k * n), ELEMENT_BYTES * batch * m * n
    glb_repeated = products[:, :, Column.GLB_READ_BYTES] - operands
    glb_spilled = products[:, :, Column.GLB_WRITE_BYTES] - results
    hbm_repeated = products[:, :, Column.HBM_EXTRA_BYTES] * table.gemm_blocked
    overflows = table.row_bytes > chip_column(accelerators, "l2_vc_bytes")
    reads = table.read_bytes + table.sum_vector_works(table.reread_bytes * overflows)
    return Traffic(
        l2_read=repeated(products[:, :, Column.L2_BYTES], CoreColumn.L2_BYTES),
        glb_read=reads + repeated(glb_repeated, CoreColumn.GLB_READ_BYTES),
        glb_write=table.write_bytes + repeated(glb_spilled, CoreColumn.GLB_WRITE_BYTES),
        hbm_read=reads + table.sum_products(hbm_repeated),
        hbm_write=np.broadcast_to(table.write_bytes, reads.shape),
    )


def energy_by_level_j(
    table: OperatorTable,
    accelerators: Sequence[Accelerator],
    traffic: Traffic,
    sent_bytes: FloatArray,
    shares: FloatArray | None = None,
) -> FloatArray:
    """Dynamic energy of every operator by level.

    Bytes that the cores read are written to their L2 and read from there into the arrays; bytes
    that pass between HBM and cores are also written to and read from the global buffer once.

    Parameters
    ----------
    table, accelerators
        As for `operator_traffic`.
    traffic
        Bytes on the chip.
    sent_bytes : (operators,)
        Bytes that a device sends over the network.
    shares : (accelerators, operators)
        Share of each operator's work that no attention mask hides; ``None`` for all of it. The few
        lane cycles of fused attention that are not spent on scores are taken with the others.

    Returns
    -------
    energy_j : (accelerators, operators, len(ENERGY_LEVELS))
    """
    joules = energy_per_event(accelerators)
    lane_cycles = np.zeros(len(table.operators))
    np.add.at(lane_cycles, table.vector_owner, table.elements * table.lane_cycles)
    glb_reads = traffic.glb_read + traffic.hbm_write
    glb_writes = traffic.glb_write + traffic.hbm_read
    macs = table.macs
    if shares is not None:
        macs, lane_cycles = macs * shares, lane_cycles * shares
    levels = [
        macs * joules.mac_j + lane_cycles * joules.lane_cycle_j,
        macs * joules.mac_registers_j + lane_cycles * joules.lane_registers_j,
        (traffic.l2_read + traffic.glb_write) * joules.l2_tc_read_j_per_byte
        + traffic.glb_read * joules.l2_tc_write_j_per_byte,
        glb_reads * joules.glb_read_j_per_byte + glb_writes * joules.glb_write_j_per_byte,
        (traffic.hbm_read + traffic.hbm_write) * joules.hbm_j_per_byte,
        sent_bytes * joules.network_j_per_byte,
    ]
    return np.stack(np.broadcast_arrays(*levels), axis=-1)
