"""An accelerator as a file that a person can write, and where each of its numbers comes from.

A file (TOML, or JSON as ``accelerator show --json`` prints it) states numbers by the names of
`phaze_opt.hardware.fields`; see `read_chip_file` for those that it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from phaze_opt.codec import data_table, from_builtins, read_document, toml_value
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.hardware.accelerator import L2_BYTES_PER_PE, Accelerator
from phaze_opt.hardware.fields import (
    ALIASES,
    CALIBRATION,
    FIELD_TYPES,
    KERNEL_FIELDS,
    NAMES,
    chip_values,
    field_of,
    flat,
    in_si,
    in_units,
    nested,
    with_values,
)
from phaze_opt.precision import BF16, SUM_BYTES
from phaze_opt.user_files import Find, commented_line, find_base, finite

IMPLIED = ("peak_flops_per_s", "area_mm2", "area_chip_mm2")
"""Numbers that follow from the others."""

_NEEDED = tuple(
    declared.name
    for declared in fields(Accelerator)
    if declared.default is MISSING and declared.default_factory is MISSING
)
"""Fields that a file without a base must state."""

_STATED, _DEFAULT = "stated", "default"
_DERIVED = "derived: "


@dataclass(frozen=True)
class Provenance:
    """Source of one number of a preset, and the confidence in it; none in one that was changed."""

    source: str
    confidence: Literal["high", "medium", "low", ""]


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
        Sources by the names of `phaze_opt.hardware.fields.FIELD_TYPES`. A field without a source
        has its default, that of hypothetical chips.
    origins
        Of a chip from a file, by the same names: ``stated``, ``from`` its base, ``derived`` from
        other numbers, or ``default``. Empty for a preset.
    kernels
        Constants of its kernels of fused attention, by kernel; see `phaze_opt.hardware.kernels`.
        Those of the default one are part of the calibration.
    """

    name: str
    description: str
    accelerator: Accelerator
    provenance: Mapping[str, Provenance]
    origins: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def assumed(self) -> dict[str, str]:
        """Numbers that the file does not state, and where their values come from.

        One without a value (no limit, no measured clock) assumes nothing.
        """
        values = chip_values(self.accelerator)
        return {
            name: origin
            for name, origin in self.origins.items()
            if (origin == _DEFAULT or origin.startswith(_DERIVED)) and values[name] is not None
        }


def derived_numbers(chip: Accelerator) -> dict[str, float | None]:
    """Return the peak in FLOP/s and both areas in mm², by the names of `IMPLIED`.

    An area is ``None`` where a memory lies outside the area model.
    """
    numbers = chip.peak_flops_per_s, chip.area_mm2, chip.area_chip_mm2
    return dict(zip(IMPLIED, numbers, strict=True))


def read_chip_file(
    path: Path, find: Find[AcceleratorPreset], above: tuple[Path, ...] = ()
) -> AcceleratorPreset:
    """Read an accelerator from a file.

    With ``base``, a preset or the path of another file (from the folder of this one), numbers that
    the file leaves out are the base's. Without, they are derived where physics allows:

    * a private buffer holds `L2_BYTES_PER_PE` for each element of its core;
    * the global buffer slows neither the arrays nor the HBM (`glb_bytes_per_cycle_for`);

    and the others have the defaults of `Accelerator`. A file may also hold a ``name``, a
    ``description``, a table ``provenance``, tables ``kernels``, and the numbers of
    `derived_numbers`, which must then be those of the chip.

    Parameters
    ----------
    path
        The file.
    find, above
        Finds the base, and the files that are based on this one; see `find_base`.

    Raises
    ------
    InputError
        If the file is not valid.
    NotFoundError
        If there is no such file, or no such base.
    """
    what = f"accelerator file {path}"
    entry = read_document(path, "accelerator file")
    stated_description = entry.pop("description", None) or ""
    description = from_builtins(stated_description, str, f"description in the {what}")
    from_builtins(entry.pop("name", ""), str, f"name in the {what}")
    base_name = entry.pop("base", None)
    provenance = _read_provenance(entry.pop("provenance", {}), what)
    implied = {name: entry.pop(name) for name in IMPLIED if name in entry}
    stated_kernels = _read_kernels(entry.pop("kernels", {}), what)
    if base_name is None:
        chip, origins = _from_scratch(entry, what)
        inherited: Mapping[str, Provenance] = {}
        kernels: Mapping[str, Mapping[str, float]] = stated_kernels
    else:
        base = find_base(base_name, path, what, find, above)
        values = in_si(flat(entry), what, chip_values(base.accelerator))
        chip = with_values(base.accelerator, values, what)
        before, now = chip_values(base.accelerator), chip_values(chip)
        followed = [name for name in now if name not in values and now[name] != before[name]]
        origins = {
            name: _STATED if name in values else base.origins.get(name, f"from {base_name}")
            for name in FIELD_TYPES
        } | dict.fromkeys(followed, f"{_DERIVED}follows what the file states, as in {base_name}")
        inherited = {
            name: source
            for name, source in base.provenance.items()
            if name not in values and name not in followed
        }
        description = description or f"from {base_name}"
        kernels = {**base.kernels, **stated_kernels}
    _check_implied(implied, chip, what)
    sources = {**inherited, **provenance}
    return AcceleratorPreset(str(path), description, chip, sources, origins, kernels)


def _from_scratch(entry: Mapping[str, Any], what: str) -> tuple[Accelerator, dict[str, str]]:
    """Build a chip that has no base, and say where each number comes from.

    Raises
    ------
    InputError
        If a number is left out that nobody can guess, all of which are named; or one is wrong.
    """
    stated = flat(entry)
    present = {field_of(name) for name, value in stated.items() if value is not None}
    missing = [name for name in _NEEDED if name not in present]
    if missing and stated.keys() <= set(NAMES):
        raise InputError(
            f"The {what} does not state {', '.join(missing)}; add what is missing, or a base whose "
            'numbers hold instead, for example base = "h100".'
        )
    values = in_si(stated, what, {})
    chip = from_builtins(nested(values), Accelerator, what)
    origins = {name: _STATED if name in values else _DEFAULT for name in FIELD_TYPES}
    for name, elements in (("l2_tc_bytes", "PE"), ("l2_vc_bytes", "lane")):
        if not values.get(name):
            origins[name] = f"{_DERIVED}{L2_BYTES_PER_PE} B per {elements}, at least 1 KiB"
    if "glb_bytes_per_cycle" not in values:
        chip = replace(chip, glb_bytes_per_cycle=glb_bytes_per_cycle_for(chip))
        origins["glb_bytes_per_cycle"] = f"{_DERIVED}what the arrays and the HBM need"
    return chip, origins


def glb_bytes_per_cycle_for(chip: Accelerator) -> float:
    """Return the bandwidth of a global buffer that slows neither the arrays nor the HBM.

    A tile of a × b sums takes in a + b operands for a · b multiply-accumulates, so an array of P
    elements reads P / a + P / b operands per cycle. The private buffer holds two tiles, and half of
    each is operands; the tile is square unless the array is longer than that. (For the published
    point of Phaze, ICML 2024, this gives its 4096 bytes.) What passes between HBM and cores is
    written into the global buffer and read from it.
    """
    sums = chip.l2_tc_bytes / 4 / SUM_BYTES
    longer = max(math.sqrt(sums), chip.pe_x, chip.pe_y)
    operands = chip.pe_x * chip.pe_y * (1 / longer + longer / sums)
    arrays = chip.num_tc * BF16.operand_bytes * operands
    hbm = 2 * chip.hbm_bytes_per_s / chip.clock_hz if chip.has_hbm else 0.0
    return float(math.ceil(max(arrays, hbm)))


def _read_provenance(sources: object, what: str) -> dict[str, Provenance]:
    """Read the table of sources; those of nested documents stand under ``calibration.<field>``."""
    provenance = from_builtins(sources, dict[str, Provenance], f"provenance in the {what}")
    for name in provenance.keys() - FIELD_TYPES.keys():
        raise unknown_name(f"field in the provenance of the {what}:", name, FIELD_TYPES)
    return provenance


def _read_kernels(tables: object, what: str) -> dict[str, Mapping[str, float]]:
    """Read the constants of kernels of fused attention; see `phaze_opt.hardware.kernels`."""
    kernels = from_builtins(tables, dict[str, dict[str, float]], f"kernels in the {what}")
    for constants in kernels.values():
        for name in constants.keys() - set(KERNEL_FIELDS):
            raise unknown_name(f"constant of a kernel in the {what}:", name, KERNEL_FIELDS)
    return {**kernels}


def _check_implied(stated: Mapping[str, Any], chip: Accelerator, what: str) -> None:
    """Refuse numbers that do not follow from the others."""
    follows = derived_numbers(chip)
    for name, value in stated.items():
        expected = follows[name]
        if value is None or expected is None:
            agrees = value is expected
        else:
            agrees = math.isclose(finite(name, value, what), expected, rel_tol=1e-9)
        if not agrees:
            raise InputError(
                f"{name} is {value} in the {what}, but it follows from the other numbers and is "
                f"{expected}; leave it out."
            )


def chip_file_text(preset: AcceleratorPreset) -> str:
    """Write every number of a chip with what it means, and the sources of those that have one.

    Parameters
    ----------
    preset
        Its name is not written: the path of the file takes its place.
    """
    values = chip_values(preset.accelerator)
    own = [name for name in values if not name.startswith(CALIBRATION)]
    lines = [f"description = {toml_value(preset.description)}"] if preset.description else []
    lines += [_line(name, values[name]) for name in own]
    lines += ["", "[calibration]"]
    lines += [_line(name, values[name]) for name in values if name not in own]
    sourced = {name: origin for name, origin in preset.provenance.items() if origin.confidence}
    if sourced:
        lines += ["", "# Where the numbers come from; remove the line of one that you change."]
        lines += ["[provenance]"]
    for name, origin in sourced.items():
        source, confidence = toml_value(origin.source), toml_value(origin.confidence)
        lines.append(f"{toml_value(name)} = {{ source = {source}, confidence = {confidence} }}")
    for kernel, constants in preset.kernels.items():
        lines += ["", f"[kernels.{toml_value(kernel)}]"]
        lines += [f"{name} = {toml_value(value)}" for name, value in constants.items()]
    return "\n".join(lines) + "\n"


def _line(field: str, value: object) -> str:
    """Write one number in its most convenient unit, with its meaning."""
    meaning = data_table("hardware", "fields.toml")[field]
    name, shown = in_units(field, value) or (field, value)
    if isinstance(shown, float) and shown.is_integer() and name in ALIASES:
        shown = int(shown)
    return commented_line(name.removeprefix(CALIBRATION), shown, meaning)
