"""The best plan with groups that run tile by tile, and the least times of operators."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TypeVar

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.scheduling.residency import EvaluatedSteps, Residency, ResidencyPlan
from phaze_opt.scheduling.residency_kernel import least_seconds
from phaze_opt.scheduling.schedule_problem import TiledGroup
from phaze_opt.scheduling.tile_kernel import RowPrices, run_path, search_lattice
from phaze_opt.scheduling.tile_lattice import TileLattice
from phaze_opt.scheduling.tiles import LeastMoves, TileGraph, TilePrices, Tiling

Numbers = TypeVar("Numbers", FloatArray, IntArray)


def least_tiled_s(residency: Residency, moves: LeastMoves) -> FloatArray:
    """Give the least time of every operator, whole or cut: (operators,).

    Of its tensors all stay that fit at once; those that it hands on by tiles need no room. One that
    may be cut has one more level, in which it reads nothing twice and works in no room.
    """
    graph = residency.graph
    least_s = np.empty(graph.operators)
    least_seconds(
        (*residency.numbers[:-1], moves.tensor_bytes),
        (moves.cut, moves.moved_bytes, moves.saved_bytes),
        *graph.accesses_by_operator,
        moves.access_tensor,
        graph.sole_load,
        residency.glb_bytes,
        residency.hbm_bytes_per_s,
        least_s,
    )
    return least_s


def least_of_prices(residency: Residency, graph: TileGraph, prices: TilePrices) -> FloatArray:
    """Give a least time of every operator, as if all its tensors were in the buffer: (operators,).

    Weaker than `least_tiled_s`, but from nothing than the numbers of a problem.
    """
    rate = residency.hbm_bytes_per_s

    def least_s(of: Residency | TilePrices, row: IntArray) -> FloatArray:
        saved = np.zeros_like(of.hbm_bytes)
        np.add.at(saved, row, of.saved_bytes)
        flow_s = np.maximum(of.hbm_bytes - saved, 0.0) / rate
        return np.asarray(np.maximum(of.other_s, flow_s).min(axis=1))

    least = least_s(residency, residency.graph.access_operator)
    operators, _ = graph.row_columns
    np.minimum.at(least, operators, least_s(prices, graph.access_row))
    return least + residency.overhead_s


def search_tiles(
    residency: Residency, tiling: Tiling, lattice: TileLattice, known: tuple[float, float]
) -> EvaluatedSteps | None:
    """Find the best plan of a lattice, if it is better than the best one known.

    Parameters
    ----------
    residency, tiling
        The joint problem, and its part on tiles.
    lattice
        What is searched.
    known
        Makespan and HBM bytes of the best plan known.
    """
    prices = _row_prices(residency, tiling)
    chip = lattice.arrays, prices, residency.glb_bytes, residency.hbm_bytes_per_s
    count = residency.graph.operators
    found_s, _, arcs, masks = search_lattice(*chip, count, *known)
    if found_s == math.inf:
        return None
    level, flow, seconds = np.empty(count, dtype=np.int64), np.empty(count), np.empty(count)
    run_path(*chip, arcs, masks, level, flow, seconds)
    ends_s = list(accumulate(seconds.tolist(), initial=0.0))
    resident: set[int] = set()
    order: list[int] = []
    groups = []
    for arc, mask in zip(arcs.tolist(), masks.tolist(), strict=True):
        step, bits = lattice.arcs[arc], lattice.bits[arc]
        kept, passed, numbers = bits.chosen(mask)
        resident.update(kept)
        first, last = len(order), len(order) + len(step.operators)
        order += step.operators
        if step.tiles > 1:
            alone_bytes = float(residency.hbm_bytes[list(step.operators), 0].sum())
            saved_bytes = alone_bytes - float(flow[first:last].sum())
            held = tuple([tiling.graph.held[number] for number in numbers])
            group = step.operators, step.tiles, passed, held
            groups.append(TiledGroup(*group, ends_s[first], ends_s[last], saved_bytes))
    place = np.argsort(order).tolist()
    return EvaluatedSteps(
        ResidencyPlan(
            tuple(order),
            tuple(level[place].tolist()),
            tuple([i in resident for i in range(len(residency.graph.tensors))]),
        ),
        tuple([ends_s[at] for at in place]),
        tuple([ends_s[at + 1] for at in place]),
        tuple(flow[place].tolist()),
        ends_s[-1],
        tuple(groups),
    )


def _row_prices(residency: Residency, tiling: Tiling) -> RowPrices:
    """Join the prices of whole operators and of tile operators."""
    prices, graph = tiling.prices, tiling.graph
    rows = [row.operator for row in graph.rows]
    levels = max(residency.levels, prices.hbm_bytes.shape[1])
    saved = prices.saved_bytes * graph.must_write[:, np.newaxis]

    def joined(whole: Numbers, of_tiles: Numbers) -> Numbers:
        return np.concatenate([_padded(whole, levels), _padded(of_tiles, levels)])

    return (
        joined(residency.working_bytes, prices.working_bytes),
        joined(residency.hbm_bytes, prices.hbm_bytes),
        joined(residency.other_s, prices.other_s),
        np.concatenate([residency.overhead_s, residency.overhead_s[rows]]),
        joined(residency.effective_saved_bytes, saved),
    )


def _padded(values: Numbers, levels: int) -> Numbers:
    """Repeat level 0 until there are so many levels."""
    missing: int = levels - int(values.shape[1])
    if missing == 0:
        return values
    return np.concatenate([values, *[values[:, :1]] * missing], axis=1)
