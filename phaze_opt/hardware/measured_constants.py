"""The constants of a chip that are measured, once for all operators and models."""

from __future__ import annotations

import math
from dataclasses import dataclass

from phaze_opt.checked import check_fields
from phaze_opt.errors import InputError
from phaze_opt.precision import ATTENTION_PRECISIONS
from phaze_opt.printing import short_repr

_MOST_RANGE = 10.0
"""No chip is so many times as fast as another one of its name."""
_NARROW = "fp8", "fp8_block", "fp8_block_gradient", "fp4", "int8"
"""What arrays multiply beside bf16, each with an efficiency."""


@dataclass(frozen=True, repr=False)
class Calibration:
    """Properties of a chip that are measured once and hold for every operator and every model.

    The defaults are those of hypothetical chips, which get no better HBM and no cheaper operators
    than real ones.

    Attributes
    ----------
    sustained_clock_hz
        Clock under full load, once the power limit has taken hold; ``None`` where the chip holds
        its nominal clock.
    burst_clock_hz
        Clock under full load before the power limit takes hold, see `phaze_opt.estimator.isolated`;
        ``None`` where it is the sustained clock.
    array_efficiency
        Share of the cycles in which the PE arrays of a well-formed product work. The lanes and the
        global buffer use all cycles.
    usable_hbm_share
        Share of the HBM that a training run may fill.
    hbm_efficiency
        Sustained HBM bandwidth divided by the nominal one.
    vector_core_bytes_per_s
        Bytes that one vector core reads and writes at most in an operator without products, from
        wherever: those that its threads have in flight over the latency; ``None`` where nothing is
        known to limit them. Products and fused attention copy in bulk, with more in flight.
    scan_core_bytes_per_s
        Bytes that one vector core reads and writes at most in a kernel of a state-space scan, of
        memory or a cache: operands of its products for every head, also those that heads share, and
        what it writes. ``None`` where nobody measured such kernels.
    operator_overhead_s
        Idle time between two operators of a stream.
    tile_overhead_cycles
        Cycles of fill and epilogue that every wave of tiles pays; ``None`` for ``pe_x + pe_y``, as
        in a systolic array.
    collective_core_share
        Share of the cores that communication takes while it runs beside compute; 0 where engines
        of their own move the data.
    sustained_peak_share
        Share of the nominal peak that products reach in a long run, where the power limit holds
        them below what their cycles take; ``None`` where it does not. See
        `phaze_opt.estimator.power_limit`.
    attention_overlap
        Share of the lanes' time of a fused attention core that its products hide, from 0 (products
        and softmax take turns) to 1. The default is that of the H100 with a kernel of its own
        generation, in tenths: a chip with asynchronous copies and a good kernel. With 1, softmax
        would be free, which no measured chip reaches, and a chip on paper would always win.
    exponentials_per_cycle
        Of one vector core, in a fused attention core; ``None`` where its lanes compute them as the
        vector operator table says.
    attention_rate
        Share of the cycles of the nominal clock in which the arrays of the forward of a fused
        attention core work; ``None`` where they work as in products. A kernel that draws less
        power than products keeps a higher clock.
    attention_row_cycles
        Cycles of fill and epilogue that a core pays for each row of tiles of scores; ``None`` for
        those of a wave of tiles of a product.
    attention_tile_queries
        Rows of scores that a core works on at a time in the forward; ``None`` for those of
        ``tensor_core.toml``.
    attention_backward_overlap, attention_backward_rate, attention_backward_row_cycles
        As ``attention_overlap``, ``attention_rate`` and ``attention_row_cycles``, of the backward
        and its columns of tiles; ``None`` where it is as the forward.
    attention_wide_rate
        Rate of the arrays in a backward with heads wider than 128, relative to narrower ones: sums
        of that width no longer fit beside each other.
    attention_fp8_rate, attention_fp8_backward_rate, attention_mxfp8_rate, \
    attention_mxfp8_backward_rate
        Rate of the arrays in a fused attention core that multiplies in fp8, or in mxfp8, relative
        to bf16: forward and backward. ``None`` where nobody measured such a kernel.

    array_rate_low, array_rate_high, hbm_rate_low, hbm_rate_high
        By what the rates of the arrays in long runs and of the HBM may be multiplied on other
        chips of this name, see `phaze_opt.hardware.ranges`; 1 where nobody says.
    fp8_efficiency, fp8_block_efficiency, fp8_block_gradient_efficiency, fp4_efficiency, \
    int8_efficiency
        Rate of the arrays of a long product in this precision, relative to ``array_efficiency`` at
        the ratio that the chip states; block: where every block of fp8 has a scale of its own;
        gradient: in the weight gradients of these, ``None`` where others are no faster.

    Raises
    ------
    InputError
        If a share or a rate is out of its range.
    """

    sustained_clock_hz: float | None = None
    burst_clock_hz: float | None = None
    array_efficiency: float = 1.0
    usable_hbm_share: float = 0.94
    hbm_efficiency: float = 0.85
    vector_core_bytes_per_s: float | None = None
    scan_core_bytes_per_s: float | None = None
    operator_overhead_s: float = 1e-6
    tile_overhead_cycles: float | None = None
    collective_core_share: float = 0.0
    sustained_peak_share: float | None = None
    attention_overlap: float = 0.4
    exponentials_per_cycle: float | None = None
    attention_rate: float | None = None
    attention_row_cycles: float | None = None
    attention_tile_queries: float | None = None
    attention_backward_overlap: float | None = None
    attention_backward_rate: float | None = None
    attention_backward_row_cycles: float | None = None
    attention_wide_rate: float = 1.0
    attention_fp8_rate: float | None = None
    attention_fp8_backward_rate: float | None = None
    attention_mxfp8_rate: float | None = None
    attention_mxfp8_backward_rate: float | None = None
    array_rate_low: float = 1.0
    array_rate_high: float = 1.0
    hbm_rate_low: float = 1.0
    hbm_rate_high: float = 1.0
    fp8_efficiency: float = 1.0
    fp8_block_efficiency: float = 1.0
    fp8_block_gradient_efficiency: float | None = None
    fp4_efficiency: float = 1.0
    int8_efficiency: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        rates = "attention_rate", "attention_backward_rate", "attention_wide_rate"
        narrow = [f"{kind}_efficiency" for kind in _NARROW]
        low = "array_rate_low", "hbm_rate_low"
        for name in ("array_efficiency", "sustained_peak_share", *rates, *narrow, *low):
            share = getattr(self, name)
            if share is not None and not 0.0 < share <= 1.0:
                raise InputError(f"{name} is {share}, but it must be above 0 and at most 1.")
        for name in ("array_rate_high", "hbm_rate_high"):
            factor = getattr(self, name)
            if not 1.0 <= factor <= _MOST_RANGE:
                raise InputError(f"{name} is {factor}, but it must be from 1 to {_MOST_RANGE:g}.")
        overlaps = "attention_overlap", "attention_backward_overlap"
        for name in (*overlaps, "collective_core_share"):
            share = getattr(self, name)
            if share is not None and not 0.0 <= share <= 1.0:
                raise InputError(f"{name} is {share}, but it must be from 0 to 1.")
        positive = "usable_hbm_share", "hbm_efficiency", "exponentials_per_cycle"
        clocks = "sustained_clock_hz", "burst_clock_hz", "attention_tile_queries"
        narrow = [
            f"attention_{precision}_{rate}"
            for precision in ATTENTION_PRECISIONS[1:]
            for rate in ("rate", "backward_rate")
        ]
        threads = "vector_core_bytes_per_s", "scan_core_bytes_per_s"
        for name in (*threads, *positive, *clocks, *narrow):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0.0):
                raise InputError(f"{name} is {value}, but it must be positive and finite.")
        cycles = "tile_overhead_cycles", "attention_row_cycles", "attention_backward_row_cycles"
        for name in ("operator_overhead_s", *cycles):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0.0):
                raise InputError(f"{name} is {value}, but it must be finite and not negative.")

    def __repr__(self) -> str:
        return short_repr(self)
