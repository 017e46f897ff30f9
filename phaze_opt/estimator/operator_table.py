"""An operator graph as arrays: what the estimator needs to know of it, whatever the accelerator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.estimator.gemm_kernel import ELEMENT_BYTES
from phaze_opt.estimator.vector_core import vector_operator
from phaze_opt.hardware.accelerator import LANE_VALUE_BYTES
from phaze_opt.workload.graph import Operator, OperatorGraph


@dataclass(frozen=True, eq=False)
class OperatorTable:
    """A graph as arrays, independent of the accelerator.

    Attributes
    ----------
    gemms : (products, 4)
        m, n, k, batch.
    gemm_owner : (products,)
        Index of the operator.
    gemm_blocked : (products,)
        Whether re-reads of the blocking go to HBM (a lone product).
    gemm_rounds, vector_rounds
        Indices of the first product (vector work) of every operator, of the second one, …
    elements, lane_cycles, vector_owner : (vector works,)
    row_bytes, reread_bytes : (vector works,)
        Size of a row in fp32, and what is read again in total where it does not fit.
    read_bytes, write_bytes : (operators,)
        Compulsory traffic.
    has_work, macs : (operators,)
        Whether the operator takes time; multiply-accumulates.
    """

    gemms: IntArray
    gemm_owner: IntArray
    gemm_blocked: FloatArray
    gemm_rounds: tuple[IntArray, ...]
    vector_rounds: tuple[IntArray, ...]
    elements: FloatArray
    lane_cycles: FloatArray
    vector_owner: IntArray
    row_bytes: FloatArray
    reread_bytes: FloatArray
    read_bytes: FloatArray
    write_bytes: FloatArray
    has_work: FloatArray
    macs: FloatArray
    operators: tuple[Operator, ...]


@lru_cache(maxsize=512)
def operator_table(graph: OperatorGraph) -> OperatorTable:
    """Lay out a graph as arrays, once.

    Raises
    ------
    InputError
        If a vector operator's kind is unknown.
    """
    operators = graph.operators
    gemms = [(i, g, len(op.gemms) == 1) for i, op in enumerate(operators) for g in op.gemms]
    works = [
        (i, work, vector_operator(work.kind), not op.gemms)
        for i, op in enumerate(operators)
        for work in op.vector
    ]
    gemm_owner = np.array([i for i, _, _ in gemms], dtype=np.int64)
    vector_owner = np.array([i for i, _, _, _ in works], dtype=np.int64)
    return OperatorTable(
        gemms=np.array([(g.m, g.n, g.k, g.batch) for _, g, _ in gemms], dtype=np.int64).reshape(
            -1, 4
        ),
        gemm_owner=gemm_owner,
        gemm_blocked=np.array([alone for _, _, alone in gemms], dtype=np.float64),
        elements=np.array([work.elements for _, work, _, _ in works], dtype=np.float64),
        lane_cycles=np.array([row.cycles for _, _, row, _ in works], dtype=np.float64),
        vector_owner=vector_owner,
        gemm_rounds=_rounds(gemm_owner),
        vector_rounds=_rounds(vector_owner),
        row_bytes=np.array(
            [LANE_VALUE_BYTES * work.columns for _, work, _, _ in works], dtype=np.float64
        ),
        # Beside a product the rows come from the arrays, not from memory.
        reread_bytes=np.array(
            [
                (row.reads - 1) * ELEMENT_BYTES * work.elements * from_memory
                for _, work, row, from_memory in works
            ],
            dtype=np.float64,
        ),
        read_bytes=np.array([op.read_bytes for op in operators], dtype=np.float64),
        write_bytes=np.array([op.write_bytes for op in operators], dtype=np.float64),
        has_work=np.array(
            [bool(op.gemms or op.vector or op.collective) for op in operators], dtype=np.float64
        ),
        macs=np.array([op.flops / 2 for op in operators], dtype=np.float64),
        operators=operators,
    )


def _rounds(owner: IntArray) -> tuple[IntArray, ...]:
    """Sort works into rounds in which no operator has more than one; ``owner`` must rise."""
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    return tuple(np.flatnonzero(rank == turn) for turn in range(int(rank.max(initial=-1)) + 1))
