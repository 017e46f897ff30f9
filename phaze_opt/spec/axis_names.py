"""The names of axes: fields of the chip, of the network and of the training run.

A field may be named in its SI unit or in a convenient unit (``glb_bytes`` or ``glb_mib``), as in
accelerator and cluster files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal, get_args

from phaze_opt.choices import AreaModel, AttentionKind
from phaze_opt.codec import from_builtins
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.hardware.fields import ALIASES, CALIBRATION, FIELD_TYPES, PEAK_TFLOPS
from phaze_opt.limits import MOST_SAMPLES
from phaze_opt.network.cluster_file import LEVEL_ALIASES
from phaze_opt.network.level_values import NETWORK, TOPOLOGIES, level_field
from phaze_opt.spec.axes import RULE, Scalar
from phaze_opt.training import Training

AxisKind = Literal["chip", "network", "training"]

_NOT_SEARCHED = (
    *("concurrent_operators", "tdp_w", "fp8_column_copies"),
    *("process_node", "memory_kind", "die_mm2", "dies_per_package"),
)
CHIP_FIELDS = {
    name: kind
    for name, kind in FIELD_TYPES.items()
    if not name.startswith(CALIBRATION) and name not in _NOT_SEARCHED
}
"""Type of every field of `Accelerator` that may be an axis."""

CHIP_ALIASES = {name: alias for name, alias in ALIASES.items() if not name.startswith(CALIBRATION)}
"""Names of these fields in convenient units."""

RATIOS = ("fp8_ratio", "fp4_ratio", "int8_ratio")
"""Fields that say how fast arrays multiply fewer bits than 16."""

PRIVATE_BUFFERS = ("l2_tc_bytes", "l2_vc_bytes")
"""Fields whose value may be `phaze_opt.spec.axes.RULE`."""

_NOT_OF_STUDIES = ("zero_group",)
"""Options for which no placement is searched."""

TRAINING_NAMES = (
    *(field.name for field in dataclasses.fields(Training) if field.name not in _NOT_OF_STUDIES),
    "attention",
)
"""Options of the training run, and the attention of the model."""

WORDS = (
    "recompute",
    "optimizer",
    "pipeline_schedule",
    "overlap",
    "launch",
    "gradient_dtype",
    "accumulation_dtype",
    "dispatcher",
    "dispatch_precision",
    "precision",
    "attention_precision",
    "fp8_scaling",
    "context_kind",
    "recompute_parts",
    "offload_parts",
    "linear_precisions",
    "rank_order",
    "attention",
    "cluster",
)
"""Axes whose values are words; text on any other axis names the axis that it follows."""

# The order of the first names is that of older versions: a seed then gives the same trials.
_FIRST = ("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc", "glb_mib", "microbatch", "hbm_gib")
_KNOWN = (*CHIP_ALIASES, *CHIP_FIELDS, PEAK_TFLOPS, "cluster", "devices", *TRAINING_NAMES)
ORDER = {name: place for place, name in enumerate(dict.fromkeys((*_FIRST, "recompute", *_KNOWN)))}
"""Place of every name in a space; names of network levels come after them."""

SPACE = "space"
"""Name of the part of a spec with the axes, for error sentences."""

_NOT_CHARGED = {
    "hbm_bytes_per_s": "HBM bandwidth",
    "glb_bytes_per_cycle": "bandwidth of the global buffer",
    "l2_tc_bytes": "L2 size (its list has the size of the rule)",
    "l2_vc_bytes": "L2 size (its list has the size of the rule)",
    **dict.fromkeys(RATIOS, "arrays that multiply fewer bits than 16"),
}


def is_of_words(name: str) -> bool:
    """Say whether the values of an axis are words; text there is no other axis."""
    return name in WORDS or (name.startswith(NETWORK) and name.endswith(".topology"))


def kind_of(name: str) -> AxisKind:
    """Return whether an axis belongs to the chip, the network or the training run.

    Raises
    ------
    InputError
        If there is no such axis.
    """
    if name in CHIP_FIELDS or name in CHIP_ALIASES or name == PEAK_TFLOPS:
        return "chip"
    if name in ("cluster", "devices"):
        return "network"
    if name in TRAINING_NAMES:
        return "training"
    if name.startswith(CALIBRATION) or name in _NOT_SEARCHED:
        raise InputError(
            f"{name} cannot be an axis: it is a property of the chip that is measured, not chosen; "
            "an accelerator file with a base can state it."
        )
    if not name.startswith(NETWORK):
        raise unknown_name("key in the space:", name, (*ORDER, f"{NETWORK}LEVEL.FIELD"))
    level_field(name, SPACE)
    return "network"


def place_of(name: str) -> tuple[int, str]:
    """Return the place of an axis among the axes of a space."""
    return ORDER.get(name, len(ORDER)), name


def field_of(name: str) -> str:
    """Return the field in SI units that an axis states, by the name of the axis."""
    if name in CHIP_ALIASES:
        return CHIP_ALIASES[name].field
    if name == PEAK_TFLOPS:
        return "clock_hz"
    if name.startswith(NETWORK):
        index, field = level_field(name, SPACE)
        alias = LEVEL_ALIASES.get(field)
        return f"network.{index}.{alias.field if alias else field}"
    return name


def check_value(name: str, value: Scalar) -> None:
    """Refuse a value that the field of an axis cannot have.

    Raises
    ------
    InputError
        If the value is refused; a sentence about the value begins after the name of the axis.
    """
    kind = kind_of(name)
    if kind == "training":
        _check_training(name, value)
    elif kind == "chip":
        _check_number(name, value, whole=CHIP_FIELDS.get(name) == "int")
    elif name == "devices":
        _check_number(name, value, whole=True)
    elif name == "cluster" and not isinstance(value, str):
        raise InputError(f"holds {value!r}, but it must name a cluster.")
    elif name.startswith(NETWORK) and is_of_words(name) and value not in TOPOLOGIES:
        raise unknown_name(f"topology in {name} of the space:", value, TOPOLOGIES)


def refuse_free_axes(fields: Iterable[str], model: AreaModel, *, has_power_limit: bool) -> None:
    """Refuse searched fields that the area model does not charge for: the largest always wins.

    Parameters
    ----------
    fields
        The fields in SI units of the axes with several values.
    model
        Area model of the study.
    has_power_limit
        Whether the power of a device is limited.

    Raises
    ------
    InputError
        If there is such an axis; the sentence names it and the reason.
    """
    for field in fields:
        if field in _NOT_CHARGED and model == "phaze-22nm":
            raise InputError(
                f"{field} cannot be searched under the area model phaze-22nm, which does not "
                f'charge for {_NOT_CHARGED[field]}; write model = "chip" under [area], or fix '
                "it."
            )
        if field == "l2_bytes_per_cycle":
            raise InputError(
                "l2_bytes_per_cycle cannot be searched, since no area model charges for the "
                "bandwidth of private buffers; fix it."
            )
        if field == "host_link_bytes_per_s":
            raise InputError(
                "host_link_bytes_per_s cannot be searched, since no area model charges for the "
                "link to the host; fix it."
            )
        if field == "clock_hz" and (model == "phaze-22nm" or not has_power_limit):
            raise InputError(
                "clock_hz cannot be searched without a limit of the power, since no area model "
                'charges for the clock; write model = "chip" under [area] and max_power_w under '
                "[constraints], or fix it."
            )


def _check_number(name: str, value: Scalar, *, whole: bool) -> None:
    """Refuse a value that is not a positive number, or not an integer if the axis needs it.

    An HBM of 0 is none.
    """
    if value == RULE and name in PRIVATE_BUFFERS:
        return
    if field_of(name) == "hbm_bytes" and type(value) in (int, float) and value == 0:
        return
    if isinstance(value, bool | str) or (whole and not isinstance(value, int)) or value <= 0:
        kind = "whole number" if whole else "number"
        raise InputError(f"holds {value!r}, but it must be a positive {kind}.")


def _check_training(name: str, value: Scalar) -> None:
    """Refuse a value that `Training` refuses."""
    if name == "attention":
        if value not in get_args(AttentionKind):
            raise unknown_name("attention in the space:", value, get_args(AttentionKind))
        return
    # Beside these, only the option itself can be refused.
    fields: dict[str, Any] = {
        "global_batch": MOST_SAMPLES,
        "pipeline_schedule": "interleaved",
        "optimizer": "adam",
        "precision": "fp8",
    }
    if name == "recompute_parts":
        fields["recompute"] = "selective"
    try:
        from_builtins({**fields, name: value}, Training, "space")
    except InputError as error:
        raise InputError(str(error).removeprefix("The space is not valid: ")) from None
