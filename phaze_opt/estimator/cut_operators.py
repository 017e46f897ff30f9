"""Which operators of a graph can run tile by tile.

An operator is cut along the outermost dimension of its result, so that tile after tile is a piece
of memory after another: a product with one weight along its rows (tokens), a batched product along
its batch (heads, samples, experts) and in a forward also along the rows of its matrices (queries),
vector work along its rows. A product for the gradient of a weight is cut along the tokens that it
sums over: every tile adds to all of the result, in fp32. Other sums over tokens are not cut, and
neither are collectives, fused attention, and gathers and scatters, whose rows come from
anywhere. What each tile adds to (the gradient of a norm's weight) is read and written for every
tile.

A tensor is handed on by tiles where tile number i of its reader needs tile number i of its writer
and nothing else: both see it with the same number of rows, or the reader with whole matrices of its
batch. Operators that permute what they write (copies) hand nothing on by tiles. So softmax over
keys is cut along heads and queries, and never along keys. Other operands are read by every tile
that needs them: a weight by all of them, the keys of a head by all tiles of its queries.

Operators that are joined in this way are cut into equally many tiles: as many as the matrices of
their batches, a fourth of that, four times as many, and so on; without a batch into a few numbers.
A product for the gradient of a weight is cut as what hands it something, and changes nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from phaze_opt.estimator.working_sets import LEAST_STAGED_BYTES, KeptTensor
from phaze_opt.precision import SUM_BYTES
from phaze_opt.workload.graph import (
    ELEMENTWISE_KINDS,
    REARRANGING_KINDS,
    Operator,
    OperatorGraph,
    Tensor,
    TensorRead,
)

LEAST_ROWS = 64
"""Rows of a tile of a matrix: with fewer, arrays would mostly fill and drain."""
MOST_TILES = 256
"""Tiles of an operator."""
_STEP = 4
"""Ratio of the numbers of tiles that are tried."""
_ROW_TILES = (4, 32)
"""Numbers of tiles of products without a batch."""
_VECTOR_TILES = (8, 64)
"""Numbers of tiles of vector work alone, which tiles make no slower."""

_BY_ROWS = frozenset(
    {
        *ELEMENTWISE_KINDS,
        *("softmax", "softmax_backward", "layer_norm", "layer_norm_backward"),
        *("rms_norm", "rms_norm_backward"),
    }
)
"""Vector work of which a row of results needs that row of the operands and nothing else."""


@dataclass(frozen=True)
class Cut:
    """How an operator can be cut.

    Attributes
    ----------
    rows
        Rows of the result, those of all matrices together.
    batch
        Matrices of a product, or rows of vector work: it can be cut into any number of tiles that
        divides them.
    rows_each
        Rows of a matrix, which can be cut too; 1 if they cannot.
    is_sum
        Whether the rows are those of the operands, over which the product sums.
    """

    rows: int
    batch: int
    rows_each: int
    is_sum: bool = False

    def accepts(self, tiles: int) -> bool:
        """Whether it can be cut into so many tiles."""
        if self.batch % tiles == 0:
            return True
        parts, rest = divmod(tiles, self.batch)
        if rest or self.rows_each % parts:
            return False
        return self.rows_each // parts >= LEAST_ROWS


@dataclass(frozen=True)
class CutGraph:
    """What of a graph can run tile by tile.

    Attributes
    ----------
    counts
        For every operator, into how many tiles it may be cut; none if it hands nothing on by tiles.
    through
        Pairs (writer, reader) of which the writer hands all to the reader by tiles.
    held
        ``(operator, tensor)``: inputs of the graph that one operator alone reads, again for every
        tile, and that are not small; and results of ``sums``.
    sums
        Products of which every tile adds to all of the result.
    """

    counts: tuple[tuple[int, ...], ...]
    through: frozenset[tuple[int, int]]
    held: tuple[tuple[int, int], ...]
    sums: frozenset[int]


@lru_cache(maxsize=512)
def cut_graph(graph: OperatorGraph) -> CutGraph:
    """Return what of a graph can run tile by tile, cached."""
    cuts = [_cut(graph, index) for index in range(len(graph.operators))]
    through = _through(graph, cuts)
    while useless := _useless(graph, cuts, through):
        cuts = [None if index in useless else cut for index, cut in enumerate(cuts)]
        through = _through(graph, cuts)
    counts = _counts(graph, cuts, through)
    held = tuple(
        (tensor.readers[0].operator, number)
        for number, tensor in enumerate(graph.tensors)
        if not tensor.writers
        and len(tensor.readers) == 1
        and counts[tensor.readers[0].operator]
        and not is_cut_read(graph.operators[tensor.readers[0].operator], tensor, tensor.readers[0])
        and tensor.elements * tensor.element_bytes >= LEAST_STAGED_BYTES
    )
    sums = _sums(cuts)
    held += tuple(
        (writer, number)
        for number, tensor in enumerate(graph.tensors)
        for writer, _ in tensor.writers
        if writer in sums
    )
    return CutGraph(tuple(counts), through, held, sums)


def _sums(cuts: Sequence[Cut | None]) -> frozenset[int]:
    """Return the products of which every tile adds to all of the result."""
    return frozenset(i for i, cut in enumerate(cuts) if cut is not None and cut.is_sum)


def _counts(
    graph: OperatorGraph, cuts: Sequence[Cut | None], through: frozenset[tuple[int, int]]
) -> list[tuple[int, ...]]:
    """Return into how many tiles every operator may be cut.

    Sums take the numbers of those that hand them something, and change none.
    """
    counts: list[tuple[int, ...]] = [()] * len(cuts)
    sums = _sums(cuts)
    groups = _components(frozenset(pair for pair in through if pair[1] not in sums))
    known = set().union(*groups)
    groups += [{writer} for writer in {before for before, _ in through} - known]
    for joined in groups:
        for index in joined:
            counts[index] = _tile_counts(graph, cuts, joined)
    for index in sums:
        handed = {tiles for writer, to in through if to == index for tiles in counts[writer]}
        cut = cuts[index]
        assert cut is not None
        counts[index] = tuple(tiles for tiles in sorted(handed) if cut.accepts(tiles))
    return counts


def _through(graph: OperatorGraph, cuts: Sequence[Cut | None]) -> frozenset[tuple[int, int]]:
    """Return the pairs of operators of which the first hands all to the second by tiles."""
    handed: dict[tuple[int, int], bool] = {}
    for tensor in graph.tensors:
        for writer, reader, _ in tensor.handed_over():
            by_tiles = _is_handed_by_tiles(graph, cuts, tensor, writer, reader)
            handed[writer, reader] = handed.get((writer, reader), True) and by_tiles
    return frozenset(pair for pair, by_tiles in handed.items() if by_tiles)


def _useless(
    graph: OperatorGraph, cuts: Sequence[Cut | None], through: frozenset[tuple[int, int]]
) -> set[int]:
    """Return the products whose weight is larger than all that they hand on, or take, by tiles.

    To read the weight again for every tile takes more than tiles save, and to hold it more room
    than to keep what is handed on as a whole. So it is with the gradient of a weight.
    """
    sums = _sums(cuts)
    own = [0] * len(cuts)
    for tensor in graph.tensors:
        size_bytes = tensor.elements * tensor.element_bytes
        for writer, elements in tensor.writers:
            own[writer] += SUM_BYTES * elements * (writer in sums)
        for read in tensor.readers:
            if read.second_operand and graph.operators[read.operator].gemms[0].batch == 1:
                own[read.operator] += size_bytes * (read.operator not in sums)
        for pair in {(writer, to) for writer, to, _ in tensor.handed_over()} & through:
            for index in pair if pair[1] not in sums else pair[1:]:
                own[index] -= size_bytes
    return {index for index, cut in enumerate(cuts) if cut is not None and own[index] > 0}


def handing_by_tiles(graph: OperatorGraph, kept: KeptTensor) -> frozenset[int]:
    """Return the operators that may hand a tensor on by tiles, or take it so."""
    if kept.writer is None:
        return frozenset()
    writer, through = kept.writer.operator, cut_graph(graph).through
    taking = [one.operator for one in kept.readers if (writer, one.operator) in through]
    return frozenset([writer, *taking]) if taking else frozenset()


def _tile_counts(
    graph: OperatorGraph, cuts: Sequence[Cut | None], joined: set[int]
) -> tuple[int, ...]:
    """Return into how many tiles operators that are joined are cut, rising."""
    own = [cut for index in joined if (cut := cuts[index]) is not None]
    batches = [
        graph.operators[index].gemms[0].batch for index in joined if graph.operators[index].gemms
    ]
    batch = math.gcd(*batches)
    tried = list(_VECTOR_TILES) if not batches else list(_ROW_TILES)
    if batch > 1:
        tried = [batch * _STEP**i for i in range(_STEP)]
        while (tiles := _fourth(tried[0])) > 1:
            tried.insert(0, tiles)
    return tuple(
        tiles for tiles in tried if tiles <= MOST_TILES and all(cut.accepts(tiles) for cut in own)
    )


def _fourth(tiles: int) -> int:
    """Return the largest divisor of a number of tiles that is at most a fourth of it, or 1."""
    return max([each for each in range(1, tiles // _STEP + 1) if tiles % each == 0], default=1)


def _components(pairs: frozenset[tuple[int, int]]) -> list[set[int]]:
    """Return the sets of operators that pairs join."""
    found: list[set[int]] = []
    for pair in sorted(pairs):
        touching = [each for each in found if not each.isdisjoint(pair)]
        found = [each for each in found if each not in touching]
        found.append(set(pair).union(*touching))
    return found


def _cut(graph: OperatorGraph, index: int) -> Cut | None:
    """Say how an operator can be cut; ``None`` if it cannot."""
    operator = graph.operators[index]
    rows = {work.rows for work in operator.vector}
    if operator.collective is not None or operator.attention is not None:
        return None
    if len(operator.gemms) > 1 or any(work.kind not in _BY_ROWS for work in operator.vector):
        return None
    if not operator.gemms:
        return Cut(min(rows), min(rows), 1) if len(rows) == 1 else None
    gemm, touched = operator.gemms[0], _touched(graph, index)
    if _is_sum(graph, operator, index):
        return Cut(gemm.k, 1, gemm.k, is_sum=True)
    own = gemm.batch * gemm.m
    # The result of a batched product may be written by columns.
    if not rows <= ({own, gemm.batch * gemm.n} if gemm.batch > 1 else {own}):
        return None
    if any(write and not is_cut_write(operator, elements) for _, elements, write in touched):
        return None
    kinds = {tensor.kind for tensor, *_ in touched}
    if gemm.batch > 1:
        # In a backward the first operand may be taken by columns, whose tiles are no rows.
        in_forward = kinds <= {"activation", "weight"} and rows <= {own}
        return Cut(own, gemm.batch, gemm.m if in_forward else 1)
    # A product of two activations may sum over tokens.
    second = [
        tensor.kind
        for tensor, *_ in touched
        for read in tensor.readers
        if read.operator == index and read.second_operand
    ]
    return Cut(own, 1, gemm.m) if second == ["weight"] else None


def _is_sum(graph: OperatorGraph, operator: Operator, index: int) -> bool:
    """Whether an operator is a product for a weight's gradient and nothing else."""
    gemm = operator.gemms[0]
    reads = [read for tensor in graph.tensors for read in tensor.readers if read.operator == index]
    sides = {(read.first_operand, read.second_operand): read.elements for read in reads}
    writes = [
        (tensor.kind, elements)
        for tensor in graph.tensors
        for writer, elements in tensor.writers
        if writer == index
    ]
    return (
        (gemm.batch == 1 and not operator.vector and len(reads) == 2)
        and sides == {(True, False): gemm.k * gemm.m, (False, True): gemm.k * gemm.n}
        and writes == [("weight_gradient", gemm.m * gemm.n)]
    )


def _touched(graph: OperatorGraph, index: int) -> list[tuple[Tensor, int, bool]]:
    """Return tensors with how much an operator reads or writes of each, and whether it writes."""
    reads = [
        (tensor, read.elements, False)
        for tensor in graph.tensors
        for read in tensor.readers
        if read.operator == index
    ]
    writes = [
        (tensor, elements, True)
        for tensor in graph.tensors
        for one, elements in tensor.writers
        if one == index
    ]
    return reads + writes


def _shapes(operator: Operator) -> set[int]:
    """Return the elements of tensors that have a row for each of an operator's."""
    shapes = {work.elements for work in operator.vector}
    shapes |= {work.rows for work in operator.vector}
    return shapes | {gemm.batch * gemm.m * gemm.n for gemm in operator.gemms}


def is_cut_write(operator: Operator, elements: int) -> bool:
    """Whether each tile writes its own part of a result; else each adds to all of it."""
    return elements in _shapes(operator)


def is_cut_read(operator: Operator, tensor: Tensor, read: TensorRead) -> bool:
    """Whether each tile reads its own part of a tensor; else each reads all that it needs."""
    if read.second_operand:
        return operator.gemms[0].batch > 1
    if read.first_operand:
        return True
    return tensor.kind != "weight" and read.elements in _shapes(operator)


def _is_handed_by_tiles(
    graph: OperatorGraph,
    cuts: Sequence[Cut | None],
    tensor: Tensor,
    writer: int,
    reader: int,
) -> bool:
    """Whether a tile of a reader needs one tile of the writer, and nothing else of a tensor."""
    source, target = cuts[writer], cuts[reader]
    if source is None or target is None or len(tensor.writers) > 1 or source.is_sum:
        return False
    made, used = graph.operators[writer], graph.operators[reader]
    reads = [read for read in tensor.readers if read.operator == reader]
    if any(work.kind in REARRANGING_KINDS for work in made.vector) or len(reads) != 1:
        return False
    (read,) = reads
    elements = tensor.elements
    if read.elements != elements or not is_cut_write(made, elements):
        return False
    if not (read.first_operand or read.second_operand):
        return source.rows == target.rows and elements in _shapes(used)
    gemm = used.gemms[0]
    if target.is_sum:
        return source.rows == target.rows
    if read.first_operand and read.second_operand:
        return False
    if read.first_operand:
        return source.rows == target.rows and elements == target.rows * gemm.k
    matrices = {gemm.batch * gemm.k, gemm.batch * gemm.n}
    return gemm.batch > 1 and source.rows in matrices and elements == gemm.batch * gemm.k * gemm.n
