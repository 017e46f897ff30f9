"""The rates of a chip and the tensor-parallel group of its operators; see `scalar_bounds`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from phaze_opt.estimator.attention_tiles import DIRECTIONS
from phaze_opt.estimator.operator_table import WIDE_HEAD, attention_place
from phaze_opt.hardware.accelerator import Accelerator, AttentionKernel
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.network.cluster import Cluster
from phaze_opt.on_demand import hashed_once
from phaze_opt.whole_space.scalar_products import TensorCores
from phaze_opt.workload.graph import Operator


@hashed_once
@dataclass(frozen=True)
class Rates:
    """The rates of a chip, without the sizes of the global buffer and of the HBM.

    A pass takes the same time on all chips of equal rates, and is bounded once for them.

    Attributes
    ----------
    one_core, all_cores
        One tensor core of the chip, and all of them.
    vector_cores, lanes, l2_vc_bytes
        Number of vector cores, and the lanes and the private buffer of each.
    clock_hz, array_clock_hz, power_limited_clock_hz
        Clock under full load, clock of the arrays, and clock of products at the power limit.
    exponentials_per_cycle
        Exponentials of fused attention per cycle and vector core; ``None`` if the lanes compute
        them.
    attention_kernel
        Constants of the arrays in fused attention.
    hbm_bytes_per_s, memory_bytes_per_s
        Sustained bandwidth of the HBM, infinite without one, and of what holds the weights.
    vector_core_bytes_per_s
        Bytes that a vector core moves at most in an operator without products.
    scan_core_bytes_per_s
        Bytes that it moves at most in a kernel of a state-space scan.
    concurrent
        Whether operators run at the same time.
    """

    one_core: TensorCores
    all_cores: TensorCores
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
    memory_bytes_per_s: float
    vector_core_bytes_per_s: float
    scan_core_bytes_per_s: float
    concurrent: bool
    calibration: Calibration

    @classmethod
    def of(cls, chip: Accelerator) -> Rates:
        """Return the rates of a chip."""
        calibration, clock_hz = chip.calibration, chip.sustained_clock_hz
        efficiency, fill = calibration.array_efficiency, calibration.tile_overhead_cycles
        one_core = TensorCores(
            number=1,
            pe_x=chip.pe_x,
            pe_y=chip.pe_y,
            l2_bytes=chip.l2_tc_bytes,
            l2_rate=(chip.l2_bytes_per_cycle or math.inf) / efficiency,
            glb_rate=chip.glb_bytes_per_cycle / efficiency,
            fill=(chip.pe_x + chip.pe_y if fill is None else fill) * efficiency,
            rates=chip.array_rates,
        )
        return cls(
            one_core=one_core,
            all_cores=one_core._replace(number=chip.num_tc),
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
            memory_bytes_per_s=chip.memory_bytes_per_s,
            vector_core_bytes_per_s=chip.vector_core_bytes_per_s,
            scan_core_bytes_per_s=chip.scan_core_bytes_per_s,
            concurrent=chip.concurrent_operators,
            calibration=calibration,
        )

    def slowdown(self, operator: Operator) -> float:
        """Return the factor by which fused attention takes more array cycles than its products."""
        place = _direction(operator) + DIRECTIONS * attention_place(operator)
        return float(self.attention_kernel[3 + place])

    def overlap(self, operator: Operator) -> float:
        """Return the share of the lanes' time that the products of fused attention hide."""
        forward = self.calibration.attention_overlap
        backward = self.calibration.attention_backward_overlap
        return forward if backward is None or _direction(operator) == 0 else backward


def _direction(operator: Operator) -> int:
    """Return 0 for a forward (two products), 1 for a backward, 2 for a backward of wide heads."""
    if operator.attention is None or len(operator.gemms) <= 2:
        return 0
    scores = operator.attention.elements
    return 2 if max(gemm.flops // (2 * scores) for gemm in operator.gemms) > WIDE_HEAD else 1


class TensorGroup(NamedTuple):
    """A tensor-parallel group of devices.

    Attributes
    ----------
    degree
        Tensor-parallel degree.
    chunks
        Number of chunks of every collective; products hide all chunks but one.
    """

    cluster: Cluster
    degree: int
    chunks: int
