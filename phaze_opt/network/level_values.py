"""The numbers of a network's levels by name: ``network.0.latency_us`` of the innermost one.

The axes of a space, ``--set`` and what an explanation names share these names. A topology may also
be named with its dimensions, ``torus-2d`` or ``torus-3d``: its extents then follow from the size of
the level, the most even ones.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, get_args

from phaze_opt.codec import from_builtins, to_builtins
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.network.cluster import LEAVES, Cluster, NetworkLevel, Topology
from phaze_opt.network.cluster_file import LEVEL_ALIASES
from phaze_opt.user_files import without_aliases

NETWORK = "network."
"""What the names of a level's numbers begin with."""

_LEVEL = re.compile(r"network\.([0-9]{1,2})\.([a-z0-9_]+)")
TORUSES = {"torus-2d": 2, "torus-3d": 3}
"""Names of tori by their dimensions, and these."""

TOPOLOGIES = (*get_args(Topology), *TORUSES)
"""All names of topologies."""

OF_LEAVES = ("taper", "leaf_devices")
"""Fields that only levels with leaf switches have."""

LEVEL_NAMES = (*LEVEL_ALIASES, *(field.name for field in dataclasses.fields(NetworkLevel)))
"""Names of all numbers of a level."""


def level_field(name: str, what: str) -> tuple[int, str]:
    """Split ``network.0.latency_us`` into the index of the level and the name of its number.

    Parameters
    ----------
    name
        The name.
    what
        What states it, for the error's sentence (``"space"``).

    Raises
    ------
    InputError
        If it is no such name, or a level has no such number.
    """
    match = _LEVEL.fullmatch(name)
    if match is None:
        raise unknown_name(f"key in the {what}:", name, (f"{NETWORK}LEVEL.FIELD",))
    if match[2] not in LEVEL_NAMES:
        raise unknown_name(f"field of a network level in the {what}:", match[2], LEVEL_NAMES)
    return int(match[1]), match[2]


def with_level_values(cluster: Cluster, values: Mapping[str, object], what: str) -> Cluster:
    """Return a network with some numbers of its levels changed.

    Parameters
    ----------
    cluster
        The network to start from.
    values
        By names as `level_field` reads them.
    what
        See `level_field`.

    Raises
    ------
    InputError
        If there is no such level, or a number is not allowed.
    """
    stated: dict[int, dict[str, object]] = {}
    for name, value in values.items():
        index, field = level_field(name, what)
        stated.setdefault(index, {})[field] = value
    levels = list(cluster.levels)
    for index, fields in stated.items():
        if index >= len(levels):
            raise InputError(
                f"network.{index} of the {what} is no level of {cluster.name}, which has "
                f"{len(levels)}, the innermost 0."
            )
        level = f"level {index} of the network in the {what}"
        plain: dict[str, Any] = to_builtins(levels[index])
        given = without_aliases(fields, LEVEL_ALIASES, level)
        plain |= {**_that_follow(plain, given, level), **given}
        if plain["topology"] in TORUSES:
            plain["topology"] = "torus"
        levels[index] = from_builtins(plain, NetworkLevel, level)
    return dataclasses.replace(cluster, levels=tuple(levels)) if stated else cluster


def level_value(level: NetworkLevel, field: str) -> object:
    """Return a number of a level as `with_level_values` takes it."""
    if field == "topology" and level.topology == "torus":
        named = {dimensions: name for name, dimensions in TORUSES.items()}
        return named.get(len(level.axes), "torus")
    value: object = getattr(level, field)
    return value


def _that_follow(
    level: Mapping[str, Any], given: Mapping[str, object], what: str
) -> dict[str, object]:
    """Return the fields of a level that follow from another topology or size that is given."""
    follow: dict[str, object] = {}
    topology = given.get("topology", level["topology"])
    if "topology" in given:
        if topology not in TOPOLOGIES:
            raise unknown_name(f"topology of {what}:", topology, TOPOLOGIES)
        if topology not in LEAVES:
            follow |= {"taper": 1.0, "leaf_devices": None}
        if topology != "switch":
            follow |= {"in_switch_efficiency": 0.0, "in_switch_latency_s": 0.0}
    if "axes" in given or not given.keys() & {"topology", "group_size"}:
        return follow
    dimensions = TORUSES.get(str(topology), len(level["axes"]) if topology == "torus" else 0)
    size = given.get("group_size", level["group_size"])
    if dimensions and not isinstance(size, int):
        raise InputError(
            f"topology of {what} is {topology}, but group_size must say how many it joins."
        )
    follow["axes"] = even_extents(size, dimensions) if isinstance(size, int) else ()
    return follow


def even_extents(size: int, dimensions: int) -> tuple[int, ...]:
    """Return the extents of a torus of some devices: the least largest ones, falling.

    Parameters
    ----------
    size
        Their product.
    dimensions
        How many; none for a level that is no torus.
    """
    if dimensions <= 1:
        return (size,) * dimensions
    divisors = [each for each in range(1, size + 1) if size % each == 0]
    rest = (even_extents(size // each, dimensions - 1) for each in divisors)
    both = zip(divisors, rest, strict=True)
    return min(tuple(sorted((each, *others), reverse=True)) for each, others in both)
