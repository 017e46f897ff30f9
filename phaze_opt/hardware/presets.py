"""Accelerators by name or from a file, with single numbers changed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from phaze_opt.checked import Named, checked
from phaze_opt.codec import FILE_SUFFIXES, data_table, from_builtins
from phaze_opt.errors import InputError, look_up, unknown_name
from phaze_opt.hardware.accelerator import NAMED_FIELDS, Accelerator
from phaze_opt.hardware.chip_file import AcceleratorPreset, Provenance, read_chip_file
from phaze_opt.hardware.fields import (
    ALIASES,
    FIELD_TYPES,
    NAMES,
    chip_values,
    in_si,
    with_values,
)

FieldValue = str | float | bool | None
"""A changed number as `load_accelerator` takes it: a number, a switch, or either as text."""

_CHANGED = "changed by --set"
_NO_NUMBERS = ("description", "calibration", "kernel", "kernels")
_KIND = re.compile(r"(?P<name>[^=,]+)=(?P<devices>[0-9]{1,9})")


def read_kinds(text: str) -> list[tuple[str, int]]:
    """Read several kinds of device, ``a100-80=64,h100=32``: their names and how many there are.

    Nothing where the text names a single accelerator.
    """
    found = [_KIND.fullmatch(part.strip()) for part in text.split(",")]
    return [(each["name"], int(each["devices"])) for each in found if each] if all(found) else []


@cache
def accelerator_presets() -> dict[str, AcceleratorPreset]:
    """Return all accelerators of ``data/accelerators.toml`` by name."""
    table = data_table("hardware", "accelerators.toml")
    sources = table.pop("sources")
    entries = {name: table.get(entry.pop("base", ""), {}) | entry for name, entry in table.items()}
    return {name: _preset(name, entry, sources) for name, entry in entries.items()}


@checked
def load_accelerator(
    name_or_path: Annotated[Named, "the name or the path of an accelerator"],
    /,
    **fields: FieldValue,
) -> Accelerator:
    """Return a preset, or the accelerator of a file, with some of its numbers changed.

    Parameters
    ----------
    name_or_path
        Name of a preset, or path of a TOML or JSON file; see
        `phaze_opt.hardware.chip_file.read_chip_file`.
    **fields
        Numbers to change, by the names of `phaze_opt.hardware.fields.NAMES`: fields of
        `Accelerator`; in other units ``glb_mib``, ``hbm_gib``, ``hbm_gb_per_s``, ``clock_ghz``,
        ``l2_tc_kib`` and ``l2_vc_kib``; ``peak_tflops``, from which the clock follows; those of
        the calibration as ``calibration.<field>``. Values are numbers, or numbers as text, as
        ``--set`` gives them. A private buffer of the default size follows a changed PE array, and
        clocks under load a changed nominal one, in the ratio that they had.

    Raises
    ------
    InputError
        If the preset, a field or a value is not allowed.
    NotFoundError
        If there is no such file.
    """
    return configure_accelerator(os.fspath(name_or_path), fields).accelerator


def configure_accelerator(name_or_path: str, fields: Mapping[str, FieldValue]) -> AcceleratorPreset:
    """Return what `load_accelerator` does, with where each number comes from."""
    preset = find_accelerator(name_or_path)
    if not fields:
        return preset
    for name in fields:
        if name not in NAMES:
            raise unknown_name("accelerator field", name, NAMES)
    stated = {name: _read_value(name, value) for name, value in fields.items()}
    what = f"changes of {name_or_path}"
    values = in_si(stated, what, chip_values(preset.accelerator))
    chip = with_values(preset.accelerator, values, what)
    before, now = chip_values(preset.accelerator), chip_values(chip)
    changed = [name for name in FIELD_TYPES if before[name] != now[name]]
    provenance = {
        name: Provenance(_CHANGED, "") if name in changed else source
        for name, source in preset.provenance.items()
    }
    origins = {name: _CHANGED if name in changed else word for name, word in preset.origins.items()}
    return replace(preset, accelerator=chip, provenance=provenance, origins=origins)


def find_accelerator(name_or_path: str, above: tuple[Path, ...] = ()) -> AcceleratorPreset:
    """Return a preset, or the accelerator of a file, with the sources of its numbers.

    Parameters
    ----------
    name_or_path
        See `load_accelerator`.
    above
        Files that are based on it.

    Raises
    ------
    InputError
        If there is no such preset, or the file is not valid.
    NotFoundError
        If there is no such file.
    """
    if not name_or_path.endswith(FILE_SUFFIXES):
        if read_kinds(name_or_path):
            raise InputError(
                f"The accelerator is {name_or_path!r}, several kinds of device, which only the "
                "command evaluate and phaze_opt.device_kinds take; name one of them."
            )
        if "=" in name_or_path:
            raise InputError(
                f"The accelerator is {name_or_path!r}, but several kinds of device must be names "
                "with how many there are of each, as a100-80=64,h100=32."
            )
        return look_up(accelerator_presets(), name_or_path, "accelerator")
    return read_chip_file(Path(name_or_path), find_accelerator, above)


def _preset(name: str, entry: Mapping[str, Any], sources: Mapping[str, str]) -> AcceleratorPreset:
    """Split a table of the data file into the accelerator and the source of each number.

    Every row of the table, and of its tables ``calibration`` and ``kernels``, is value, source and
    confidence; ``kernel`` names the default one of the latter, which the calibration takes in.
    """
    kernels = {
        kernel: {key: float(value) for key, (value, _, _) in constants.items()}
        for kernel, constants in entry.get("kernels", {}).items()
    }
    rows = {key: row for key, row in entry.items() if key not in _NO_NUMBERS}
    measured = dict(entry.get("calibration", {}))
    if "kernel" in entry:
        measured |= entry["kernels"][entry["kernel"]]
    values = {key: value for key, (value, _, _) in rows.items()}
    values["calibration"] = {key: value for key, (value, _, _) in measured.items()}
    all_rows = rows | {f"calibration.{key}": row for key, row in measured.items()}
    provenance = {
        key: Provenance(sources[source], confidence)
        for key, (_, source, confidence) in all_rows.items()
    }
    accelerator = from_builtins(values, Accelerator, f"accelerator {name!r}")
    return AcceleratorPreset(name, entry["description"], accelerator, provenance, kernels=kernels)


def _read_value(name: str, value: FieldValue) -> bool | int | float | str | None:
    """Read one changed value as the type of its field; aliases are numbers."""
    type_name = "float" if name in ALIASES else FIELD_TYPES.get(name, "float")
    if type_name == "bool":
        if str(value).lower() not in ("true", "false"):
            raise InputError(f"{name} is {value!r}, but it must be true or false.")
        return str(value).lower() == "true"
    if "None" in type_name and (value is None or value == "none"):
        return None
    if name in NAMED_FIELDS:
        return str(value)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise InputError(f"{name} is {value!r}, but it must be a number.")
    try:
        number = float(value)
    except ValueError:
        raise InputError(f"{name} is {value!r}, but it must be a number.") from None
    if type_name != "int":
        return number
    if not number.is_integer():
        raise InputError(f"{name} is {value!r}, but it must give a whole number.")
    return int(number)
