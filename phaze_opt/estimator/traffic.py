"""Bytes that operators move (`operator_work` counts them), and joules of every level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.estimator.operator_table import OperatorTable
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
        Operators, and the chips that they run on.
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
    glb_reads = traffic.glb_read + traffic.hbm_write
    glb_writes = traffic.glb_write + traffic.hbm_read
    # As many multiply-accumulates in bf16 as take the same energy.
    macs = (table.macs_by_precision * joules.mac_shares).sum(axis=1)
    registers = (table.macs_by_precision * joules.register_shares).sum(axis=1)
    lane_cycles = table.all_lane_cycles
    if shares is not None:
        macs, registers, lane_cycles = macs * shares, registers * shares, lane_cycles * shares
    levels = [
        macs * joules.mac_j + lane_cycles * joules.lane_cycle_j,
        registers * joules.mac_registers_j + lane_cycles * joules.lane_registers_j,
        (traffic.l2_read + traffic.glb_write) * joules.l2_tc_read_j_per_byte
        + traffic.glb_read * joules.l2_tc_write_j_per_byte,
        glb_reads * joules.glb_read_j_per_byte + glb_writes * joules.glb_write_j_per_byte,
        (traffic.hbm_read + traffic.hbm_write) * joules.hbm_j_per_byte,
        sent_bytes * joules.network_j_per_byte,
    ]
    return np.stack(np.broadcast_arrays(*levels), axis=-1)
