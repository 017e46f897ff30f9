"""One accelerator chip: its cores and memories, and its calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.checked import check_fields, shown
from phaze_opt.choices import AreaModel, MemoryKind, ProcessNodeName
from phaze_opt.errors import InputError
from phaze_opt.hardware.area import AREA_FIELDS, area_of_arrays_mm2, has_macro
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.limits import is_finite
from phaze_opt.on_demand import cached_property
from phaze_opt.precision import PRECISIONS, ProductPrecision
from phaze_opt.printing import PrintsAsTables, short_repr
from phaze_opt.units import GIB, KIB

L2_BYTES_PER_PE = 16
"""Bytes of private L2 per processing element, as in the published space of Phaze (ICML 2024)."""

LANE_VALUE_BYTES = 4
"""Vector lanes compute in fp32."""


def default_l2_bytes(processing_elements: int) -> int:
    """Private buffer of a core where none is given: 16 B per element, at least 1 KiB."""
    return max(KIB, L2_BYTES_PER_PE * processing_elements)


class AttentionKernel(NamedTuple):
    """How a kernel of fused attention uses the arrays of a chip.

    Attributes
    ----------
    tile_queries
        Rows of a tile of scores in the forward; 0 for those of ``tensor_core.toml``.
    row_cycles, column_cycles
        Fill and epilogue per row of tiles of a forward, and per column of a backward, in cycles as
        those of tiles.
    forward, backward, wide_backward
        Cycles of `Accelerator.array_clock_hz` that a cycle of the arrays takes; the same in fp8 and
        mxfp8, infinite where there is no such kernel.
    """

    tile_queries: int
    row_cycles: float
    column_cycles: float
    forward: float
    backward: float
    wide_backward: float
    fp8_forward: float = math.inf
    fp8_backward: float = math.inf
    fp8_wide_backward: float = math.inf
    mxfp8_forward: float = math.inf
    mxfp8_backward: float = math.inf
    mxfp8_wide_backward: float = math.inf


def _slower(cycles: float, rate: float | None) -> float:
    """Return the cycles at a rate relative to another; infinite without a rate."""
    return math.inf if rate is None else cycles / rate


NAMED_FIELDS = ("process_node", "memory_kind")
"""Fields whose values are words."""


@cache
def _numbers_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the fields of a kind of chip that are numbers, or nothing."""
    others = "calibration", "concurrent_operators", "fp8_column_copies", *NAMED_FIELDS
    return tuple([entry.name for entry in fields(kind) if entry.name not in others])


_OF_HBM = ("hbm_bytes", "hbm_bytes_per_s")
"""Fields that may be 0: a chip may have no HBM."""


def memory_bytes(hbm_bytes: FloatArray, glb_bytes: FloatArray) -> FloatArray:
    """Return what chips hold weights, states and stashes in: the HBM, or without one the GLB."""
    return np.where(hbm_bytes > 0, hbm_bytes, glb_bytes)


@dataclass(frozen=True, repr=False)
class Accelerator(PrintsAsTables):
    """A chip of identical tensor cores and vector cores around a global buffer and an HBM.

    Attributes
    ----------
    num_tc, pe_x, pe_y
        Number of tensor cores, and the edges of the array of processing elements (PEs) in each.
        Each PE finishes one bf16 multiply-accumulate per cycle.
    num_vc, pe_vc
        Number of vector cores, and the lanes of each.
    glb_bytes, glb_bytes_per_cycle
        Size and bandwidth of the global buffer, which all cores share.
    hbm_bytes, hbm_bytes_per_s
        Nominal size and bandwidth of the HBM. With a size of 0 there is none, and the bandwidth,
        which may be 0 too, does not count: the global buffer holds everything (`memory_bytes`), and
        whatever HBM bytes an operator would move stay where they are.
    clock_hz
        Nominal clock.
    l2_tc_bytes, l2_vc_bytes
        Size of the private buffer of each tensor core and of each vector core; 0 stands for
        `default_l2_bytes`.
    l2_bytes_per_cycle
        Bandwidth of each private buffer; ``None`` for no limit.
    concurrent_operators
        False for GPUs, which run one operator at a time, on all cores.
    calibration
        Measured properties of the chip.
    tdp_w
        Thermal design power: what the board is rated for, as its maker states it; ``None`` where
        nobody does, as of chips on paper. No time or energy depends on it.
    fp8_ratio, fp4_ratio, int8_ratio
        Nominal multiply-accumulates per cycle in 8-bit and 4-bit floating point and in 8-bit
        integers for each in bf16, dense; ``None`` where the arrays have none. They take area under
        the model ``chip``.
    fp8_column_copies
        Whether products of fp8 operands with one scale each need those that they read by columns
        transposed in memory; false where they read every layout.
    host_link_bytes_per_s
        Sustained bandwidth of the link to the memory of the host, each way at the same time;
        ``None`` where nobody states it. Only what a run offloads depends on it.
    process_node
        In what it is made, see `phaze_opt.hardware.process_node`; ``None`` for a chip on paper.
        Energies depend on it, and what a chip costs; no time does.
    memory_kind
        Of its HBM, or what takes its place; ``None`` for a chip on paper. As ``process_node``.
    die_mm2, dies_per_package
        Area of one of its dies, and their number, where its maker or a photograph tells;
        ``None`` for what `phaze_opt.hardware.process_node.silicon_mm2` says.

    Raises
    ------
    InputError
        If a number is not positive and finite (but for those of an HBM that is not there), or the
        burst clock does not lie between the sustained and the nominal one.
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
    tdp_w: float | None = None
    fp8_ratio: float | None = None
    fp4_ratio: float | None = None
    int8_ratio: float | None = None
    fp8_column_copies: bool = True
    host_link_bytes_per_s: float | None = None
    process_node: ProcessNodeName | None = None
    memory_kind: MemoryKind | None = None
    die_mm2: float | None = None
    dies_per_package: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.l2_tc_bytes == 0:
            object.__setattr__(self, "l2_tc_bytes", default_l2_bytes(self.pe_x * self.pe_y))
        if self.l2_vc_bytes == 0:
            object.__setattr__(self, "l2_vc_bytes", default_l2_bytes(self.pe_vc))
        own, kind = vars(self), cast(Any, type(self))
        for name in _numbers_of(kind):
            value = own[name]
            if value is None or (is_finite(value) and value > 0):
                continue
            if name not in _OF_HBM:
                raise InputError(f"{name} is {shown(value)}, but it must be positive and finite.")
            if not (is_finite(value) and value >= 0):
                raise InputError(
                    f"{name} is {shown(value)}, but it must be finite, and positive, or 0 on a "
                    "chip without HBM."
                )
        if self.has_hbm and self.hbm_bytes_per_s == 0.0:
            raise InputError(
                "hbm_bytes_per_s is 0, but it must be positive where hbm_bytes is not 0."
            )
        burst_hz = self.calibration.burst_clock_hz
        if burst_hz is not None and not self.sustained_clock_hz <= burst_hz <= self.clock_hz:
            raise InputError(
                f"burst_clock_hz is {burst_hz:.5g}, but it must lie between the sustained clock "
                f"({self.sustained_clock_hz:.5g}) and the nominal one ({self.clock_hz:.5g})."
            )

    def with_checked(self, values: Mapping[str, object]) -> Accelerator:
        """Return the chip with other values of some fields, which were checked before.

        As `dataclasses.replace`, in a tenth of its time; private buffers keep their size.
        """
        chip = object.__new__(type(self))
        own = vars(self)
        vars(chip).update({entry.name: own[entry.name] for entry in fields(self)} | dict(values))
        return chip

    def __repr__(self) -> str:
        rule = {
            "l2_tc_bytes": default_l2_bytes(self.pe_x * self.pe_y),
            "l2_vc_bytes": default_l2_bytes(self.pe_vc),
        }
        return short_repr(self, {name for name in rule if getattr(self, name) == rule[name]})

    @cached_property
    def area_mm2(self) -> float | None:
        """Relative area budget under ``phaze-22nm`` (without network, PHY and control).

        ``None`` for a chip with a buffer outside the table of SRAM macros.
        """
        return self.area_if_known("phaze-22nm")

    @cached_property
    def area_chip_mm2(self) -> float | None:
        """Area under ``chip``, with estimates for these; ``None`` as above."""
        return self.area_if_known("chip")

    def area_if_known(self, model: AreaModel, pe_scale: float = 1.0) -> float | None:
        """Return the area under an area model, ``None`` outside the table of SRAM macros."""
        return self.area_under(model, pe_scale) if self._has_area else None

    def area_under(self, model: AreaModel, pe_scale: float = 1.0) -> float:
        """Return the area in mm² under an area model; see `area_of_arrays_mm2`.

        Raises
        ------
        InputError
            If a buffer lies outside the table of SRAM macros.
        """
        columns = {name: getattr(self, name) or 0.0 for name in AREA_FIELDS}
        return float(area_of_arrays_mm2(columns, model, pe_scale))

    @property
    def _has_area(self) -> bool:
        """Whether all buffers lie within the table of SRAM macros."""
        private = has_macro("L2", self.l2_tc_bytes) and has_macro("L2", self.l2_vc_bytes)
        return private and has_macro("GLB", self.glb_bytes)

    @property
    def sustained_clock_hz(self) -> float:
        """Clock under full load."""
        return self.calibration.sustained_clock_hz or self.clock_hz

    @property
    def array_clock_hz(self) -> float:
        """Cycles per second in which the PE arrays work under full load."""
        return self.sustained_clock_hz * self.calibration.array_efficiency

    @property
    def in_burst(self) -> Accelerator:
        """The chip before its power limit takes hold; the chip itself where nothing changes."""
        own = self.calibration
        burst_hz = self.sustained_clock_hz if own.burst_clock_hz is None else own.burst_clock_hz
        if burst_hz == self.sustained_clock_hz and own.sustained_peak_share is None:
            return self
        changed = replace(own, sustained_clock_hz=burst_hz, sustained_peak_share=None)
        return replace(self, calibration=changed)

    @property
    def power_limited_clock_hz(self) -> float:
        """Cycles per second in which the PE arrays work on products as the power limit allows.

        Infinite where no power limit is known beside the sustained clock.
        """
        share = self.calibration.sustained_peak_share
        return math.inf if share is None else self.clock_hz * share

    @cached_property
    def attention_kernel(self) -> AttentionKernel:
        """How its kernel of fused attention uses the arrays."""
        own = self.calibration
        rate = own.attention_rate
        forward = 1.0 if rate is None else self.array_clock_hz / (self.clock_hz * rate)
        rate = own.attention_backward_rate
        backward = forward if rate is None else self.array_clock_hz / (self.clock_hz * rate)
        wide_backward = backward / own.attention_wide_rate
        of_row = float(self.pe_x + self.pe_y)
        fills = own.tile_overhead_cycles, own.attention_row_cycles
        for stated in fills:
            of_row = of_row if stated is None else stated
        of_column = own.attention_backward_row_cycles
        return AttentionKernel(
            tile_queries=round(own.attention_tile_queries or 0),
            row_cycles=of_row * own.array_efficiency,
            column_cycles=(of_row if of_column is None else of_column) * own.array_efficiency,
            forward=forward,
            backward=backward,
            wide_backward=wide_backward,
            fp8_forward=_slower(forward, own.attention_fp8_rate),
            fp8_backward=_slower(backward, own.attention_fp8_backward_rate),
            fp8_wide_backward=_slower(wide_backward, own.attention_fp8_backward_rate),
            mxfp8_forward=_slower(forward, own.attention_mxfp8_rate),
            mxfp8_backward=_slower(backward, own.attention_mxfp8_backward_rate),
            mxfp8_wide_backward=_slower(wide_backward, own.attention_mxfp8_backward_rate),
        )

    @property
    def exponentials_per_cycle(self) -> float | None:
        """Of fused attention, per cycle of a vector core; ``None`` where its lanes make them."""
        return self.calibration.exponentials_per_cycle

    @property
    def attention_backward_overlap(self) -> float:
        """Overlap of products and softmax in the backward of fused attention."""
        stated = self.calibration.attention_backward_overlap
        return self.calibration.attention_overlap if stated is None else stated

    @property
    def peak_flops_per_s(self) -> float:
        """Nominal bf16 peak of all tensor cores; a multiply-accumulate counts as two."""
        return 2.0 * self.num_tc * self.pe_x * self.pe_y * self.clock_hz

    def nominal_rate(self, precision: ProductPrecision) -> float:
        """Return the nominal rate of products in a precision relative to bf16; 0 without one."""
        kind = PRECISIONS[precision].element
        ratios = {"bf16": 1.0, "fp4": self.fp4_ratio, "int8": self.int8_ratio}
        return ratios.get(kind, self.fp8_ratio) or 0.0

    @cached_property
    def array_rates(self) -> tuple[float, ...]:
        """Rates of long products relative to bf16, in the order of `PRECISIONS`; 0 without one."""
        own = self.calibration
        efficiencies = {
            "bf16": 1.0,
            "fp8": own.fp8_efficiency,
            "fp8-block": own.fp8_block_efficiency,
            "fp8-block-gradient": own.fp8_block_gradient_efficiency or own.fp8_block_efficiency,
            "fp4": own.fp4_efficiency,
            "int8": own.int8_efficiency,
        }
        return tuple(
            [
                self.nominal_rate(name) * efficiencies[each.arrays]
                for name, each in PRECISIONS.items()
            ]
        )

    @property
    def has_hbm(self) -> bool:
        """Whether there is an HBM beside the global buffer."""
        return self.hbm_bytes > 0

    @property
    def sustained_hbm_bytes_per_s(self) -> float:
        """HBM bandwidth of long contiguous transfers.

        Infinite without HBM: every operand is in the global buffer, so that nothing waits for it.
        """
        if not self.has_hbm:
            return math.inf
        return self.hbm_bytes_per_s * self.calibration.hbm_efficiency

    @property
    def memory_bytes(self) -> int:
        """Size of what holds weights, gradients, states and stashes, see `memory_bytes`."""
        return int(memory_bytes(np.asarray(self.hbm_bytes), np.asarray(self.glb_bytes)))

    @property
    def bulk_bytes_per_s(self) -> float:
        """Sustained bandwidth of what holds them, to products, which copy in bulk."""
        if self.has_hbm:
            return self.sustained_hbm_bytes_per_s
        return self.glb_bytes_per_cycle * self.sustained_clock_hz

    @property
    def memory_bytes_per_s(self) -> float:
        """Sustained bandwidth of what holds them, to threads: of optimizer steps and copies."""
        return min(self.bulk_bytes_per_s, self.num_vc * self.vector_core_bytes_per_s)

    @property
    def vector_core_bytes_per_s(self) -> float:
        """Bytes that a vector core moves at most, see `Calibration`; infinite where unlimited."""
        rate = self.calibration.vector_core_bytes_per_s
        return math.inf if rate is None else rate

    @property
    def scan_core_bytes_per_s(self) -> float:
        """As `vector_core_bytes_per_s`, in kernels of a state-space scan."""
        rate = self.calibration.scan_core_bytes_per_s
        return math.inf if rate is None else rate

    @property
    def usable_memory_bytes(self) -> float:
        """Bytes of it that a training run may fill, the working sets of its layers included."""
        return self.memory_bytes * self.calibration.usable_hbm_share

    def with_memory_bytes(self, size_bytes: int) -> Accelerator:
        """Return the chip with another size of what holds them: its HBM, or without one its GLB."""
        if self.has_hbm:
            return replace(self, hbm_bytes=size_bytes)
        return replace(self, glb_bytes=size_bytes)
