"""Slices of a torus: the parts of it, tori themselves, that a training run may have to itself.

A slice is grown by doubling the shortest axis (as slices of TPU pods are offered), so that the
slices of a slice are those of the pod up to it. Rings close on a small slice that are lines on a
larger one: a run that leaves most devices unused may be faster on fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from phaze_opt.network.cluster import Cluster


def slice_for(cluster: Cluster, devices: int) -> Cluster:
    """Return the smallest slice of a cluster that holds so many devices, with that number.

    All of it, if its innermost level is no torus, or is not larger.

    Raises
    ------
    InputError
        If the network joins fewer devices.
    """
    for axes in _extents(cluster):
        if 1 <= devices <= math.prod(axes):
            return _with_extents(cluster, axes, devices)
    return replace(cluster, devices=devices)


@lru_cache(maxsize=256)
def slices(cluster: Cluster) -> tuple[Cluster, ...]:
    """Return the slices that a run on a cluster may take: all of it, then ever smaller ones.

    Down to one device; a cluster whose innermost level is no torus has only itself.
    """
    smaller = [
        _with_extents(cluster, axes, min(math.prod(axes), cluster.devices))
        for axes in _extents(cluster)
    ]
    return cluster, *reversed(smaller)


def _extents(cluster: Cluster) -> Iterator[tuple[int, ...]]:
    """Yield the extents of the slices of the innermost level that are not all of it, rising."""
    level = cluster.levels[0]
    whole = level.axes if level.topology == "torus" else ()
    axes = [1] * len(whole)
    while math.prod(axes) < math.prod(whole):
        yield tuple(axes)
        free = [axis for axis in range(len(whole)) if axes[axis] < whole[axis]]
        shortest = min(free, key=lambda axis: (axes[axis], axis))
        axes[shortest] = min(2 * axes[shortest], whole[shortest])


def _with_extents(cluster: Cluster, axes: tuple[int, ...], devices: int) -> Cluster:
    """Return a slice with some extents of the innermost level."""
    first = replace(cluster.levels[0], axes=axes, group_size=math.prod(axes))
    return replace(cluster, levels=(first, *cluster.levels[1:]), devices=devices)
