"""An operator graph as arrays: the properties of its operators that no accelerator changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.estimator.chips import chip_column
from phaze_opt.estimator.vector_core import vector_operator
from phaze_opt.hardware.accelerator import LANE_VALUE_BYTES, Accelerator
from phaze_opt.hardware.energy import mac_energy_share
from phaze_opt.precision import ATTENTION_PRECISIONS, BF16, PRECISIONS
from phaze_opt.workload.graph import AttentionScores, Gemm, Operator, OperatorGraph
from phaze_opt.workload.recurrences import is_scan_kernel

WIDE_HEAD = 128
"""Width of a head up to which the sums of a backward of attention stay beside each other in a
core."""


@dataclass(frozen=True, eq=False)
class OperatorTable:
    """A graph as arrays, independent of the accelerator.

    Attributes
    ----------
    gemms : (products, 5)
        m, n, k, batch, and the place of the precision in `PRECISIONS`; without those of fused
        attention, whose kernel is laid out as a whole.
    gemm_owner : (products,)
        Index of the operator.
    distinct_gemms : (distinct products, 6)
        As for `tensor_core.gemm_table`: equal rows of ``gemms`` once, with what the operator moves
        beside before the precision. Where it has several products, each is laid out by itself.
    gemm_kind : (products,)
        Place of each product in ``distinct_gemms``.
    operand_bytes, result_bytes : (products,)
        Both operands once, and the result once.
    gemm_blocked : (products,)
        1 where repeated reads of its blocks go to the HBM: it is the operator's only product.
    elements, lane_cycles : (vector works,)
        Elements, and lane cycles per element.
    all_lane_cycles : (operators,)
        Of all vector work of an operator.
    vector_owner : (vector works,)
        Index of the operator.
    row_bytes, reread_bytes, cached_bytes : (vector works,)
        Size of a row in fp32, bytes that are read again in total where a row does not fit the
        private buffer, and those that are then read again from a cache that keeps the rows.
    vector_rounds
        Indices of the first vector work of every operator, of the second one, …
    read_bytes, write_bytes : (operators,)
        Compulsory traffic.
    scan_bytes : (operators,)
        What the threads of a kernel of a state-space scan load and store, see `scan_bytes`; 0 of
        other operators.
    has_work : (operators,)
        1 where the operator takes time.
    macs_by_precision, product_macs : (operators, precisions)
        Multiply-accumulates in each of `PRECISIONS`, and those that are not of fused attention.
    attention_owner : (fused attention cores,)
        Index of the operator.
    attention_cores : (fused attention cores, 7)
        Heads, queries, keys, 1 where there is a causal mask, key heads, 1 for a backward, and the
        place of the precision in `ATTENTION_PRECISIONS`.
    attention_products : (products of fused attention cores, 2)
        Index of the core, and the size of its heads in this product.
    attention_direction : (fused attention cores,)
        0 for a forward, 1 for a backward, 2 for one with heads wider than 128.
    macs_per_score : (fused attention cores,)
        Multiply-accumulates for each score.
    is_attention, is_backward_attention : (operators,)
        1 where the operator is a fused attention core, or a backward of one.
    score_works, score_works_core : (vector works on scores,)
        Index of the vector work that is done on every score of a core, and of that core.
    exponential_cycles : (vector works,)
        The part of ``lane_cycles`` that is an exponential, in fused attention cores.
    """

    gemms: IntArray
    gemm_owner: IntArray
    distinct_gemms: IntArray
    gemm_kind: IntArray
    operand_bytes: FloatArray
    result_bytes: FloatArray
    gemm_blocked: FloatArray
    elements: FloatArray
    lane_cycles: FloatArray
    all_lane_cycles: FloatArray
    vector_owner: IntArray
    row_bytes: FloatArray
    reread_bytes: FloatArray
    cached_bytes: FloatArray
    vector_rounds: tuple[IntArray, ...]
    read_bytes: FloatArray
    write_bytes: FloatArray
    scan_bytes: FloatArray
    has_work: FloatArray
    macs_by_precision: FloatArray
    product_macs: FloatArray
    attention_owner: IntArray
    attention_cores: IntArray
    attention_products: IntArray
    attention_direction: IntArray
    macs_per_score: FloatArray
    is_attention: FloatArray
    is_backward_attention: FloatArray
    score_works: IntArray
    score_works_core: IntArray
    exponential_cycles: FloatArray
    operators: tuple[Operator, ...]

    def sum_vector_works(self, values: FloatArray) -> FloatArray:
        """Sum an array of shape (accelerators, vector works) to (accelerators, operators).

        By operator, in order: the bits do not depend on the number of accelerators.
        """
        sums = np.zeros((len(values), len(self.operators)))
        for works in self.vector_rounds:
            sums[:, self.vector_owner[works]] += values[:, works]
        return sums


@lru_cache(maxsize=1024)
def operator_table(graph: OperatorGraph) -> OperatorTable:
    """Return a graph as arrays, cached.

    Raises
    ------
    InputError
        If a vector operator's kind is unknown.
    """
    operators = graph.operators
    gemms = [
        (i, gemm, len(op.gemms) == 1)
        for i, op in enumerate(operators)
        if op.attention is None
        for gemm in op.gemms
    ]
    works = [
        (i, work, vector_operator(work.kind), not op.gemms)
        for i, op in enumerate(operators)
        for work in op.vector
    ]
    gemm_owner = np.array([i for i, _, _ in gemms], dtype=np.int64)
    vector_owner = np.array([i for i, _, _, _ in works], dtype=np.int64)
    attention = [(i, op.attention) for i, op in enumerate(operators) if op.attention is not None]
    on_scores = [operators[i].is_on_scores(work) for i, work, _, _ in works]
    score_works = np.flatnonzero(np.array(on_scores, dtype=np.bool_))
    place = {name: number for number, name in enumerate(PRECISIONS)}
    sizes = np.array(
        [(g.m, g.n, g.k, g.batch, place[g.precision]) for _, g, _ in gemms], dtype=np.int64
    ).reshape(-1, 5)
    m, n, k, batch, _ = np.ascontiguousarray(sizes.T, dtype=np.float64)
    precisions = [PRECISIONS[g.precision] for _, g, _ in gemms]
    operand_bytes = np.array([p.operand_bytes for p in precisions]) * batch * (m * k + k * n)
    result_bytes = np.array([p.result_bytes for p in precisions]) * batch * m * n
    moved = np.array(graph.moved_bytes, dtype=np.int64)
    elements = np.array([work.elements for _, work, _, _ in works], dtype=np.float64)
    lane_cycles = np.array([row.cycles for _, _, row, _ in works], dtype=np.float64)
    all_lane_cycles = np.zeros(len(operators))
    np.add.at(all_lane_cycles, vector_owner, elements * lane_cycles)
    # Negative where it does not move all of them, as where the epilogue takes the result in.
    alone = np.array([alone for _, _, alone in gemms], dtype=np.bool_)
    beside_bytes = np.where(alone, moved[gemm_owner] - operand_bytes - result_bytes, 0)
    whole = np.insert(sizes, 4, beside_bytes, axis=1)
    distinct, kind = np.unique(whole, axis=0, return_inverse=True)
    by_precision = _macs_by_precision(operators)
    are_products = np.array([op.attention is None for op in operators], dtype=np.bool_)
    return OperatorTable(
        gemms=sizes,
        gemm_owner=gemm_owner,
        distinct_gemms=np.ascontiguousarray(distinct),
        gemm_kind=kind.reshape(-1),
        operand_bytes=operand_bytes,
        result_bytes=result_bytes,
        gemm_blocked=alone.astype(np.float64),
        elements=elements,
        lane_cycles=lane_cycles,
        all_lane_cycles=all_lane_cycles,
        vector_owner=vector_owner,
        vector_rounds=_rounds(vector_owner),
        row_bytes=np.array(
            [LANE_VALUE_BYTES * work.columns for _, work, _, _ in works], dtype=np.float64
        ),
        # In an operator with products the rows come from the PE arrays, not from memory.
        reread_bytes=np.array(
            [
                (row.reads - 1) * BF16.result_bytes * work.elements * from_memory
                for _, work, row, from_memory in works
            ],
            dtype=np.float64,
        ),
        cached_bytes=np.array(
            [
                row.cached_reads * BF16.result_bytes * work.elements * from_memory
                for _, work, row, from_memory in works
            ],
            dtype=np.float64,
        ),
        read_bytes=np.array(graph.read_bytes, dtype=np.float64),
        write_bytes=np.array(graph.write_bytes, dtype=np.float64),
        scan_bytes=np.array(scan_bytes(graph), dtype=np.float64),
        has_work=np.array(
            [bool(op.gemms or op.vector or op.collective) for op in operators], dtype=np.float64
        ),
        macs_by_precision=by_precision,
        product_macs=np.where(are_products[:, np.newaxis], by_precision, 0.0),
        attention_owner=np.array([i for i, _ in attention], dtype=np.int64),
        attention_cores=np.array(
            [_attention_core(operators[i], scores) for i, scores in attention], dtype=np.int64
        ).reshape(-1, 7),
        attention_products=np.array(
            [
                (core, gemm.flops // (2 * scores.elements))
                for core, (i, scores) in enumerate(attention)
                for gemm in operators[i].gemms
            ],
            dtype=np.int64,
        ).reshape(-1, 2),
        attention_direction=np.array(
            [attention_direction(operators[i]) for i, _ in attention], dtype=np.int64
        ),
        macs_per_score=np.array(
            [
                mac_energy_share(operators[i].gemms[0].precision)
                * (operators[i].flops / (2 * scores.elements))
                for i, scores in attention
            ],
            dtype=np.float64,
        ),
        is_attention=np.array([op.attention is not None for op in operators], dtype=np.float64),
        is_backward_attention=np.array(
            [op.attention is not None and attention_direction(op) > 0 for op in operators],
            dtype=np.float64,
        ),
        score_works=score_works,
        score_works_core=np.searchsorted([i for i, _ in attention], vector_owner[score_works]),
        exponential_cycles=np.array(
            [
                row.exponential_cycles if operators[i].attention is not None else 0.0
                for i, _, row, _ in works
            ],
            dtype=np.float64,
        ),
        operators=operators,
    )


def scan_bytes(graph: OperatorGraph) -> list[float]:
    """Return what the threads of every kernel of a state-space scan load and store; 0 of others.

    One with products loads the operands of all heads once, 2 bytes an element: those that heads
    share again for every head (its blocks are those of one head), and of scores in fp32 the half
    that the mask leaves. One without, which hands states on, loads what it reads.
    """
    rows = zip(graph.operators, graph.read_bytes, graph.write_bytes, strict=True)
    return [
        float(sum(map(_operand_bytes, operator.gemms)) if operator.gemms else read) + written
        if is_scan_kernel(operator.id)
        else 0.0
        for operator, read, written in rows
    ]


def _operand_bytes(gemm: Gemm) -> float:
    """Return the bytes of both operands of a batch of products, each once."""
    return PRECISIONS[gemm.precision].operand_bytes * gemm.batch * gemm.k * (gemm.m + gemm.n)


def array_cycles(macs: FloatArray, accelerators: Sequence[Accelerator]) -> FloatArray:
    """Return the cycles that one processing element takes for multiply-accumulates.

    Parameters
    ----------
    macs : (operators, precisions)
        As `OperatorTable.macs_by_precision`.
    accelerators
        Whose rates hold.

    Returns
    -------
    cycles : (accelerators or 1, operators)
    """
    rates = chip_column(accelerators, "array_rates")[:, 0]
    rates = rates[:1] if (rates == rates[0]).all() else rates
    cycles = np.zeros((len(rates), len(macs)))
    for place in np.flatnonzero(macs.any(axis=0)).tolist():
        cycles += macs[:, place] / rates[:, place, np.newaxis]
    return cycles


def _macs_by_precision(operators: Sequence[Operator]) -> FloatArray:
    """Sum the multiply-accumulates of every operator by precision."""
    macs, place = (
        np.zeros((len(operators), len(PRECISIONS))),
        {n: i for i, n in enumerate(PRECISIONS)},
    )
    for index, operator in enumerate(operators):
        for gemm in operator.gemms:
            macs[index, place[gemm.precision]] += gemm.flops / 2
    return macs


def _attention_core(operator: Operator, scores: AttentionScores) -> tuple[int, ...]:
    """Return one row of `OperatorTable.attention_cores`.

    Query heads that share a key head are rows of one product.
    """
    heads, products = scores.heads, operator.gemms
    return (
        heads,
        scores.queries,
        scores.keys,
        int(scores.causal),
        min([heads, *(product.batch for product in products)]),
        int(attention_direction(operator) > 0),
        attention_place(operator),
    )


def attention_place(operator: Operator) -> int:
    """Return the place of the precision of a fused attention core in `ATTENTION_PRECISIONS`."""
    return [str(name) for name in ATTENTION_PRECISIONS].index(operator.gemms[0].precision)


def attention_direction(operator: Operator) -> int:
    """Return 0 for a forward of fused attention, 1 for a backward, 2 for one with wide heads.

    A forward has the products of the scores and of the result, a backward has more.
    """
    scores, products = operator.attention, operator.gemms
    if scores is None or len(products) <= 2:
        return 0
    widest = max(product.flops // (2 * scores.elements) for product in products)
    return 2 if widest > WIDE_HEAD else 1


def _rounds(owner: IntArray) -> tuple[IntArray, ...]:
    """Sort works into rounds with at most one work of each operator; ``owner`` must rise."""
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    return tuple(np.flatnonzero(rank == turn) for turn in range(int(rank.max(initial=-1)) + 1))
