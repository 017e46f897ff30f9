"""Traffic of one matrix product: HBM to global buffer, and private L2 to PE array."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.codec import data_table
from phaze_opt.compiled import callee, inlined, lazily_compiled
from phaze_opt.precision import SUM_BYTES

BOTH_WAYS = 2.0 * SUM_BYTES
"""Partial sums are read and written."""
HALVINGS = 13
"""Lengths are tried whole and cut into 2, 4, ... parts."""

_ASSUMED = data_table("estimator", "tensor_core.toml")
_REGISTERS_PER_PE = int(_ASSUMED["registers_per_pe"])
"""Values of the held operand in each processing element."""
RESIDENT_SHARE = float(_ASSUMED["resident_glb_share"])
"""Share of the global buffer for the resident block."""
_RARELY = 1e-4
"""Weight of an operand that is on the chip, against one that comes from the HBM."""


class Dataflow(IntEnum):
    """Operand that stays in the private L2 of a core."""

    OUTPUT_STATIONARY = 0
    WEIGHT_STATIONARY = 1
    INPUT_STATIONARY = 2


@inlined
def ceil_div(numerator: int, denominator: int) -> int:
    """Divide and round up."""
    return (numerator + denominator - 1) // denominator


@callee("UniTuple(int64,2)(int64,int64,int64,float64,float64,float64,float64)")
def _least_reads(
    m: int, n: int, k: int, operand_bytes: float, glb_bytes: float, first: float, second: float
) -> tuple[int, int]:
    """Count how often each operand is read where their weighted sum is least.

    The resident block takes its share of the buffer. It is a panel of whole rows of the first
    operand while the second operand streams by, or the reverse, or a block of the result in fp32
    while slices of both operands stream by. An operand that streams is read once for every
    resident block.

    Parameters
    ----------
    m, n, k
        The product.
    operand_bytes
        Of an element of an operand.
    glb_bytes
        Global buffer that the product may use.
    first, second
        Weight of reading each operand once.
    """
    resident = glb_bytes * RESIDENT_SHARE
    panel = int(resident // (operand_bytes * k))
    if panel >= m or panel >= n:
        return 1, 1
    best, reads = np.inf, (1, 1)
    if panel >= 1:
        passes = ceil_div(m, panel)
        best, reads = first + second * passes, (1, passes)
        passes = ceil_div(n, panel)
        if second + first * passes < best:
            best, reads = second + first * passes, (passes, 1)
    block = int(resident // SUM_BYTES)
    part = 1
    for _ in range(HALVINGS):
        rows = min(ceil_div(m, part), block)
        columns = min(max(block // rows, 1), n)
        times_1, times_2 = ceil_div(n, columns), ceil_div(m, rows)
        if first * times_1 + second * times_2 < best:
            best, reads = first * times_1 + second * times_2, (times_1, times_2)
        columns = min(ceil_div(n, part), block)
        rows = min(max(block // columns, 1), m)
        times_1, times_2 = ceil_div(n, columns), ceil_div(m, rows)
        if first * times_1 + second * times_2 < best:
            best, reads = first * times_1 + second * times_2, (times_1, times_2)
        part *= 2
    return reads


@lazily_compiled("float64(int64,int64,int64,float64,float64)")
def repeated_bytes(m: int, n: int, k: int, operand_bytes: float, glb_bytes: float) -> float:
    """Least HBM traffic of one product beyond reading both operands once; see `_least_reads`.

    Parameters
    ----------
    m, n, k
        The product.
    operand_bytes
        Of an element of an operand.
    glb_bytes
        Global buffer that the product may use.
    """
    first, second = operand_bytes * m * k, operand_bytes * k * n
    reads = _least_reads(m, n, k, operand_bytes, glb_bytes, first, second)
    return first * (reads[0] - 1) + second * (reads[1] - 1)


@lazily_compiled("void(int64[:,::1],float64[::1],float64[::1],float64[:,:,::1])")
def fill_reads(
    gemms: IntArray, operand_bytes: FloatArray, glb_bytes: FloatArray, reads: FloatArray
) -> None:
    """Count how often products read their operands where one of them, or none, is resident.

    Parameters
    ----------
    gemms : (products, at least 3)
        m, n, k.
    operand_bytes : (products,)
        Of an element of an operand.
    glb_bytes : (sizes,)
        Global buffers that a product may use.
    reads : (products, sizes * 3, 2)
        Filled in: reads of the first and of the second operand; for each size those with the least
        traffic, with the fewest reads of the first operand, and with the fewest of the second.
    """
    for product in range(gemms.shape[0]):
        m, n, k = gemms[product, 0], gemms[product, 1], gemms[product, 2]
        own = operand_bytes[product]
        first, second = own * m * k, own * k * n
        for size in range(len(glb_bytes)):
            for kind in range(3):
                weight_1 = first * _RARELY if kind == 2 else first
                weight_2 = second * _RARELY if kind == 1 else second
                least_reads = _least_reads(m, n, k, own, glb_bytes[size], weight_1, weight_2)
                reads[product, 3 * size + kind, 0] = least_reads[0]
                reads[product, 3 * size + kind, 1] = least_reads[1]


@callee("float64(int64,int64,int64,int64,int64,float64)")
def moved_operands(
    across_1: int, across_2: int, through: int, x: int, y: int, held: float
) -> float:
    """Least L2 traffic of one tile of edges ``across_1 × across_2`` over the array, in operands.

    Every processing element keeps up to `_REGISTERS_PER_PE` values of the held operand and uses
    each value that passes through with all of them. The registers are split between the two edges
    in the best way.

    Parameters
    ----------
    across_1, across_2, through
        Edges of the tile over the array, and the edge that passes through.
    x, y
        Edges of the array.
    held
        Operands that are as large as a value that passes along the second edge: 1, or a partial
        sum both ways.
    """
    best = np.inf
    share = 1
    while share <= _REGISTERS_PER_PE:
        rounds_1 = ceil_div(across_1, x * share)
        rounds_2 = ceil_div(across_2, y * (_REGISTERS_PER_PE // share))
        moved = float(through) * (float(across_1) * rounds_2 + held * float(across_2) * rounds_1)
        best = min(best, moved)
        share *= 2
    return best


def least_operands_per_mac(pe_x: FloatArray, pe_y: FloatArray) -> FloatArray:
    """Bound the L2 traffic of any tile per multiply-accumulate, in operands; see `moved_operands`.

    With s of the R registers along the first edge, a multiply-accumulate takes at least
    s / (pe_y R) + 1 / (pe_x s) operands, which no split makes smaller than 2 / √(pe_x pe_y R).

    Parameters
    ----------
    pe_x, pe_y
        Edges of the array.
    """
    return np.asarray(2.0 / np.sqrt(pe_x * pe_y * _REGISTERS_PER_PE))


@lazily_compiled("float64(int64,int64,int64,int64,int64,int64,float64)")
def tile_l2_bytes(
    dataflow: int, m: int, n: int, k: int, x: int, y: int, operand_bytes: float
) -> float:
    """L2 traffic of one tile ``m × n × k`` with the operand held that takes the fewest cycles."""
    sums = BOTH_WAYS / operand_bytes
    if dataflow == Dataflow.WEIGHT_STATIONARY:
        return operand_bytes * moved_operands(k, n, m, x, y, sums)
    if dataflow == Dataflow.INPUT_STATIONARY:
        return operand_bytes * moved_operands(k, m, n, x, y, sums)
    moved = moved_operands(m, n, k, x, y, 1.0)
    cycles = float(ceil_div(m, x)) * ceil_div(n, y) * k
    second_stays = float(ceil_div(k, x)) * ceil_div(n, y) * m
    if second_stays < cycles:
        cycles = second_stays
        moved = moved_operands(k, n, m, x, y, sums)
    if float(ceil_div(k, x)) * ceil_div(m, y) * n < cycles:
        moved = moved_operands(k, m, n, x, y, sums)
    return operand_bytes * moved
