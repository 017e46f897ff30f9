"""Tensor-parallel collectives that run beside the product next to them, chunk by chunk.

The tensor is cut into as many chunks as the group has devices: while one chunk is sent, the
product computes the next (or, behind a gather, the one before). Transformer Engine's user buffers
and asynchronous tensor parallelism in PyTorch do this. Of a collective of ``C`` seconds beside a
product of ``P``, in t chunks, there remain

    max(C − P · (t − 1) / t, C / t)

seconds after the product: at least one chunk has no work to hide behind. What the collective takes
of the memories of its device remains in full: chunks do not make it less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.estimator.estimate import ModeSeconds
from phaze_opt.workload.casts import is_cast
from phaze_opt.workload.graph import OperatorGraph
from phaze_opt.workload.narrow_gathers import is_reordering

Mode = TypeVar("Mode", bound=ModeSeconds)


def beside_products(
    graph: OperatorGraph,
    one_core: Mode,
    all_cores: Mode,
    group: int,
    core_share: float | FloatArray,
) -> tuple[Mode, Mode]:
    """Shorten every collective that has a product next to it, in both modes.

    Parameters
    ----------
    graph
        Of one pass.
    one_core, all_cores
        Its operators, on one chip or on many; seconds on the network stay as they are.
    group
        Devices of the tensor-parallel group.
    core_share
        Share of the cores that communication takes from the product while both run; of many chips
        with the shape (chips, 1).
    """
    if group == 1:
        return one_core, all_cores
    product_s = all_cores.latency_s
    on_one, on_all = (
        replace(mode, latency_s=_chunked_latency_s(graph, mode, product_s, group, core_share))
        for mode in (one_core, all_cores)
    )
    return on_one, on_all


def _chunked_latency_s(
    graph: OperatorGraph,
    mode: ModeSeconds,
    product_s: FloatArray,
    group: int,
    core_share: float | FloatArray,
) -> FloatArray:
    """Return the times of operators in one mode; ``product_s`` are those on all cores."""
    collectives, products = _paired(graph)
    network_s = mode.link_s[..., collectives]
    beside_s = product_s[..., products] * (group - 1) / group
    exposed_s = np.maximum(network_s - beside_s, network_s / group)
    whole_s = mode.latency_s[..., collectives]
    shortened_s = whole_s - (1.0 - core_share) * (network_s - exposed_s)
    on_chip_s = np.maximum.reduce([mode.tc_s, mode.vc_s, mode.glb_s, mode.hbm_s])[..., collectives]
    latency_s = mode.latency_s.copy()
    latency_s[..., collectives] = np.maximum(
        shortened_s, on_chip_s + mode.overhead_s[..., collectives]
    )
    return latency_s


@lru_cache(maxsize=512)
def of_tensor_groups(graph: OperatorGraph) -> BoolArray:
    """Say of every operator whether it is a collective that may go beside a product, cached."""
    sent = [operator.collective for operator in graph.operators]
    return np.array([each is not None and each.is_tensor_parallel for each in sent], dtype=np.bool_)


@lru_cache(maxsize=512)
def _paired(graph: OperatorGraph) -> tuple[IntArray, IntArray]:
    """Return collectives, and the product that each runs beside, cached."""
    pairs = np.array(list(_pairs(graph)), dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _pairs(graph: OperatorGraph) -> Iterator[tuple[int, int]]:
    """Yield collectives with the product each runs beside, no product twice.

    The product that computes what is sent comes before the one that uses what is received.
    """
    taken: set[int] = set()
    neighbours: dict[int, list[int]] = {}
    for source, destination, _ in graph.edges:
        neighbours.setdefault(destination, []).insert(0, source)
        neighbours.setdefault(source, []).append(destination)
    for index in np.flatnonzero(of_tensor_groups(graph)).tolist():
        for other in _beyond_casts(graph, neighbours, index):
            if graph.operators[other].gemms and other not in taken:
                taken.add(other)
                yield index, other
                break


def _beyond_casts(
    graph: OperatorGraph, neighbours: Mapping[int, list[int]], index: int
) -> Iterator[int]:
    """Yield the neighbours of an operator, and those of casts and the like in their place."""
    for other in neighbours.get(index, []):
        if is_cast(graph.operators[other]) or is_reordering(graph.operators[other]):
            yield from neighbours[other]
        else:
            yield other
