"""Which reads of a pass a cache serves: the reuse distance of every read.

The L2 of a GPU is no managed buffer. It keeps what was touched last, for whoever reads it again, so
what it serves follows from the order in which the operators run: that of the graph, as a stream
runs a captured program. The *reuse distance* of a read is the number of distinct bytes touched
since the operator that touched all of the tensor last, all that this operator and the reader move
included: an upper bound for every byte of the tensor, in whatever order the two of them work
through their operands. Under least-recently-used replacement a read is served where the distance is
at most the size of the cache. Only `CACHE_SHARE` of the size is counted on: replacement works in
sets, hashed over slices, of which some chips keep copies in both halves, and a product blocks its
operands through the rest. Writes always reach the HBM in the end, and so do collectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.estimator.working_sets import Access, KeptTensor, kept_tensors
from phaze_opt.workload.graph import OperatorGraph

CACHE_SHARE = 0.25
"""Largest reuse distance of a read that the cache serves, as a share of its size."""


@dataclass(frozen=True, eq=False)
class Reuse:
    """The reads of tensors that an operator of the graph has touched before.

    Attributes
    ----------
    tensor : (reads,)
        Place of the tensor in `kept_tensors`.
    source, reader : (reads,)
        Operator that touched all of the tensor last, and the one that reads it now.
    bytes : (reads,)
        That the reader reads of it, once.
    distance_bytes : (reads,)
        Reuse distance.
    """

    tensor: IntArray
    source: IntArray
    reader: IntArray
    bytes: FloatArray
    distance_bytes: FloatArray

    def served_by(self, cache_bytes: float) -> Reuse:
        """Return the reads that a cache of some size serves."""
        served = self.distance_bytes <= CACHE_SHARE * cache_bytes
        return Reuse(*(values[served] for values in vars(self).values()))


@lru_cache(maxsize=512)
def reads_again(graph: OperatorGraph) -> Reuse:
    """Return every read of a tensor that was touched before, cached."""
    tensors = kept_tensors(graph)
    touched = _TouchedBytes(graph, tensors)
    pairs = [(number, *pair) for number, tensor in enumerate(tensors) for pair in _pairs(tensor)]
    rows = [(number, source.operator, reader.operator) for number, source, reader in pairs]
    tensor, source, reader = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Reuse(
        tensor,
        source,
        reader,
        bytes=np.array([reading.bytes for _, _, reading in pairs], dtype=np.float64),
        distance_bytes=np.array([touched.between(*row[1:]) for row in rows], dtype=np.float64),
    )


def _accesses(tensor: KeptTensor) -> list[Access]:
    """List who makes or reads a tensor, in the order of the graph."""
    writer = () if tensor.writer is None else (tensor.writer,)
    return sorted((*writer, *tensor.readers), key=lambda access: access.operator)


def _pairs(tensor: KeptTensor) -> list[tuple[Access, Access]]:
    """Pair each read with the access before it that touched all of the tensor.

    A read of a part brings only this part, and nothing says which: it is nobody's source.
    """
    pairs = []
    source: Access | None = None
    for access in _accesses(tensor):
        if source is not None:
            pairs.append((source, access))
        if access.bytes >= tensor.size_bytes:
            source = access
    return pairs


class _TouchedBytes:
    """Counts the distinct bytes that consecutive operators of a graph touch."""

    def __init__(self, graph: OperatorGraph, tensors: tuple[KeptTensor, ...]) -> None:
        accesses = [(i, access) for i, tensor in enumerate(tensors) for access in _accesses(tensor)]
        self._size = np.array([tensor.size_bytes for tensor in tensors], dtype=np.float64)
        self._tensor = np.array([i for i, _ in accesses], dtype=np.int64)
        self._operator = np.array([access.operator for _, access in accesses], dtype=np.int64)
        self._bytes = np.array([access.bytes for _, access in accesses], dtype=np.float64)
        moved = graph.moved_bytes
        shared = np.bincount(self._operator, self._bytes, len(moved))
        # Of what no other operator of the graph touches, every byte is another one.
        self._alone = np.maximum(np.array(moved) - shared, 0.0)

    def between(self, first: int, last: int) -> float:
        """Return the distinct bytes that the operators from one to another touch, both included."""
        here = (first <= self._operator) & (self._operator <= last)
        shared = np.bincount(self._tensor[here], self._bytes[here], len(self._size))
        distinct = np.minimum(shared, self._size).sum()
        return float(self._alone[first : last + 1].sum() + distinct)
