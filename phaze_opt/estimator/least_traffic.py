"""Least HBM traffic of every operator, whatever stays on the chip, on many chips at once.

Each operator is looked at by itself, as if nothing else needed room: of the tensors that it hands
over all that fit beside its working set stay, at the best of its levels. So only compulsory traffic
is left: weights, inputs that nobody else reads, what outlives the pass, and what does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray
from phaze_opt.estimator.cache_reuse import reads_again
from phaze_opt.estimator.chips import Chips, chip_column
from phaze_opt.estimator.cut_operators import cut_graph, handing_by_tiles
from phaze_opt.estimator.operator_table import operator_table
from phaze_opt.estimator.working_sets import (
    Access,
    kept_tensors,
    least_staged_bytes,
    operands_bytes,
    product_levels,
)
from phaze_opt.workload.graph import OperatorGraph

_MOST_SUBSET = 10
"""Tensors of an operator of which all subsets are tried; of more, each that fits by itself."""


def most_kept_bytes(graph: OperatorGraph, chips: Chips, *, tiles: bool = False) -> FloatArray:
    """Return the most HBM bytes that each operator saves while tensors stay in a managed buffer.

    Parameters
    ----------
    graph
        Fused.
    chips
        What it may run on.
    tiles
        Whether operators may run tile by tile: what they then hand on counts as if it needed no
        room, and their products as if they read no operand twice.

    Returns
    -------
    kept_bytes : (chips, operators)
        Against the traffic that `phaze_opt.estimator.estimate` counts on all cores; minus infinity
        where the working set of the operator does not fit the buffer at any level.
    """
    glb_bytes = chip_column(chips, "glb_bytes")
    sizes, which = np.unique(glb_bytes[:, 0], return_inverse=True)
    kept = np.stack([_kept_by_products(graph, float(size), tiles) for size in sizes])[which]
    free = glb_bytes - least_staged_bytes(graph, chips)
    if tiles:
        cut = np.array([bool(counts) for counts in cut_graph(graph).counts], dtype=np.bool_)
        free = np.where(cut, np.maximum(free, 0.0), free)
    streams = _streams(graph, tiles)
    for operator, stays in streams.stays:
        kept[:, operator] = stays.most_saved(free[:, operator])
    kept[(free < 0.0) & streams.are_streams] = -np.inf
    return kept


def most_kept_accesses_bytes(
    graph: OperatorGraph, chips: Chips, *, tiles: bool = False
) -> FloatArray:
    """Return the most compulsory HBM bytes that each operator saves, however it is blocked.

    Parameters
    ----------
    graph, chips, tiles
        As for `most_kept_bytes`.

    Returns
    -------
    kept_bytes : (chips, operators)
        Of the tensors that it reads and writes, each once; what does not fit the whole managed
        buffer is not among them.
    """
    glb_bytes = chip_column(chips, "glb_bytes")[:, 0]
    kept = np.zeros((len(glb_bytes), len(graph.operators)))
    for operator, stays in _once(graph, tiles):
        kept[:, operator] = stays.most_saved(glb_bytes)
    return kept


def cached_bytes(graph: OperatorGraph, chips: Chips) -> FloatArray:
    """Return the HBM bytes that each operator saves where the buffer is a cache.

    The cache decides by itself, so these are exact; see `cache_reuse`.

    Returns
    -------
    cached_bytes : (chips, operators)
    """
    sizes, which = np.unique(chip_column(chips, "glb_bytes")[:, 0], return_inverse=True)
    return np.stack([_cached_reads(graph, float(size)) for size in sizes])[which]


@dataclass(frozen=True, eq=False)
class _Stays:
    """Sets of tensors of one operator that may stay together.

    Attributes
    ----------
    needed_bytes : (sets,)
        Rising.
    saved_bytes : (sets,)
        The most that a set saves which needs no more.
    """

    needed_bytes: FloatArray
    saved_bytes: FloatArray

    def most_saved(self, free_bytes: FloatArray) -> FloatArray:
        """Return the most that is saved with some room; minus infinity with less than none."""
        place = np.searchsorted(self.needed_bytes, free_bytes, side="right") - 1
        return np.where(place >= 0, self.saved_bytes[place], -np.inf)


def _stays(size_bytes: FloatArray, saved_bytes: FloatArray) -> _Stays:
    """Try the sets of some tensors, of which each has a size and saves something."""
    count = len(size_bytes)
    if count <= _MOST_SUBSET:
        chosen = (np.arange(2**count)[:, np.newaxis] >> np.arange(count) & 1).astype(np.float64)
        needed, saved = chosen @ size_bytes, chosen @ saved_bytes
        order = np.argsort(needed, kind="stable")
        return _Stays(needed[order], np.maximum.accumulate(saved[order]))
    # Too many: each that fits by itself counts.
    order = np.argsort(size_bytes, kind="stable")
    needed, saved = size_bytes[order], np.cumsum(saved_bytes[order])
    return _Stays(np.concatenate([[0.0], needed]), np.concatenate([[0.0], saved]))


@dataclass(frozen=True, eq=False)
class _OperatorAccesses:
    """What one operator makes or reads of tensors that may stay.

    Attributes
    ----------
    size_bytes : (accesses,)
        Of the tensor.
    bytes : (accesses,)
        That the operator moves once, if it need not move them.
    operand_bytes : (accesses, 2)
        As in `working_sets.Access`.
    """

    size_bytes: FloatArray
    bytes: FloatArray
    operand_bytes: FloatArray


@lru_cache(maxsize=512)
def _accesses(graph: OperatorGraph, tiles: bool) -> tuple[_OperatorAccesses, ...]:
    """Return the accesses of every operator that residency can save, cached."""
    accesses: list[list[tuple[int, Access]]] = [[] for _ in graph.operators]
    for tensor in kept_tensors(graph):
        # What outlives the pass is written in any case.
        writers = () if tensor.writer is None or tensor.outlives else (tensor.writer,)
        handing = handing_by_tiles(graph, tensor) if tiles else frozenset()
        for access in (*writers, *tensor.readers):
            size_bytes = 0 if access.operator in handing else tensor.size_bytes
            accesses[access.operator].append((size_bytes, access))
    return tuple(
        _OperatorAccesses(
            np.array([size for size, _ in own], dtype=np.float64),
            np.array([access.bytes for _, access in own], dtype=np.float64),
            np.array([access.operand_bytes for _, access in own], dtype=np.float64).reshape(-1, 2),
        )
        for own in accesses
    )


@dataclass(frozen=True, eq=False)
class _Streams:
    """The operators that block nothing.

    Attributes
    ----------
    are_streams : (operators,)
        Which they are.
    stays
        Those of which tensors may stay, with the sets of these tensors.
    """

    are_streams: BoolArray
    stays: tuple[tuple[int, _Stays], ...]


@lru_cache(maxsize=512)
def _streams(graph: OperatorGraph, tiles: bool) -> _Streams:
    """Return the operators that block nothing with what may stay of their tensors, cached."""
    table = operator_table(graph)
    are_streams = np.ones(len(graph.operators), dtype=np.bool_)
    are_streams[table.gemm_owner[table.gemm_blocked > 0.0]] = False
    stays = tuple(each for each in _once(graph, tiles) if are_streams[each[0]])
    return _Streams(are_streams, stays)


@lru_cache(maxsize=512)
def _once(graph: OperatorGraph, tiles: bool) -> tuple[tuple[int, _Stays], ...]:
    """Return the operators of which tensors may stay, with the sets of these tensors, cached."""
    return tuple(
        (operator, _stays(own.size_bytes, own.bytes))
        for operator, own in enumerate(_accesses(graph, tiles))
        if own.bytes.any()
    )


@lru_cache(maxsize=4096)
def _kept_by_products(graph: OperatorGraph, glb_bytes: float, tiles: bool) -> FloatArray:
    """Return the most that each product saves at the best of its levels; 0 for others. Cached.

    A level costs what it reads more often than the first one does.
    """
    table = operator_table(graph)
    blocked = np.flatnonzero(table.gemm_blocked)
    products = product_levels(table.gemms[blocked].tobytes(), glb_bytes)
    accesses = _accesses(graph, tiles)
    kept = np.zeros(len(graph.operators))
    for place, levels in zip(blocked.tolist(), products, strict=True):
        operator = int(table.gemm_owner[place])
        own = accesses[operator]
        free = glb_bytes - np.ceil(levels.working_bytes)
        again = levels.operand_reads - 1.0
        kept[operator] = max(
            float(
                _stays(own.size_bytes, own.bytes + own.operand_bytes @ reads).most_saved(
                    np.array([room])
                )[0]
                - extra
            )
            for room, reads, extra in zip(free, again, levels.extra_bytes, strict=True)
        )
        if tiles and cut_graph(graph).counts[operator]:
            once = _stays(own.size_bytes, own.bytes).most_saved(np.array([glb_bytes]))
            again_bytes = operands_bytes(table.gemms[place]) @ again[0]
            kept[operator] = max(kept[operator], float(once[0] + again_bytes))
    return kept


@lru_cache(maxsize=4096)
def _cached_reads(graph: OperatorGraph, cache_bytes: float) -> FloatArray:
    """Return the bytes that a cache serves to each operator, cached."""
    served = reads_again(graph).served_by(cache_bytes)
    saved_bytes = np.bincount(served.reader, served.bytes, len(graph.operators))
    return np.asarray(saved_bytes, dtype=np.float64)
