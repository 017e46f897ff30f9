"""The numbers of a network's levels by name: ``network.0.latency_us`` of the innermost one.

The axes of a space, ``--set`` and what an explanation names share these names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from phaze_opt.codec import from_builtins, to_builtins
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.cluster_file import LEVEL_ALIASES
from phaze_opt.user_files import without_aliases

NETWORK = "network."
"""What the names of a level's numbers begin with."""

_LEVEL = re.compile(r"network\.([0-9]{1,2})\.([a-z0-9_]+)")
_LEVEL_NAMES = (*LEVEL_ALIASES, *(field.name for field in dataclasses.fields(NetworkLevel)))


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
    if match[2] not in _LEVEL_NAMES:
        raise unknown_name(f"field of a network level in the {what}:", match[2], _LEVEL_NAMES)
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
        plain |= without_aliases(fields, LEVEL_ALIASES, level)
        levels[index] = from_builtins(plain, NetworkLevel, level)
    return dataclasses.replace(cluster, levels=tuple(levels)) if stated else cluster
