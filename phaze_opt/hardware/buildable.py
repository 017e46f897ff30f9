"""Which chips can be built: limits of lithography, and buffers that fit each other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray
from phaze_opt.codec import data_table
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import LANE_VALUE_BYTES, Accelerator
from phaze_opt.hardware.area import area_constants
from phaze_opt.units import MM2_PER_UM2


@cache
def _largest_mm2() -> dict[str, float]:
    """Return the areas of ``data/limits.toml``."""
    return {name: float(area) for name, area in data_table("hardware", "limits.toml").items()}


def check_chip(accelerator: Accelerator) -> None:
    """Refuse chips that cannot be built.

    The area of the processing elements of one tensor core, and of the lanes of one vector core, is
    limited by lithography; that of all cores together by the largest chip that is built. Each lane
    needs room for one value in the private buffer, and the global buffer feeds private ones, so it
    is no smaller than one of them. (Whether the private buffer of a tensor core
    holds a tile depends on the product: `phaze_opt.estimator.tensor_core.gemm_table`.)

    Raises
    ------
    InputError
        Names the size and the limit.
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
    largest = _largest_mm2()
    for what, count, area_mm2 in arrays:
        if area_mm2 > largest["array_mm2"]:
            raise InputError(
                f"{what} takes {area_mm2:.4g} mm², larger than a chip: at most "
                f"{largest['array_mm2']:.4g} mm² are exposed at once."
            )
        if count * area_mm2 > largest["chip_mm2"]:
            raise InputError(
                f"{what}, {count} times, takes {count * area_mm2:.4g} mm², larger than the "
                f"largest chip there is ({largest['chip_mm2']:.5g} mm²)."
            )
    private_bytes = max(accelerator.l2_tc_bytes, accelerator.l2_vc_bytes)
    if accelerator.glb_bytes < private_bytes:
        raise InputError(
            f"glb_bytes is {accelerator.glb_bytes}, smaller than the private buffer of one core "
            f"({private_bytes} B)."
        )
    least_bytes = LANE_VALUE_BYTES * accelerator.pe_vc
    if accelerator.l2_vc_bytes < least_bytes:
        raise InputError(
            f"l2_vc_bytes is {accelerator.l2_vc_bytes}, too small for one fp32 value in each of "
            f"{accelerator.pe_vc} lanes ({least_bytes} B)."
        )


def are_buildable(columns: Mapping[str, FloatArray]) -> BoolArray:
    """Tell of many chips which `check_chip` accepts.

    Parameters
    ----------
    columns : mapping to (chips,)
        The fields of `phaze_opt.hardware.area.AREA_FIELDS`.
    """
    constants, largest = area_constants("phaze-22nm"), _largest_mm2()
    array_mm2 = columns["pe_x"] * columns["pe_y"] * constants.tensor_pe_um2 * MM2_PER_UM2
    lanes_mm2 = columns["pe_vc"] * constants.vector_lane_um2 * MM2_PER_UM2
    fits = np.ones(len(array_mm2), dtype=np.bool_)
    for count, area_mm2 in ((columns["num_tc"], array_mm2), (columns["num_vc"], lanes_mm2)):
        fits &= (area_mm2 <= largest["array_mm2"]) & (count * area_mm2 <= largest["chip_mm2"])
    l2_vc_bytes = columns["l2_vc_bytes"]
    fits &= columns["glb_bytes"] >= np.maximum(columns["l2_tc_bytes"], l2_vc_bytes)
    fits &= l2_vc_bytes >= LANE_VALUE_BYTES * columns["pe_vc"]
    return fits
