"""Batches of products that run in groups, one after another, each with its own tiling.

With one tiling τ of t tiles and w cycles per wave, b products on c cores take

    f_τ(b) = max(⌈b·t / c⌉ · w, b·g)        (g: global buffer, cycles per product),

and the whole batch never takes longer than two parts of it. With the best tiling for every size,
f = min f_τ, it can: 3 products may fill the waves of one tiling and 4 products those of another,
while no tiling suits 7. A chip would run the 3 and then the 4. So the time of a batch B is

    T(B) = min f(b₁) + f(b₂) + ...  over all b₁ + b₂ + ... = B,

and T(b₁ + b₂) ≤ T(b₁) + T(b₂), because one plan after the other is a plan for both. This module
finds that minimum exactly (up to `_SIGNIFICANT`), for every batch independently:

1. No plan takes fewer than ρ cycles per product, ρ = min ρ_τ with ρ_τ = max(t·w / c, g). Where
   f(B) = ρ·B (whole waves, or bound by memory: nearly every batch of a network), f(B) is the
   minimum.
2. The excess f(b) - ρ·b of the groups adds up, so in a faster plan each group has an excess below
   the slack f(B) - ρ·B. As f_τ(b) ≥ max(w, ρ_τ·b), tilings with
   (ρ_τ - ρ) · max(1, w / ρ_τ) ≥ slack drop out.
3. The rest is an unbounded knapsack over group sizes. Tiling τ' is never slower than τ where
   t' ≤ ⌊w / w'⌋ · t and g' ≤ max(g, t'·w' / c): ⌈b·r·t / c⌉ ≤ r · ⌈b·t / c⌉ for whole r, and
   memory that is no slower than the arrays never binds. There is a best plan in which every group
   but one would take longer with one product more, because products can be moved to it from that
   one.
4. A very large batch is shortened by multiples of c, which are whole waves of every tiling. Two
   groups of one tiling may be joined; c products of a tiling with t·w / c ≥ g take exactly c·ρ_τ
   less when moved away. So if the tiling with ρ is of this kind, all others of this kind hold
   fewer than c products, and any other at most slack / (ρ_τ - ρ), together R: beyond R + c
   products, T(B) = T(B - c) + c·ρ.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import callee, lazily_compiled
from phaze_opt.estimator.gemm_tilings import Row, array_cycles

_SIGNIFICANT = 1e-13
"""Least relative gain for which a batch is split; the laws hold up to a few times this share."""
_RATE_CYCLES = 3
"""Row of ρ_τ in the table of candidates; the rows above are those of the table of tilings."""


@callee("int64(float64[:,::1],int64,int64,int64,float64,float64[:,::1],float64[::1])")
def _candidates(
    tilings: FloatArray, count: int, batch: int, cores: int, cycles: float,
    candidates: FloatArray, bounds: FloatArray,
) -> int:  # fmt: skip
    """Copy the tilings that a faster plan may use (step 2) and return their number.

    Parameters
    ----------
    candidates : (4, count)
    bounds : (2,)
        Filled with ρ and the slack.
    """
    rate = np.inf
    for index in range(count):
        array = tilings[Row.TILES, index] * tilings[Row.WAVE_CYCLES, index] / cores
        candidates[_RATE_CYCLES, index] = max(array, tilings[Row.GLB_CYCLES, index])
        rate = min(rate, candidates[_RATE_CYCLES, index])
    slack = cycles - rate * batch
    bounds[0], bounds[1] = rate, slack
    if slack <= _SIGNIFICANT * cycles:
        return 0
    kept = 0
    for index in range(count):
        own = candidates[_RATE_CYCLES, index]
        if (own - rate) * max(1.0, tilings[Row.WAVE_CYCLES, index] / own) < slack:
            for row in range(_RATE_CYCLES):
                candidates[row, kept] = tilings[row, index]
            candidates[_RATE_CYCLES, kept] = own
            kept += 1
    return kept


@callee("int64(float64[:,::1],int64,int64)")
def _undominated(candidates: FloatArray, kept: int, cores: int) -> int:
    """Drop every candidate that another one never exceeds (step 3); return how many stay."""
    stay = 0
    for index in range(kept):
        tiles, wave = candidates[Row.TILES, index], candidates[Row.WAVE_CYCLES, index]
        dominated = False
        for other in range(kept):
            if stay <= other <= index:
                continue
            array = candidates[Row.TILES, other] * candidates[Row.WAVE_CYCLES, other] / cores
            if candidates[Row.TILES, other] <= np.floor(
                wave / candidates[Row.WAVE_CYCLES, other]
            ) * tiles and candidates[Row.GLB_CYCLES, other] <= max(
                array, candidates[Row.GLB_CYCLES, index]
            ):
                dominated = True
                break
        if not dominated:
            for row in range(_RATE_CYCLES + 1):
                candidates[row, stay] = candidates[row, index]
            stay += 1
    return stay


@callee("int64(float64[:,::1],int64,int64,int64,float64,float64)")
def _shortened(
    candidates: FloatArray, kept: int, batch: int, cores: int, rate: float, slack: float
) -> int:
    """Return the batch without the multiple of the cores that runs at the best rate (step 4)."""
    steady, others = False, 0.0
    for index in range(kept):
        own = candidates[_RATE_CYCLES, index]
        most = slack / (own - rate) if own > rate else np.inf
        if candidates[Row.TILES, index] * candidates[Row.WAVE_CYCLES, index] / cores == own:
            most = min(most, float(cores))
            steady = steady or own == rate
        others += most
    if not steady or batch < others + cores:
        return batch
    return batch - int((batch - others) // cores) * cores


@callee("void(float64[:,::1],int64,int64,float64[::1])")
def _best_cycles(candidates: FloatArray, kept: int, cores: int, single: FloatArray) -> None:
    """Fill in f(b) for every b from 1."""
    for size in range(single.size):
        single[size] = np.inf
    for index in range(kept):
        tiles, wave = candidates[Row.TILES, index], candidates[Row.WAVE_CYCLES, index]
        memory = candidates[Row.GLB_CYCLES, index]
        for size in range(1, single.size):
            cycles = max(array_cycles(size * tiles, wave, cores), size * memory)
            single[size] = min(single[size], cycles)


@callee("float64(float64[::1],float64,float64,int64[::1])")
def _knapsack(single: FloatArray, rate: float, slack: float, last: IntArray) -> float:
    """Solve step 3: return the time of the whole batch.

    Parameters
    ----------
    single : (batch + 1,)
        f(b).
    last : (batch + 1,)
        Filled with the size of one group of the best plan, for every b.
    """
    total = np.zeros(single.size)
    useful = np.empty(single.size, np.int64)
    count = 0
    for size in range(1, single.size):
        total[size], last[size] = single[size], size
        for index in range(count):
            group = useful[index]
            cycles = single[group] + total[size - group]
            if cycles < total[size]:
                total[size], last[size] = cycles, group
        fills = size + 1 < single.size and single[size] < single[size + 1]
        if fills and last[size] == size and single[size] - rate * size < slack:
            useful[count] = size
            count += 1
    return float(total[single.size - 1])


@lazily_compiled("int64[::1](float64[:,::1],int64,int64,int64,float64)")
def group_sizes(tilings: FloatArray, count: int, batch: int, cores: int, cycles: float) -> IntArray:
    """Split a batch into the groups that take the least time together.

    Parameters
    ----------
    tilings : (at least Row.GLB_CYCLES + 1, at least count)
        Tilings of one product, see `gemm_tilings.lay_out_tilings`.
    batch, cores
        Independent products, and the cores that they run on.
    cycles
        f(batch): the best time with one tiling for all.

    Returns
    -------
    sizes
        Products of each group; empty if one group is the best plan. Two groups may have the same
        tiling.
    """
    none = np.empty(0, np.int64)
    if batch == 1 or cores == 1:
        return none
    candidates, bounds = np.empty((_RATE_CYCLES + 1, count)), np.empty(2)
    kept = _candidates(tilings, count, batch, cores, cycles, candidates, bounds)
    if kept == 0:
        return none
    rate, slack = bounds[0], bounds[1]
    if batch > kept:  # else it takes longer than it saves
        kept = _undominated(candidates, kept, cores)
    short = _shortened(candidates, kept, batch, cores, rate, slack)
    single, last = np.empty(short + 1), np.zeros(short + 1, np.int64)
    _best_cycles(candidates, kept, cores, single)
    total = _knapsack(single, rate, slack, last) + rate * (batch - short)
    if total >= cycles * (1.0 - _SIGNIFICANT):
        return none
    sizes = np.empty(short + 1, np.int64)
    groups, left = 0, short
    if batch > short:
        sizes[0] = batch - short
        groups = 1
    while left > 0:
        sizes[groups] = last[left]
        left -= last[left]
        groups += 1
    return sizes[:groups]
