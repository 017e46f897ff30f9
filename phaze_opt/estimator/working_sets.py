"""What operators need in the global buffer, and what the HBM moves for them then.

A product is blocked through the global buffer, and may be blocked in other ways than the one that
`estimate` takes, which uses all of the buffer: with a part of it, so that tensors can stay beside
it; and so that one operand is read as rarely as possible while the other, which may be on the chip,
is read more often. Each way is a level. Other operators stream: they need what the private buffers
of their cores hold, once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.estimator.gemm_traffic import ELEMENT_BYTES, RESIDENT_SHARE, fill_reads
from phaze_opt.estimator.operator_table import operator_table
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.workload.graph import OperatorGraph, TensorRead

_PARTS = np.array([1.0, 0.25, 0.0625])
"""Parts of the global buffer that a product may use."""
LEVELS = 3 * len(_PARTS)
"""Levels of an operator; those that do not block anything have equal ones."""


@dataclass(frozen=True, eq=False)
class WorkingSets:
    """The levels of all operators of a graph on one accelerator, on all cores.

    Attributes
    ----------
    working_bytes : (operators, LEVELS)
        Global buffer that the operator uses while it runs, beside tensors that stay.
    operand_reads : (operators, LEVELS, 2)
        How often the operands of its product are read; 1 for operators that block nothing.
    extra_bytes : (operators, LEVELS)
        HBM traffic beyond that of level 0, where nothing stays.
    """

    working_bytes: IntArray
    operand_reads: FloatArray
    extra_bytes: FloatArray


def working_sets(graph: OperatorGraph, accelerator: Accelerator) -> WorkingSets:
    """Return what every operator needs in the global buffer, at every level."""
    table = operator_table(graph)
    count, glb_bytes = len(table.operators), float(accelerator.glb_bytes)
    staged = np.array([_staged_bytes(graph, index, accelerator) for index in range(count)])
    working = np.repeat(staged[:, np.newaxis], LEVELS, axis=1)
    reads = np.ones((count, LEVELS, 2))
    extra = np.zeros((count, LEVELS))
    blocked = np.flatnonzero(table.gemm_blocked)
    if blocked.size > 0:
        gemms, owner = table.gemms[blocked], table.gemm_owner[blocked]
        found = np.empty((len(blocked), LEVELS, 2))
        sizes = glb_bytes * _PARTS
        fill_reads(gemms, sizes, found)
        m, n, k, batch = gemms.astype(np.float64).T
        operands = ELEMENT_BYTES * np.stack([m * k, k * n], axis=-1)[:, np.newaxis]
        traffic = batch[:, np.newaxis] * (found * operands).sum(axis=-1)
        # A whole operand may be smaller than the part of the buffer that is kept for it.
        whole = ELEMENT_BYTES * k * np.minimum(m, n) / RESIDENT_SHARE
        used = np.minimum(np.repeat(sizes, 3)[np.newaxis], whole[:, np.newaxis])
        working[owner] = np.ceil(used)
        reads[owner] = found
        extra[owner] = traffic - traffic[:, :1]
    return WorkingSets(working.astype(np.int64), reads, extra)


def _staged_bytes(graph: OperatorGraph, index: int, accelerator: Accelerator) -> float:
    """Return what an operator that streams needs: one more of the private buffers of its cores."""
    operator = graph.operators[index]
    moved = operator.read_bytes + operator.write_bytes
    cores = accelerator.num_tc * accelerator.l2_tc_bytes * bool(operator.gemms)
    cores += accelerator.num_vc * accelerator.l2_vc_bytes * bool(operator.vector)
    return float(min(moved, cores))


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

    def saved_bytes(self, operand_reads: FloatArray) -> FloatArray:
        """Return the HBM bytes that residency saves at every level, of shape (LEVELS,)."""
        repeated = (operand_reads[self.operator] - 1.0) @ np.array(self.operand_bytes)
        return np.asarray(self.bytes + repeated)


@dataclass(frozen=True)
class KeptTensor:
    """A tensor that may stay on the chip: what one operator makes, or an input of the graph.

    Attributes
    ----------
    size_bytes
        Of the tensor, or of the part of it that the operator makes.
    writer
        ``None`` for an input.
    readers
        Without collectives, which read from the HBM.
    outlives
        Whether it is written to the HBM in any case.
    """

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
    for tensor in graph.tensors:
        own = [read for read in tensor.readers if operators[read.operator].collective is None]
        from_network = any(operators[i].collective is not None for i, _ in tensor.writers)
        if from_network or tensor.size_bytes == 0 or not own:
            continue
        outlives = tensor.outlives or len(own) < len(tensor.readers)
        for index, written in tensor.writers:
            share = written / tensor.size_bytes
            readers = tuple(_access(graph, read, share) for read in own)
            kept.append(KeptTensor(written, Access(index, float(written)), readers, outlives))
        if not tensor.writers and len(own) > 1:
            readers = tuple(_access(graph, read, 1.0) for read in own)
            kept.append(KeptTensor(tensor.size_bytes, None, readers, outlives=True))
    return tuple(kept)


def _access(graph: OperatorGraph, read: TensorRead, share: float) -> Access:
    """Describe how an operator reads a share of a tensor."""
    operator = graph.operators[read.operator]
    operands = (0.0, 0.0)
    if len(operator.gemms) == 1:
        gemm = operator.gemms[0]
        size = share * ELEMENT_BYTES * gemm.batch * gemm.k
        operands = size * gemm.m * read.first_operand, size * gemm.n * read.second_operand
    return Access(read.operator, read.bytes * share, operands)
