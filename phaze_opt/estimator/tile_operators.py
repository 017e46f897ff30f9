"""The operators that one tile of a larger operator is; see `cut_operators`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.estimator.cut_operators import cut_graph, is_cut_read, is_cut_write
from phaze_opt.estimator.working_sets import Access, access_of, kept_tensors
from phaze_opt.on_demand import cached_property
from phaze_opt.precision import SUM_BYTES
from phaze_opt.workload.graph import Operator, OperatorGraph, Tensor, TensorRead


@dataclass(frozen=True)
class TileOperators:
    """Operators of which each does what one tile of another is.

    Attributes
    ----------
    graph
        The operators; their tensors are of a tile, and none is shared.
    accesses
        Of every operator, what it moves of all of `working_sets.kept_tensors` that the whole one
        touches, and then of what it has in `cut_operators.CutGraph.held`.
    """

    graph: OperatorGraph
    accesses: tuple[tuple[Access, ...], ...]

    @cached_property
    def access_bytes(self) -> FloatArray:
        """`Access.bytes`, operator by operator: (accesses,)."""
        return np.array([each.bytes for own in self.accesses for each in own], dtype=np.float64)

    @cached_property
    def access_operand_bytes(self) -> FloatArray:
        """`Access.operand_bytes`, operator by operator: (accesses, 2)."""
        each = [each.operand_bytes for own in self.accesses for each in own]
        return np.array(each, dtype=np.float64).reshape(-1, 2)


def tile_operators(graph: OperatorGraph, rows: Sequence[tuple[int, int]]) -> TileOperators:
    """Return one tile of every operator that is to be cut.

    Parameters
    ----------
    graph
        The whole operators.
    rows
        Pairs (operator, number of tiles) as `cut_operators.CutGraph.counts` allows.
    """
    operators, tensors, accesses = [], [], []
    sums = cut_graph(graph).sums
    for place, (index, tiles) in enumerate(rows):
        operator = _tile_of(graph.operators[index], tiles, place, index in sums)
        operators.append(operator)
        moved = _moved(graph, index, tiles, operator)
        for number, (read, written) in moved.items():
            tensor = graph.tensors[number]
            reads = () if read is None else (replace(read, operator=place),)
            if written and written == _written(tensor, index):
                reads = (*reads, TensorRead(place, written))
            elements = max([written, *(each.elements for each in reads)])
            writers = ((place, written),) if written else ()
            dtype = "fp32" if written and index in sums else tensor.dtype
            tensors.append(Tensor(elements, dtype, tensor.kind, writers, reads))
        accesses.append(tuple(_accesses_of_tile(graph, index, operator, moved)))
    return TileOperators(OperatorGraph(tuple(operators), tuple(tensors)), tuple(accesses))


def _tile_of(operator: Operator, tiles: int, place: int, is_sum: bool) -> Operator:
    """Return what one tile of an operator computes."""
    gemms = [replace(gemm, k=gemm.k // tiles) for gemm in operator.gemms if is_sum] or [
        replace(gemm, batch=gemm.batch // tiles)
        if gemm.batch % tiles == 0
        else replace(gemm, batch=1, m=gemm.m * gemm.batch // tiles)
        for gemm in operator.gemms
    ]
    vector = [replace(work, rows=work.rows // tiles) for work in operator.vector]
    return Operator(f"{operator.id} {place}", tuple(gemms), tuple(vector))


def _written(tensor: Tensor, index: int) -> int:
    """Return how many elements of a tensor an operator writes."""
    return sum(elements for one, elements in tensor.writers if one == index)


def _moved(
    graph: OperatorGraph, index: int, tiles: int, tile: Operator
) -> dict[int, tuple[TensorRead | None, int]]:
    """Return what a tile reads, and how many elements it writes, of every tensor by its place."""
    operator, moved = graph.operators[index], {}
    for number, tensor in enumerate(graph.tensors):
        read = next((each for each in tensor.readers if each.operator == index), None)
        written = _written(tensor, index)
        if written and is_cut_write(operator, written) and index not in cut_graph(graph).sums:
            written //= tiles
        if read is not None:
            elements = read.elements
            if read.first_operand or read.second_operand:
                gemm = tile.gemms[0]
                first, second = read.first_operand * gemm.m, read.second_operand * gemm.n
                elements = min(elements, gemm.batch * gemm.k * (first + second))
            elif is_cut_read(operator, tensor, read):
                elements = -(-elements // tiles)
            read = replace(read, elements=elements)
        if read is not None or written:
            moved[number] = read, written
    return moved


def _accesses_of_tile(
    graph: OperatorGraph,
    index: int,
    tile: Operator,
    moved: dict[int, tuple[TensorRead | None, int]],
) -> Iterator[Access]:
    """Yield what a tile moves of kept tensors, and of its inputs that may be held."""
    for kept in kept_tensors(graph):
        tensor = graph.tensors[kept.tensor]
        read, written = moved.get(kept.tensor, (None, 0))
        if kept.writer is not None and kept.writer.operator == index:
            yield Access(index, float(written * tensor.element_bytes))
        elif read is not None:
            share = kept.size_bytes / (tensor.elements * tensor.element_bytes)
            yield access_of(tile, tensor, read, share)
    for operator, number in cut_graph(graph).held:
        read, written = moved[number] if operator == index else (None, 0)
        if written and index in cut_graph(graph).sums:
            # Read and written.
            yield Access(index, 2.0 * SUM_BYTES * written)
        elif read is not None:
            yield access_of(tile, graph.tensors[number], read, 1.0)
