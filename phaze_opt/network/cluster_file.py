"""A cluster as a file that a person can write.

A file (TOML, or JSON as ``cluster show --json`` prints it) lists the levels, the innermost first,
by the fields of `NetworkLevel` or by their aliases in other units. With ``base``, a preset or the
path of another file (from the folder of this one), each level states only what differs from the
same level of the base, and further levels are added outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from phaze_opt.codec import data_table, from_builtins, read_document, to_builtins, toml_value
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.user_files import Alias, Find, alias_of, commented_line, find_base, without_aliases

_GIGA, _MICRO = Fraction(10**9), Fraction(1, 10**6)

LEVEL_ALIASES = {
    "bandwidth_gb_per_s": Alias("bandwidth_bytes_per_s", _GIGA),
    "latency_us": Alias("latency_s", _MICRO),
    "launch_us": Alias("launch_s", _MICRO),
    "ramp_mb": Alias("ramp_bytes", Fraction(10**6)),
    "in_switch_latency_us": Alias("in_switch_latency_s", _MICRO),
}
"""Names of a level's numbers in convenient units."""

_IMPLIED = "sustained_bytes_per_s"
"""What ``cluster show --json`` prints beside the fields, and what follows from them."""


def read_cluster_file(path: Path, find: Find[Cluster], above: tuple[Path, ...] = ()) -> Cluster:
    """Read a cluster from a file; its name is the file's.

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
    what = f"cluster file {path}"
    entry = read_document(path, "cluster file")
    base_name = entry.pop("base", None)
    stated = from_builtins(entry.pop("levels", []), list[dict[str, Any]], f"levels in the {what}")
    levels = [
        without_aliases(level, LEVEL_ALIASES, f"level {index} of the {what}")
        for index, level in enumerate(stated)
    ]
    for level in levels:
        level.pop(_IMPLIED, None)
    if base_name is not None:
        base = find_base(base_name, path, what, find, above)
        entry.setdefault("source", base.source)
        inherited: list[dict[str, object]] = to_builtins(base.levels)
        levels = [
            _merged(inherited[index] if index < len(inherited) else {}, level)
            for index, level in enumerate([*levels, *[{}] * (len(inherited) - len(levels))])
        ]
    document = {**entry, "name": path.stem, "levels": levels}
    return from_builtins(document, Cluster, what)


def _merged(base: Mapping[str, object], level: Mapping[str, object]) -> dict[str, object]:
    """Return a level of a base with what a file states; a size and its axes go together."""
    kept = dict(base)
    if "axes" in level or "group_size" in level or "topology" in level:
        kept = {name: value for name, value in base.items() if name not in ("axes", "group_size")}
    return {**kept, **level}


def cluster_file_text(cluster: Cluster) -> str:
    """Write the levels of a cluster, what each number means, and their source.

    Parameters
    ----------
    cluster
        Neither its name, which the path of the file gives, nor its devices, which a user of the
        file states, are written.
    """
    lines = [
        "# Levels of the network, the innermost first. Bandwidths are per device and direction.",
        f"source = {toml_value(cluster.source)}",
    ]
    for level in cluster.levels:
        lines += ["", "[[levels]]"]
        lines += [_line(field.name, getattr(level, field.name)) for field in fields(NetworkLevel)]
    return "\n".join(lines) + "\n"


def _line(field: str, value: object) -> str:
    """Write one number of a level in its most convenient unit, with its meaning."""
    meaning = data_table("network", "fields.toml")[field]
    name, shown = alias_of(field, value, LEVEL_ALIASES) or (field, value)
    return commented_line(name, shown, meaning)
