"""What the operators of a pass see of a chip and of a network; see `scalar_bounds`."""

from __future__ import annotations

import math
from typing import NamedTuple

from phaze_opt.estimator.operator_table import WIDE_HEAD
from phaze_opt.hardware.accelerator import Accelerator, AttentionKernel, Calibration
from phaze_opt.network.cluster import Cluster
from phaze_opt.whole_space.scalar_products import Arrays
from phaze_opt.workload.graph import Operator


class Rates(NamedTuple):
    """All that operators see of a chip, but for the sizes of the global buffer and of the HBM.

    Chips of which a pass sees the same take as long for it, and are bounded once.

    Attributes
    ----------
    one, every
        One tensor core, and all of them.
    vector_cores, lanes, l2_vc_bytes
        Number, and of each the lanes and the private buffer.
    clock_hz, array_clock_hz, power_limited_clock_hz
        Cycles under full load, those in which the arrays work, and those that the power limit
        leaves products.
    exponentials_per_cycle
        Of fused attention, of a vector core; ``None`` where its lanes make them.
    attention_kernel
        How fused attention uses the arrays.
    concurrent
        Whether operators run at the same time.
    """

    one: Arrays
    every: Arrays
    vector_cores: int
    lanes: int
    l2_vc_bytes: int
    clock_hz: float
    array_clock_hz: float
    power_limited_clock_hz: float
    exponentials_per_cycle: float | None
    attention_kernel: AttentionKernel
    glb_bytes_per_s: float
    hbm_bytes_per_s: float
    concurrent: bool
    calibration: Calibration

    @classmethod
    def of(cls, chip: Accelerator) -> Rates:
        """Return what operators see of a chip."""
        calibration, clock_hz = chip.calibration, chip.sustained_clock_hz
        efficiency, fill = calibration.array_efficiency, calibration.tile_overhead_cycles
        one = Arrays(
            cores=1,
            pe_x=chip.pe_x,
            pe_y=chip.pe_y,
            l2_bytes=chip.l2_tc_bytes,
            l2_rate=(chip.l2_bytes_per_cycle or math.inf) / efficiency,
            glb_rate=chip.glb_bytes_per_cycle / efficiency,
            fill=(chip.pe_x + chip.pe_y if fill is None else fill) * efficiency,
        )
        return cls(
            one=one,
            every=one._replace(cores=chip.num_tc),
            vector_cores=chip.num_vc,
            lanes=chip.pe_vc,
            l2_vc_bytes=chip.l2_vc_bytes,
            clock_hz=clock_hz,
            array_clock_hz=chip.array_clock_hz,
            power_limited_clock_hz=chip.power_limited_clock_hz,
            exponentials_per_cycle=chip.exponentials_per_cycle,
            attention_kernel=chip.attention_kernel,
            glb_bytes_per_s=chip.glb_bytes_per_cycle * clock_hz,
            hbm_bytes_per_s=chip.sustained_hbm_bytes_per_s,
            concurrent=chip.concurrent_operators,
            calibration=calibration,
        )

    def slowdown(self, operator: Operator) -> float:
        """Return the array cycles that fused attention takes for each of its own."""
        kernel = self.attention_kernel
        return (kernel.forward, kernel.backward, kernel.wide_backward)[_direction(operator)]

    def overlap(self, operator: Operator) -> float:
        """Return the share of the lanes' time that the products of fused attention hide."""
        forward = self.calibration.attention_overlap
        backward = self.calibration.attention_backward_overlap
        return forward if backward is None or _direction(operator) == 0 else backward


def _direction(operator: Operator) -> int:
    """Return 0 for a forward, which has two products, 1 for a backward, 2 with wide heads."""
    if operator.attention is None or len(operator.gemms) <= 2:
        return 0
    scores = operator.attention.elements
    return 2 if max(gemm.flops // (2 * scores) for gemm in operator.gemms) > WIDE_HEAD else 1


class Group(NamedTuple):
    """The devices of a tensor-parallel group.

    Attributes
    ----------
    chunked
        Collectives are cut into so many chunks, of which products hide all but one; 1 for none.
    """

    cluster: Cluster
    tensor: int
    chunked: int
