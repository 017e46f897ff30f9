"""The numbers of an accelerator by name, as files, ``--set`` and ``show`` have them.

A number is a field of `Accelerator`, or of its calibration with the table's name
(``calibration.hbm_efficiency``). Some have a second name in a convenient unit (`ALIASES`), and the
clock may be stated by the peak that it gives (`PEAK_TFLOPS`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from phaze_opt.codec import from_builtins, to_builtins
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.hardware.accelerator import Accelerator, default_l2_bytes
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.units import GIB, KIB, MIB
from phaze_opt.user_files import Alias, alias_of, finite, without_aliases

CALIBRATION = "calibration."
"""What the names of measured properties begin with."""

PEAK_TFLOPS = "peak_tflops"
"""Nominal bf16 peak in TFLOP/s, from which the clock follows."""

_SUSTAINED, _BURST = f"{CALIBRATION}sustained_clock_hz", f"{CALIBRATION}burst_clock_hz"

_GIGA, _MICRO = Fraction(10**9), Fraction(1, 10**6)

ALIASES = {
    "glb_mib": Alias("glb_bytes", Fraction(MIB), whole=True),
    "hbm_gib": Alias("hbm_bytes", Fraction(GIB), whole=True),
    "hbm_gb_per_s": Alias("hbm_bytes_per_s", _GIGA),
    "host_link_gb_per_s": Alias("host_link_bytes_per_s", _GIGA),
    "clock_ghz": Alias("clock_hz", _GIGA),
    "l2_tc_kib": Alias("l2_tc_bytes", Fraction(KIB), whole=True),
    "l2_vc_kib": Alias("l2_vc_bytes", Fraction(KIB), whole=True),
    f"{CALIBRATION}sustained_clock_ghz": Alias(_SUSTAINED, _GIGA),
    f"{CALIBRATION}burst_clock_ghz": Alias(_BURST, _GIGA),
    f"{CALIBRATION}operator_overhead_us": Alias(f"{CALIBRATION}operator_overhead_s", _MICRO),
    **{
        f"{CALIBRATION}{cores}_core_gb_per_s": Alias(
            f"{CALIBRATION}{cores}_core_bytes_per_s", _GIGA
        )
        for cores in ("vector", "scan")
    },
}
"""Names in convenient units."""

FIELD_TYPES = {
    field.name: str(field.type)
    for field in dataclasses.fields(Accelerator)
    if field.name != "calibration"
} | {f"{CALIBRATION}{field.name}": str(field.type) for field in dataclasses.fields(Calibration)}
"""Type of every number by its name, in the order of `Accelerator`."""

NAMES = (*FIELD_TYPES, *ALIASES, PEAK_TFLOPS)
"""All names that files and ``--set`` may use."""


KERNEL_FIELDS = (
    *(
        field.name
        for field in dataclasses.fields(Calibration)
        if field.name.startswith("attention")
    ),
    "exponentials_per_cycle",
)
"""Fields of the calibration that belong to a kernel of fused attention."""


def chip_values(chip: Accelerator) -> dict[str, Any]:
    """Return every number of a chip by name, in the order of `FIELD_TYPES`."""
    return flat(to_builtins(chip))


def in_units(name: str, value: object) -> tuple[str, float] | None:
    """Return the alias of a number and the value in its unit.

    ``None`` if there is no alias, or none in which the number reads back to the last bit.
    """
    return alias_of(name, value, ALIASES)


def field_of(name: str) -> str:
    """Return the field that a name states: the name itself, or that of which it is an alias."""
    return ALIASES[name].field if name in ALIASES else name


def flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Name the values of a nested document as in `FIELD_TYPES`; unknown names are kept."""
    calibration = entry.get("calibration", {})
    own = {name: value for name, value in entry.items() if name != "calibration"}
    if not isinstance(calibration, Mapping):
        return {**own, "calibration": calibration}
    return {**own, **{f"{CALIBRATION}{name}": value for name, value in calibration.items()}}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Reverse `flat`."""
    own = {name: value for name, value in values.items() if not name.startswith(CALIBRATION)}
    measured = {
        name.removeprefix(CALIBRATION): value
        for name, value in values.items()
        if name.startswith(CALIBRATION)
    }
    return {**own, "calibration": measured} if measured else own


def in_si(stated: Mapping[str, Any], what: str, base: Mapping[str, Any]) -> dict[str, Any]:
    """Replace aliases and the peak by the fields that they stand for.

    Parameters
    ----------
    stated
        Values by any of `NAMES`.
    what
        What states them, for the error's sentence.
    base
        Numbers that hold where none is stated.

    Raises
    ------
    InputError
        If a name is unknown, a number is stated twice, or the peak does not give a clock.
    """
    for name in stated:
        if name not in NAMES:
            raise unknown_name(f"key in the {what}:", name, NAMES)
    values = without_aliases(stated, ALIASES, what)
    if PEAK_TFLOPS not in values:
        return values
    peak_tflops = finite(PEAK_TFLOPS, values.pop(PEAK_TFLOPS), what)
    if "clock_hz" in values:
        clock = next(name for name in ("clock_hz", "clock_ghz") if name in stated)
        raise InputError(
            f"{PEAK_TFLOPS} and {clock} both state the clock in the {what}; give one of them."
        )
    units = 1.0
    for name in ("num_tc", "pe_x", "pe_y"):
        count = base.get(name) if values.get(name) is None else values[name]
        units *= finite(name, count, what)
        if units <= 0.0:
            raise InputError(f"{name} is {count} in the {what}, but it must be positive.")
    return {**values, "clock_hz": peak_tflops * 1e12 / (2.0 * units)}


def with_values(chip: Accelerator, values: Mapping[str, Any], what: str) -> Accelerator:
    """Return a chip with some of its numbers changed.

    A private buffer of the default size follows a changed PE array. Clocks under load follow a
    changed nominal one in the ratio that they had, unless they are stated as well: a chip with a
    faster clock that loses it at the first long product would be faster on paper only. A chip with
    other numbers than measured ones is another part, whose rated power and dies nobody knows unless
    they are stated.

    Parameters
    ----------
    chip
        The chip to start from.
    values
        Numbers by the names of `FIELD_TYPES`.
    what
        What states them, for the error's sentence.

    Raises
    ------
    InputError
        If a value is not allowed.
    """
    merged = chip_values(chip)
    # A buffer that has the size of the rule keeps following it; one that was stated stays.
    if chip.l2_tc_bytes == default_l2_bytes(chip.pe_x * chip.pe_y):
        merged["l2_tc_bytes"] = 0
    if chip.l2_vc_bytes == default_l2_bytes(chip.pe_vc):
        merged["l2_vc_bytes"] = 0
    if any(
        not name.startswith(CALIBRATION) and value not in (merged[name], getattr(chip, name))
        for name, value in values.items()
    ):
        merged |= dict.fromkeys(("tdp_w", "die_mm2", "dies_per_package"))
    merged |= _clocks_under_load(chip, values)
    return from_builtins(nested({**merged, **values}), Accelerator, what)


def _clocks_under_load(chip: Accelerator, values: Mapping[str, Any]) -> dict[str, float]:
    """Return the measured clocks that follow a changed nominal one; see `with_values`.

    The burst clock stays between the sustained and the nominal one where only these are stated.
    """
    clock_hz = values.get("clock_hz")
    if not isinstance(clock_hz, int | float) or not clock_hz > 0.0:
        return {}
    ratio, measured = clock_hz / chip.clock_hz, chip.calibration
    followed: dict[str, float] = {}
    if measured.sustained_clock_hz is not None:
        followed[_SUSTAINED] = min(measured.sustained_clock_hz * ratio, clock_hz)
    if measured.burst_clock_hz is not None:
        sustained_hz = values.get(_SUSTAINED, followed.get(_SUSTAINED))
        least_hz = sustained_hz if isinstance(sustained_hz, int | float) else clock_hz
        followed[_BURST] = min(max(measured.burst_clock_hz * ratio, least_hz), clock_hz)
    return followed
