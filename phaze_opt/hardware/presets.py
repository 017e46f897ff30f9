"""Accelerators by name or from a TOML file, with single fields changed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from phaze_opt.codec import data_table, from_builtins, read_toml_file
from phaze_opt.errors import InputError, look_up, unknown_name
from phaze_opt.hardware.accelerator import Accelerator, Calibration, default_l2_bytes
from phaze_opt.units import GIB, MIB

_SCALED_KEYS = {
    "glb_mib": ("glb_bytes", MIB),
    "hbm_gib": ("hbm_bytes", GIB),
    "clock_ghz": ("clock_hz", 1e9),
}
"""Keys in convenient units: the field that each sets, and the factor to the field's unit."""

_NAMES = frozenset(field.name for field in dataclasses.fields(Accelerator)) | {
    f"calibration.{field.name}" for field in dataclasses.fields(Calibration)
}
"""Numbers of an accelerator; those of its calibration with the table's name."""

FieldValue = str | float | bool | None
"""A changed field as `load_accelerator` takes it: a number, a switch, or either as text."""


@dataclass(frozen=True)
class Provenance:
    """Source of one number of a preset, and the confidence in it."""

    source: str
    confidence: Literal["high", "medium", "low"]


@dataclass(frozen=True)
class AcceleratorPreset:
    """A named accelerator with the source of each of its numbers.

    Attributes
    ----------
    name, description
        Key in ``data/accelerators.toml``, or path of a file, and one line that says which chip it
        is.
    accelerator
        The chip.
    provenance
        Sources by field of `Accelerator`; fields of the calibration as ``"calibration.<field>"``. A
        field without a source has its default, that of hypothetical chips.
    """

    name: str
    description: str
    accelerator: Accelerator
    provenance: Mapping[str, Provenance]


@cache
def accelerator_presets() -> dict[str, AcceleratorPreset]:
    """Return all accelerators of ``data/accelerators.toml`` by name."""
    table = data_table("hardware", "accelerators.toml")
    sources = table.pop("sources")
    return {name: _preset(name, entry, sources) for name, entry in table.items()}


def load_accelerator(name_or_path: str, /, **fields: FieldValue) -> Accelerator:
    """Return a preset, or the accelerator of a TOML file, with some of its fields changed.

    Parameters
    ----------
    name_or_path
        Name of a preset, or path of a file ending in ``.toml`` with the fields of `Accelerator`.
    **fields
        Fields of `Accelerator` to change (the calibration aside), and ``glb_mib``, ``hbm_gib`` and
        ``clock_ghz`` in their own units. Values are numbers, or numbers as text, as ``--set`` gives
        them. A private buffer of the default size follows a changed PE array; no clock under load
        stays above a changed nominal one.

    Raises
    ------
    InputError
        If the preset, a field or a value is not allowed.
    NotFoundError
        If there is no such file.
    """
    return _with_fields(find_accelerator(name_or_path).accelerator, fields)


def find_accelerator(name_or_path: str) -> AcceleratorPreset:
    """Return a preset, or the accelerator of a TOML file, with the sources of its numbers.

    Besides the fields of `Accelerator` a file may hold a ``description`` and a table ``provenance``
    with ``source`` and ``confidence`` by field, as `phaze_opt.hardware.chip_file` writes them.

    Raises
    ------
    InputError
        If there is no such preset, or the file is not valid.
    NotFoundError
        If there is no such file.
    """
    if not name_or_path.endswith(".toml"):
        return look_up(accelerator_presets(), name_or_path, "accelerator")
    path = Path(name_or_path)
    entry, what = read_toml_file(path, "accelerator file"), f"accelerator file {path}"
    description = from_builtins(entry.pop("description", ""), str, f"description in the {what}")
    sources = entry.pop("provenance", {})
    provenance = from_builtins(sources, dict[str, Provenance], f"provenance in the {what}")
    for name in provenance.keys() - _NAMES:
        raise unknown_name(f"field in the provenance of the {what}:", name, _NAMES)
    accelerator = from_builtins(entry, Accelerator, what)
    return AcceleratorPreset(name_or_path, description, accelerator, provenance)


def _with_fields(accelerator: Accelerator, fields: Mapping[str, FieldValue]) -> Accelerator:
    """Change fields of an accelerator; see `load_accelerator`."""
    types = {
        field.name: str(field.type)
        for field in dataclasses.fields(Accelerator)
        if field.name != "calibration"
    }
    changes: dict[str, Any] = {}
    for key, value in fields.items():
        if key not in types and key not in _SCALED_KEYS:
            raise unknown_name("accelerator field", key, [*types, *_SCALED_KEYS])
        name, factor = _SCALED_KEYS.get(key, (key, 1))
        changes[name] = _read_value(key, value, types[name], factor)
    # A buffer that has the size of the rule keeps following it; one that was stated stays.
    if accelerator.l2_tc_bytes == default_l2_bytes(accelerator.pe_x * accelerator.pe_y):
        changes.setdefault("l2_tc_bytes", 0)
    if accelerator.l2_vc_bytes == default_l2_bytes(accelerator.pe_vc):
        changes.setdefault("l2_vc_bytes", 0)
    if "clock_hz" in changes:
        changes["calibration"] = _clocked(accelerator.calibration, changes["clock_hz"])
    return dataclasses.replace(accelerator, **changes)


def _clocked(calibration: Calibration, clock_hz: float) -> Calibration:
    """Return a calibration without clocks above the nominal one."""

    def limited(measured_hz: float | None) -> float | None:
        return None if measured_hz is None else min(measured_hz, clock_hz)

    return dataclasses.replace(
        calibration,
        sustained_clock_hz=limited(calibration.sustained_clock_hz),
        burst_clock_hz=limited(calibration.burst_clock_hz),
    )


def _preset(name: str, entry: Mapping[str, Any], sources: Mapping[str, str]) -> AcceleratorPreset:
    """Split a table of the data file into the accelerator and the source of each number.

    Every row of the table, and of its table ``calibration``, is value, source and confidence.
    """
    rows = {key: row for key, row in entry.items() if key not in ("description", "calibration")}
    measured = entry.get("calibration", {})
    values = {key: value for key, (value, _, _) in rows.items()}
    values["calibration"] = {key: value for key, (value, _, _) in measured.items()}
    all_rows = rows | {f"calibration.{key}": row for key, row in measured.items()}
    provenance = {
        key: Provenance(sources[source], confidence)
        for key, (_, source, confidence) in all_rows.items()
    }
    accelerator = from_builtins(values, Accelerator, f"accelerator {name!r}")
    return AcceleratorPreset(name, entry["description"], accelerator, provenance)


def _read_value(
    key: str, value: FieldValue, type_name: str, factor: float
) -> bool | int | float | None:
    """Read one changed value as the type of its field."""
    if type_name == "bool":
        if str(value).lower() not in ("true", "false"):
            raise InputError(f"{key} is {value!r}, but it must be true or false.")
        return str(value).lower() == "true"
    if value is None and "None" in type_name:
        return None
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise InputError(f"{key} is {value!r}, but it must be a number.")
    try:
        number = float(value) * factor
    except ValueError:
        raise InputError(f"{key} is {value!r}, but it must be a number.") from None
    if type_name != "int":
        return number
    if factor != 1 and math.isfinite(number):
        number = float(round(number))
    if not number.is_integer():
        raise InputError(f"{key} is {value!r}, but it must give a whole number.")
    return int(number)
