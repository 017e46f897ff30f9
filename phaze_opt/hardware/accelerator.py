"""One accelerator chip: its cores and memories, and what one measures once per chip."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from phaze_opt.errors import InputError
from phaze_opt.hardware.area import AreaModel, area_mm2
from phaze_opt.units import GIB, KIB

L2_BYTES_PER_PE = 16
"""Bytes of private L2 per processing element, as in the published space of Phaze (ICML 2024)."""


def default_l2_bytes(processing_elements: int) -> int:
    """Private buffer of a core where none is given: 16 B per element, at least 1 KiB."""
    return max(KIB, L2_BYTES_PER_PE * processing_elements)


@dataclass(frozen=True)
class Calibration:
    """What one measures once per chip, the same for every operator and model.

    Attributes
    ----------
    sustained_clock_hz
        Under full load; ``None`` where the nominal clock is held.
    usable_hbm_share
        Share of the HBM that a training run may fill.
    hbm_efficiency
        Sustained over nominal HBM bandwidth.
    operator_overhead_s
        Time between operators of a stream that is not work.
    tile_overhead_cycles
        Fill and epilogue per tile wave; ``None`` for ``pe_x + pe_y`` (a systolic array).

    The defaults are those of hypothetical chips, which get no better HBM and no cheaper operators
    than real ones.
    """

    sustained_clock_hz: float | None = None
    usable_hbm_share: float = 0.94
    hbm_efficiency: float = 0.85
    operator_overhead_s: float = 1e-6
    tile_overhead_cycles: float | None = None


@dataclass(frozen=True)
class Accelerator:
    """A chip of identical tensor cores and vector cores around a global buffer and an HBM.

    Attributes
    ----------
    num_tc, pe_x, pe_y
        Tensor cores, each an array of ``pe_x × pe_y`` processing elements, one bf16
        multiply-accumulate per cycle each.
    num_vc, pe_vc
        Vector cores and the lanes of each.
    glb_bytes, glb_bytes_per_cycle
        Global buffer shared by all cores, and its bandwidth.
    hbm_bytes, hbm_bytes_per_s
        Nominal memory.
    clock_hz
        Nominal clock.
    l2_tc_bytes, l2_vc_bytes
        Private buffer of each core; by default 16 B per processing element, at least 1 KiB.
    l2_bytes_per_cycle
        Bandwidth of each private buffer; ``None`` for no limit.
    concurrent_operators
        False for GPUs: one operator at a time, on all cores.
    """

    num_tc: int
    num_vc: int
    pe_x: int
    pe_y: int
    pe_vc: int
    glb_bytes: int
    glb_bytes_per_cycle: float = 4096.0
    hbm_bytes: int = 32 * GIB
    hbm_bytes_per_s: float = 1200e9
    clock_hz: float = 1.05e9
    l2_tc_bytes: int = 0
    l2_vc_bytes: int = 0
    l2_bytes_per_cycle: float | None = None
    concurrent_operators: bool = True
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        if self.l2_tc_bytes == 0:
            object.__setattr__(self, "l2_tc_bytes", default_l2_bytes(self.pe_x * self.pe_y))
        if self.l2_vc_bytes == 0:
            object.__setattr__(self, "l2_vc_bytes", default_l2_bytes(self.pe_vc))
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name in ("calibration", "concurrent_operators") or value is None:
                continue
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{entry.name} is {value}, but it must be positive and finite.")

    @property
    def area_mm2(self) -> float:
        """Relative area budget under ``phaze-22nm`` (no network, PHY or control)."""
        return area_mm2(self, "phaze-22nm")

    def area_under(self, model: AreaModel) -> float:
        """Area in mm² under the named model."""
        return area_mm2(self, model)

    @property
    def sustained_clock_hz(self) -> float:
        """The clock under load."""
        return self.calibration.sustained_clock_hz or self.clock_hz

    @property
    def peak_flops_per_s(self) -> float:
        """Nominal bf16 peak of all tensor cores, two per multiply-accumulate."""
        return 2.0 * self.num_tc * self.pe_x * self.pe_y * self.clock_hz

    @property
    def sustained_hbm_bytes_per_s(self) -> float:
        """HBM bandwidth that a well-formed stream reaches."""
        return self.hbm_bytes_per_s * self.calibration.hbm_efficiency

    @property
    def usable_hbm_bytes(self) -> float:
        """HBM that a training run may fill."""
        return self.hbm_bytes * self.calibration.usable_hbm_share
