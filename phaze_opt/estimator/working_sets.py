"""What operators need in the global buffer, and what the HBM moves for them then.

A product is blocked through the global buffer, and may be blocked in other ways than the one that
`estimate` takes, which uses all of the buffer: with a part of it, so that tensors can stay beside
it; and so that one operand is read as rarely as possible while the other, which may be on the chip,
is read more often. Each way is a level. Other operators stream: they need what the private buffers
of their cores hold, once more. Vector work may use a part of the cores, and so need less: half of
them, a quarter, … are levels too, so that more cores have the levels of fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.estimator.chips import chip_column
from phaze_opt.estimator.gemm_traffic import RESIDENT_SHARE, fill_reads
from phaze_opt.estimator.operator_table import OperatorTable, operator_table
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.precision import PRECISIONS
from phaze_opt.units import MIB
from phaze_opt.workload.graph import Operator, OperatorGraph, Tensor, TensorRead

_LEAST_BYTES = float(MIB)
"""Smallest part of the global buffer that a product may use, but for a smaller buffer."""
LEAST_STAGED_BYTES = 2.0**16
"""Private buffers of the cores that vector work uses: it is not cut to fewer cores below that."""
_KINDS = 3
"""Ways to block a product in one part of the buffer, see `fill_reads`."""


@dataclass(frozen=True, eq=False)
class WorkingSets:
    """The levels of all operators of a graph on one accelerator.

    Level 0 is the one of `estimate`, on all cores. An operator with fewer levels than another
    repeats level 0.

    Attributes
    ----------
    working_bytes : (operators, levels)
        Global buffer that the operator uses while it runs, beside tensors that stay.
    operand_reads : (operators, levels, 2)
        How often the operands of its product are read; 1 for operators that block nothing.
    extra_bytes : (operators, levels)
        HBM traffic beyond that of level 0, where nothing stays.
    lane_factor : (operators, levels)
        Time of the lanes, over that on all vector cores.
    """

    working_bytes: IntArray
    operand_reads: FloatArray
    extra_bytes: FloatArray
    lane_factor: FloatArray


def working_sets(graph: OperatorGraph, accelerator: Accelerator) -> WorkingSets:
    """Return what every operator needs in the global buffer, at every level."""
    table, streams = operator_table(graph), _streams(graph)
    products = _products(graph, float(accelerator.glb_bytes))
    parts = _parts_of_vector_cores(accelerator)
    own = products.levels.working_bytes.shape[1]
    levels = max(len(parts), own)
    staged = staged_bytes(graph, [accelerator])[0]
    working = np.repeat(staged[:, np.newaxis], levels, axis=1)
    reads = np.ones((len(staged), levels, 2))
    extra = np.zeros((len(staged), levels))
    factor = np.ones((len(staged), levels))
    cuttable = streams.on_vector_cores
    if len(parts) > 1 and streams.any_on_vector_cores:
        rooms = np.array(parts) * float(accelerator.l2_vc_bytes)
        less = np.minimum(staged[:, np.newaxis], rooms)
        cycles = _lane_cycles(table, np.array(parts) * accelerator.pe_vc)
        working[cuttable, : len(parts)] = less[cuttable]
        factor[cuttable, : len(parts)] = (cycles / np.maximum(cycles[:1], 1.0)).T[cuttable]
    if len(products.owners):
        for values, of_products in (
            (working, products.levels.working_bytes),
            (reads, products.levels.operand_reads),
            (extra, products.levels.extra_bytes),
        ):
            values[products.owners, :own] = of_products
            if own < levels:
                values[products.owners, own:] = of_products[:, :1]
    return WorkingSets(np.ceil(working).astype(np.int64), reads, extra, factor)


class _Streams(NamedTuple):
    """Of the operators of a graph: the bytes that each moves once, and the cores that it runs on.

    An operator with products runs on tensor cores, vector work alone on vector cores.
    """

    moved_bytes: FloatArray
    on_tensor_cores: BoolArray
    on_vector_cores: BoolArray
    any_on_vector_cores: bool


@lru_cache(maxsize=512)
def _streams(graph: OperatorGraph) -> _Streams:
    """Return what operators move and run on, cached."""
    operators = graph.operators
    moved = np.array(graph.moved_bytes, dtype=np.float64)
    tensor = np.array([bool(operator.gemms) for operator in operators], dtype=np.bool_)
    vector = np.array([is_vector_work(operator) for operator in operators], dtype=np.bool_)
    return _Streams(moved, tensor, vector, bool(vector.any()))


class _Products(NamedTuple):
    """The levels of the blocked products of a graph, and the operators that have them.

    A product with fewer levels than another repeats level 0.
    """

    owners: IntArray
    levels: WorkingSets


@lru_cache(maxsize=1024)
def _products(graph: OperatorGraph, glb_bytes: float) -> _Products:
    """Return the levels of the products of a graph, cached."""
    table = operator_table(graph)
    blocked = np.flatnonzero(table.gemm_blocked)
    each = product_levels(table.gemms[blocked].tobytes(), glb_bytes)
    most = max([len(levels.working_bytes) for levels in each], default=0)
    takes = [
        [level if level < len(levels.working_bytes) else 0 for level in range(most)]
        for levels in each
    ]
    stacked = [
        np.array(
            [getattr(levels, name)[take] for levels, take in zip(each, takes, strict=True)]
        ).reshape(len(each), most, *shape)
        for name, shape in (
            ("working_bytes", ()),
            ("operand_reads", (2,)),
            ("extra_bytes", ()),
            ("lane_factor", ()),
        )
    ]
    return _Products(table.gemm_owner[blocked], WorkingSets(*stacked))


def is_vector_work(operator: Operator) -> bool:
    """Say whether an operator runs on vector cores only."""
    return bool(operator.vector) and not operator.gemms


def _parts_of_vector_cores(accelerator: Accelerator) -> list[int]:
    """Return all vector cores, half of them, …, while their private buffers are not small."""
    parts = [accelerator.num_vc]
    while _is_cut(parts[-1], accelerator.l2_vc_bytes):
        parts.append((parts[-1] + 1) // 2)
    return parts


def _is_cut(cores: Any, l2_vc_bytes: Any) -> Any:
    """Say of a number of vector cores, or of many, whether vector work may use half of them."""
    return (cores > 1) & (cores * l2_vc_bytes > LEAST_STAGED_BYTES)


def _lane_cycles(table: OperatorTable, lanes: IntArray) -> FloatArray:
    """Return the cycles of the vector work of every operator: (numbers of lanes, operators)."""
    rounds = np.ceil(table.elements / lanes[:, np.newaxis])
    return table.sum_vector_works(rounds * table.lane_cycles)


@lru_cache(maxsize=512)
def product_levels(gemms: bytes, glb_bytes: float) -> tuple[WorkingSets, ...]:
    """Return the levels of some products, each by itself, cached.

    They are those of the whole buffer and of every power of two below it, so that a larger buffer
    has the levels of a smaller one. A level that needs no less room and reads no operand more
    rarely than another is left out.

    Parameters
    ----------
    gemms
        Rows of `OperatorTable.gemms`, as the bytes of an array of whole numbers.
    glb_bytes
        The whole buffer.
    """
    products = np.frombuffer(gemms, dtype=np.int64).reshape(-1, 5).copy()
    bytes_of = np.array([float(precision.operand_bytes) for precision in PRECISIONS.values()])
    operand_bytes = bytes_of[products[:, 4]]
    below = int(np.ceil(np.log2(max(glb_bytes / _LEAST_BYTES, 1.0))))
    sizes = np.array([glb_bytes, *(_LEAST_BYTES * 2.0**power for power in reversed(range(below)))])
    reads_of_sizes = np.empty((len(products), _KINDS * len(sizes), 2))
    fill_reads(products, operand_bytes, sizes, reads_of_sizes)
    return tuple(
        _levels_of(product, own, np.repeat(sizes, _KINDS), reads)
        for product, own, reads in zip(
            products.astype(np.float64), operand_bytes, reads_of_sizes, strict=True
        )
    )


def _levels_of(
    product: FloatArray, operand_bytes: float, sizes: FloatArray, reads: FloatArray
) -> WorkingSets:
    """Return the levels of one product, without those that another makes needless."""
    m, n, k, batch, _ = product
    # A whole operand may be smaller than the part of the buffer that is kept for it.
    used = np.minimum(sizes, operand_bytes * k * min(m, n) / RESIDENT_SHARE)
    traffic = batch * (reads * (operand_bytes * np.array([m * k, k * n]))).sum(axis=-1)
    # Compared as numbers of Python, which takes less time than arrays of three.
    needs = np.column_stack([used, reads]).tolist()
    kept = [0]
    for level in sorted(range(1, len(needs)), key=lambda level: (needs[level], level)):
        room, first, second = needs[level]
        if not any(
            needs[other][0] <= room and needs[other][1] <= first and needs[other][2] <= second
            for other in kept
        ):
            kept.append(level)
    return WorkingSets(used[kept], reads[kept], traffic[kept] - traffic[0], np.ones(len(kept)))


def operands_bytes(gemm: IntArray) -> FloatArray:
    """Return the bytes of both operands of a row of `OperatorTable.gemms`."""
    m, n, k, batch, precision = gemm.tolist()
    each = list(PRECISIONS.values())[precision].operand_bytes
    return np.array([m * k, k * n]) * float(each * batch)


def staged_bytes(graph: OperatorGraph, accelerators: Sequence[Accelerator]) -> FloatArray:
    """Return what operators that stream need: one more of the private buffers of all their cores.

    What the vector cores of a fused operator work on comes from the arrays, not from this buffer.

    Returns
    -------
    staged_bytes : (accelerators, operators)
    """
    streams = _streams(graph)
    buffers = np.zeros((len(accelerators), len(graph.operators)))
    for used, kind in ((streams.on_tensor_cores, "tc"), (streams.on_vector_cores, "vc")):
        size = chip_column(accelerators, f"num_{kind}") * chip_column(
            accelerators, f"l2_{kind}_bytes"
        )
        buffers += size * used
    return np.minimum(streams.moved_bytes, buffers)


def least_staged_bytes(graph: OperatorGraph, accelerators: Sequence[Accelerator]) -> FloatArray:
    """Return the least that operators that stream need, on however few of their cores.

    Returns
    -------
    least_bytes : (accelerators, operators)
    """
    least = staged_bytes(graph, accelerators)
    cores, each = (chip_column(accelerators, name) for name in ("num_vc", "l2_vc_bytes"))
    while (cut := _is_cut(cores, each)).any():
        cores = np.where(cut, np.ceil(cores / 2), cores)
    room = cores * each
    return np.where(_streams(graph).on_vector_cores, np.minimum(least, room), least)


@dataclass(frozen=True)
class Access:
    """An operator that makes or reads a tensor.

    Attributes
    ----------
    operator
        Its index.
    bytes
        That it moves once.
    operand_bytes
        Bytes of the first and the second operand of its product that are this tensor, which are
        moved as often as the product reads them; the rest is moved once.
    """

    operator: int
    bytes: float
    operand_bytes: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class KeptTensor:
    """A tensor that may stay on the chip: what one operator makes, or an input of the graph.

    Attributes
    ----------
    tensor
        Its place in the graph.
    size_bytes
        Of the tensor, or of the part of it that the operator makes.
    writer
        ``None`` for an input.
    readers
        Without collectives, which read from the HBM.
    outlives
        Whether it is written to the HBM in any case.
    """

    tensor: int
    size_bytes: int
    writer: Access | None
    readers: tuple[Access, ...]
    outlives: bool


@lru_cache(maxsize=512)
def kept_tensors(graph: OperatorGraph) -> tuple[KeptTensor, ...]:
    """Return the tensors of a graph that may stay on the chip, cached.

    A tensor that several operators write together is one for each of them.
    """
    operators = graph.operators
    kept = []
    for place, tensor in enumerate(graph.tensors):
        if not tensor.is_shared:
            continue
        own = [read for read in tensor.readers if operators[read.operator].collective is None]
        from_network = any(operators[i].collective is not None for i, _ in tensor.writers)
        if from_network or tensor.elements == 0 or not own:
            continue
        outlives = tensor.outlives or len(own) < len(tensor.readers)
        for index, elements in tensor.writers:
            share, written = elements / tensor.elements, elements * tensor.element_bytes
            readers = tuple(access_of(operators[r.operator], tensor, r, share) for r in own)
            writer = Access(index, float(written))
            kept.append(KeptTensor(place, written, writer, readers, outlives))
        if not tensor.writers and len(own) > 1:
            size_bytes = tensor.elements * tensor.element_bytes
            readers = tuple(access_of(operators[r.operator], tensor, r, 1.0) for r in own)
            kept.append(KeptTensor(place, size_bytes, None, readers, outlives=True))
    return tuple(kept)


@lru_cache(maxsize=512)
def _accesses(graph: OperatorGraph) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return operator, bytes and operand bytes of the accesses of `kept_tensors`, cached.

    Of each tensor first the writer, then the readers.
    """
    accesses = [
        access
        for kept in kept_tensors(graph)
        for access in ((kept.writer,) if kept.writer is not None else ()) + kept.readers
    ]
    return (
        np.array([access.operator for access in accesses], dtype=np.int64),
        np.array([access.bytes for access in accesses], dtype=np.float64),
        np.array([access.operand_bytes for access in accesses], dtype=np.float64).reshape(-1, 2),
    )


def saved_bytes(graph: OperatorGraph, sets: WorkingSets) -> FloatArray:
    """Return the HBM bytes that each access saves where its tensor stays, at every level.

    Returns
    -------
    saved_bytes : (accesses, levels)
        First of the writer of a tensor, then of its readers, tensor by tensor as `kept_tensors`
        lists them.
    """
    return saved_by_accesses(*_accesses(graph), sets)


def saved_by_accesses(
    operator: IntArray, bytes_: FloatArray, operand_bytes: FloatArray, sets: WorkingSets
) -> FloatArray:
    """Return the HBM bytes that each of some accesses saves: (accesses, levels).

    Parameters
    ----------
    operator, bytes_ : (accesses,)
        As of an `Access`.
    operand_bytes : (accesses, 2)
        As of an `Access`.
    sets
        The levels of the operators.
    """
    again = sets.operand_reads[operator] - 1.0
    repeated = (again * operand_bytes[:, np.newaxis]).sum(axis=-1)
    return np.asarray(bytes_[:, np.newaxis] + repeated)


def access_of(operator: Operator, tensor: Tensor, read: TensorRead, share: float) -> Access:
    """Describe how an operator reads a share of a tensor."""
    operands = (0.0, 0.0)
    if len(operator.gemms) == 1:
        gemm = operator.gemms[0]
        size = share * PRECISIONS[gemm.precision].operand_bytes * gemm.batch * gemm.k
        operands = size * gemm.m * read.first_operand, size * gemm.n * read.second_operand
    return Access(read.operator, read.elements * tensor.element_bytes * share, operands)
