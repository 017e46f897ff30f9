"""Which chips can be built: limits of lithography, and buffers that fit each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray
from phaze_opt.codec import data_table
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import LANE_VALUE_BYTES, Accelerator
from phaze_opt.hardware.area import area_constants
from phaze_opt.precision import PRECISIONS, AttentionPrecision, ProductPrecision
from phaze_opt.training import Training
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


def check_precision(accelerator: Accelerator, precision: ProductPrecision) -> None:
    """Refuse a precision for which a chip states no rate.

    Raises
    ------
    InputError
        Names the number that is missing.
    """
    if accelerator.nominal_rate(precision) > 0.0:
        return
    kind = PRECISIONS[precision].element
    raise InputError(
        f"precision is {precision}, but the chip states no {kind}_ratio (how many multiply-"
        f"accumulates in {kind} its arrays finish for each in bf16); state one, or take another "
        "precision."
    )


def check_attention_precision(accelerator: Accelerator, precision: AttentionPrecision) -> None:
    """Refuse a precision of fused attention for which nobody measured a kernel on a chip.

    Raises
    ------
    InputError
        Names the numbers that are missing.
    """
    own = accelerator.calibration
    names = f"attention_{precision}_rate", f"attention_{precision}_backward_rate"
    if precision != "bf16" and None in [getattr(own, name) for name in names]:
        raise InputError(
            f"attention_precision is {precision}, but the chip's kernel of fused attention states "
            f"no {' and '.join(names)}; take bf16, or a chip and a kernel that were measured in it."
        )


def check_training(accelerator: Accelerator, training: Training) -> None:
    """Refuse a run in precisions that a chip does not multiply in, or over a link it has not.

    Raises
    ------
    InputError
        As `check_precision` and `check_attention_precision`, and if something is to wait on the
        host, but the chip states no link to it.
    """
    for precision in (training.precision, *training.precision_by_linear.values()):
        check_precision(accelerator, precision)
    check_attention_precision(accelerator, training.attention_precision)
    if training.offloads and accelerator.host_link_bytes_per_s is None:
        raise InputError(
            "offload_parts or offload_optimizer is given, but the accelerator states no link to "
            "its host; state one, as with --set host_link_gb_per_s=55."
        )


def training_on(accelerator: Accelerator, training: Training) -> Training:
    """Return how a model is trained on a chip: with the copies of operands that it needs.

    Raises
    ------
    InputError
        If the training has fewer.
    """
    if training.precision != "fp8":
        return training
    if training.fp8_transposes is None:
        return replace(training, fp8_transposes=accelerator.fp8_column_copies)
    if accelerator.fp8_column_copies and not training.fp8_transposes:
        raise InputError(
            "fp8_transposes is off, but products of the chip read fp8 by columns from "
            "transposed copies only (its fp8_column_copies is true)."
        )
    return training


def tensor_cores_fit(columns: Mapping[str, FloatArray]) -> BoolArray:
    """Tell of many chips whose tensor cores `check_chip` accepts: (chips,)."""
    constants = area_constants("phaze-22nm")
    array_mm2 = columns["pe_x"] * columns["pe_y"] * constants.tensor_pe_um2 * MM2_PER_UM2
    return _cores_fit(columns["num_tc"], array_mm2)


def vector_cores_fit(columns: Mapping[str, FloatArray]) -> BoolArray:
    """Tell of many chips whose vector cores `check_chip` accepts: (chips,)."""
    constants = area_constants("phaze-22nm")
    lanes_mm2 = columns["pe_vc"] * constants.vector_lane_um2 * MM2_PER_UM2
    holds_values = columns["l2_vc_bytes"] >= LANE_VALUE_BYTES * columns["pe_vc"]
    return _cores_fit(columns["num_vc"], lanes_mm2) & holds_values


def buffers_fit(columns: Mapping[str, FloatArray]) -> BoolArray:
    """Tell of many chips which have memories that go together, in any shapes that do.

    The global buffer must hold a private one of either kind, as `check_chip` asks, and an HBM must
    have a bandwidth, as `Accelerator` does.
    """
    glb_bytes = columns["glb_bytes"]
    holds = (glb_bytes >= columns["l2_tc_bytes"]) & (glb_bytes >= columns["l2_vc_bytes"])
    return np.asarray(holds & ((columns["hbm_bytes"] == 0) | (columns["hbm_bytes_per_s"] > 0)))


def _cores_fit(count: FloatArray, area_mm2: FloatArray) -> BoolArray:
    """Tell which cores of one kind, each of some area, can be exposed, and are not too many."""
    largest = _largest_mm2()
    return (area_mm2 <= largest["array_mm2"]) & (count * area_mm2 <= largest["chip_mm2"])
