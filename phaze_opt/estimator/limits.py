"""Chips that cannot exist are refused before anything is estimated for them."""

from __future__ import annotations

from functools import cache

from phaze_opt.codec import data_table
from phaze_opt.errors import InputError
from phaze_opt.estimator.vector_core import ROW_ELEMENT_BYTES
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.area import area_constants
from phaze_opt.units import MM2_PER_UM2


@cache
def _limits_mm2() -> dict[str, float]:
    """Return the areas of ``estimator/data/limits.toml``."""
    return {name: float(area) for name, area in data_table("estimator", "limits.toml").items()}


def check_chip(accelerator: Accelerator) -> None:
    """Refuse a PE array or lanes larger than a chip, and lanes without room for one value.

    Whether the private buffer of a tensor core holds a tile depends on the product, see
    `phaze_opt.estimator.tensor_core.gemm_table`.

    Raises
    ------
    InputError
        Names the size and the largest that there is.
    """
    constants = area_constants("phaze-22nm")
    arrays = (
        (
            f"A PE array of {accelerator.pe_x} × {accelerator.pe_y}",
            accelerator.num_tc,
            accelerator.pe_x * accelerator.pe_y * constants.tensor_pe_um2 * MM2_PER_UM2,
        ),
        (
            f"A vector core of {accelerator.pe_vc} lanes",
            accelerator.num_vc,
            accelerator.pe_vc * constants.vector_lane_um2 * MM2_PER_UM2,
        ),
    )
    most = _limits_mm2()
    for what, count, area_mm2 in arrays:
        if area_mm2 > most["array_mm2"]:
            raise InputError(
                f"{what} takes {area_mm2:.4g} mm², larger than a chip: at most "
                f"{most['array_mm2']:.4g} mm² are exposed at once."
            )
        if count * area_mm2 > most["chip_mm2"]:
            raise InputError(
                f"{what}, {count} times, takes {count * area_mm2:.4g} mm², larger than the "
                f"largest chip there is ({most['chip_mm2']:.5g} mm²)."
            )
    least = ROW_ELEMENT_BYTES * accelerator.pe_vc
    if accelerator.l2_vc_bytes < least:
        raise InputError(
            f"l2_vc_bytes is {accelerator.l2_vc_bytes}, too small for one fp32 value in each of "
            f"{accelerator.pe_vc} lanes ({least} B)."
        )
