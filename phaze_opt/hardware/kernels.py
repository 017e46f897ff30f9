"""Kernels of fused attention by name: what each makes of a chip.

Chips run several, of other makers and years. A kernel has constants of its own on each chip,
forward and backward: in which share of the cycles the arrays work, how much of the softmax they
hide, what a row of tiles costs before its first and after its last tile. The constants of a chip's
default kernel are those of its calibration; `with_kernel` puts those of another in their place.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

from phaze_opt.choices import KernelName
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.hardware.chip_file import AcceleratorPreset
from phaze_opt.hardware.fields import KERNEL_FIELDS
from phaze_opt.hardware.measured_constants import Calibration

KERNELS: tuple[KernelName, ...] = get_args(KernelName)

_DEFAULTS: dict[str, Any] = {
    field.name: field.default
    for field in fields(Calibration)
    if field.name in KERNEL_FIELDS and field.name.startswith("attention")
}
"""What holds where a kernel states nothing; the rate of exponentials is then that of the chip."""


def with_kernel(preset: AcceleratorPreset, kernel: str | None) -> AcceleratorPreset:
    """Return a chip as one of its kernels of fused attention uses it.

    Parameters
    ----------
    preset
        The chip.
    kernel
        A name; ``None`` for the chip's default.

    Raises
    ------
    InputError
        If nobody measured this kernel on the chip.
    """
    if kernel is None:
        return preset
    if kernel not in KERNELS:
        raise unknown_name("attention kernel", kernel, KERNELS)
    if kernel not in preset.kernels:
        known = ", ".join(preset.kernels) or "none"
        raise InputError(
            f"The attention kernel {kernel} has no constants on {preset.name}; known are: {known}. "
            "Measured forwards and backwards give those of a chip (phaze-opt calibrate "
            "--attention)."
        )
    chip = preset.accelerator
    constants = {**_DEFAULTS, **preset.kernels[kernel]}
    calibration = replace(chip.calibration, **constants)
    return replace(preset, accelerator=replace(chip, calibration=calibration))
