"""Clusters by name or from a file, with a number of devices."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Annotated

from phaze_opt.checked import Named, checked
from phaze_opt.codec import FILE_SUFFIXES, data_table, from_builtins
from phaze_opt.errors import look_up
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.cluster_file import read_cluster_file
from phaze_opt.network.slices import slice_for


@cache
def cluster_presets() -> dict[str, Cluster]:
    """Return all clusters of ``data/clusters.toml`` by name."""
    return {
        name: from_builtins({"name": name, **entry}, Cluster, f"cluster {name!r}")
        for name, entry in data_table("network", "clusters.toml").items()
    }


def find_cluster(name: str, above: tuple[Path, ...] = ()) -> Cluster:
    """Return the preset of this name, or the cluster of a TOML or JSON file at this path.

    Parameters
    ----------
    name
        See `phaze_opt.network.cluster_file` for what a file holds.
    above
        Files that are based on it.

    Raises
    ------
    InputError
        If there is no such preset, or the file is not valid.
    NotFoundError
        If there is no such file.
    """
    if not name.endswith(FILE_SUFFIXES):
        return look_up(cluster_presets(), name, "cluster")
    return read_cluster_file(Path(name), find_cluster, above)


@checked
def load_cluster(
    name_or_path: Annotated[Named, "the name or the path of a network"], devices: int
) -> Cluster:
    """Return a preset, or the cluster of a file, with a number of devices.

    Of a larger torus, the most cubic slice that is large enough (`phaze_opt.network.slices`). A
    training run on it may take a smaller one, so that more devices are never slower.

    Parameters
    ----------
    name_or_path
        See `find_cluster`.
    devices
        Number of devices that a training run may use.

    Raises
    ------
    InputError
        If there is no such preset, the file is not valid, or the network joins fewer devices.
    NotFoundError
        If there is no such file.
    """
    return slice_for(find_cluster(os.fspath(name_or_path)), devices)
