"""From the values of a point to a design: a chip, a network and training options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phaze_opt.hardware.accelerator import Accelerator, default_l2_bytes
from phaze_opt.hardware.fields import chip_values, in_si, with_values
from phaze_opt.network.cluster import LEAVES, Cluster
from phaze_opt.network.cluster_file import LEVEL_ALIASES
from phaze_opt.network.level_values import (
    NETWORK,
    OF_LEAVES,
    level_field,
    level_value,
    with_level_values,
)
from phaze_opt.spec.axes import RULE, Fixed, Scalar
from phaze_opt.spec.axis_names import (
    CHIP_ALIASES,
    PRIVATE_BUFFERS,
    SPACE,
    kind_of,
)
from phaze_opt.spec.space import Space
from phaze_opt.training import Training, recompute_with


@dataclass(frozen=True)
class Design:
    """A chip with its network and the options of training runs on it.

    Attributes
    ----------
    cluster_name
        The name in the spec; for a file, its path.
    options
        By the names of `phaze_opt.spec.axis_names.TRAINING_NAMES`, without the options that every
        evaluation solves.
    """

    accelerator: Accelerator
    cluster: Cluster
    cluster_name: str
    options: Mapping[str, Scalar | None]


def chip_of(base: Accelerator, values: Mapping[str, Scalar]) -> Accelerator:
    """Return the chip of a point: the base chip with the values of the axes.

    Raises
    ------
    InputError
        If there is no such chip.
    """
    stated = {
        name: 0 if value == RULE else value
        for name, value in values.items()
        if kind_of(name) == "chip"
    }
    return with_values(base, in_si(stated, SPACE, chip_values(base)), SPACE)


def cluster_of(cluster: Cluster, values: Mapping[str, Scalar]) -> Cluster:
    """Return a network with the values that a point states for its levels.

    Where its topology has no leaf switches, what it states of these does not count.

    Raises
    ------
    InputError
        If there is no such level, or its value is not allowed.
    """
    stated = {name: value for name, value in values.items() if name.startswith(NETWORK)}
    for name, topology in list(stated.items()):
        level, _, field = name.rpartition(".")
        if field == "topology" and topology not in LEAVES:
            for of_leaves in OF_LEAVES:
                stated.pop(f"{level}.{of_leaves}", None)
    return with_level_values(cluster, stated, SPACE)


def training_of(options: Mapping[str, Scalar | None], global_batch: int | None) -> Training:
    """Return the training run with given options.

    Parameters
    ----------
    options
        As in `Design`, and the solved options.
    global_batch
        Global batch of the workload in samples; ``None`` for that of the options.

    Raises
    ------
    InputError
        If the options exclude each other.
    """
    fields: dict[str, Any] = {name: value for name, value in options.items() if name != "attention"}
    if global_batch is not None:
        fields["global_batch"] = global_batch
    if fields.get("pipeline_schedule") is None:
        fields["pipeline_schedule"] = "interleaved" if fields["interleave"] > 1 else "1f1b"
    if parts := fields.get("recompute_parts"):
        fields["recompute"] = recompute_with(parts, fields.get("recompute", "none"))
    return Training(**fields)


def values_of_design(space: Space, design: Design) -> dict[str, Scalar]:
    """Return the values of a design on the axes of a space, which need not hold them."""
    plain = dataclasses.asdict(design.accelerator)
    values: dict[str, Any] = {}
    for name, axis in space.axes.items():
        kind = kind_of(name)
        if kind == "training":
            values[name] = design.options[name]
        elif kind == "network":
            values[name] = _network_value(name, design)
        elif name in CHIP_ALIASES:
            values[name] = _in_unit(name, plain[CHIP_ALIASES[name].field])
        elif name in PRIVATE_BUFFERS and axis == Fixed(RULE) and _follows_rule(design.accelerator):
            values[name] = RULE
        elif name in plain:
            values[name] = plain[name]
        else:
            values[name] = design.accelerator.peak_flops_per_s / 1e12
    return values


def params_of_design(design: Design, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the values that name a design: cores, memories, main options and searched values.

    Parameters
    ----------
    design
        The design.
    values
        The values of its point by axis.
    """
    chip, options = design.accelerator, design.options
    named: dict[str, Any] = {
        "num_tc": chip.num_tc,
        "num_vc": chip.num_vc,
        "pe_x": chip.pe_x,
        "pe_y": chip.pe_y,
        "pe_vc": chip.pe_vc,
        "glb_mib": _in_unit("glb_mib", chip.glb_bytes),
        "hbm_gib": _in_unit("hbm_gib", chip.hbm_bytes),
    }
    named |= {name: options[name] for name in ("microbatch", "recompute") if name in options}
    return {**named, **values}


def _in_unit(name: str, value: float | None) -> float | None:
    """Convert a field of a chip to the unit of an alias; whole values of integer axes to int."""
    if value is None:
        return None  # a baseline may state none
    converted = value / float(CHIP_ALIASES[name].factor)
    return int(converted) if converted.is_integer() and CHIP_ALIASES[name].whole else converted


def _follows_rule(chip: Accelerator) -> bool:
    """Whether the sizes of both private buffers follow the rule."""
    rule = default_l2_bytes(chip.pe_x * chip.pe_y), default_l2_bytes(chip.pe_vc)
    return (chip.l2_tc_bytes, chip.l2_vc_bytes) == rule


def _network_value(name: str, design: Design) -> Any:
    """Return the value of an axis of the network."""
    cluster = design.cluster
    if name in ("cluster", "devices"):
        return design.cluster_name if name == "cluster" else cluster.devices
    index, field = level_field(name, SPACE)
    alias = LEVEL_ALIASES.get(field)
    if index >= len(cluster.levels):
        return None
    value: Any = level_value(cluster.levels[index], alias.field if alias else field)
    return alias.from_field(value) if alias and value is not None else value
