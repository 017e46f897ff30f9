"""The best plan with groups of operators that run tile by tile, and its bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.scheduling.residency import EvaluatedSteps, Residency, ResidencyPlan
from phaze_opt.scheduling.schedule_problem import TiledGroup
from phaze_opt.scheduling.tile_kernel import RowPrices, search_lattice
from phaze_opt.scheduling.tile_lattice import TileLattice
from phaze_opt.scheduling.tiles import TilePrices, Tiling

Numbers = TypeVar("Numbers", FloatArray, IntArray)


class Step(NamedTuple):
    """What runs before the next step begins: one whole operator, or a group.

    Attributes
    ----------
    operators
        In the order in which they take turns.
    tiles
        Of each; 1 for a whole operator.
    passed, held
        Tensors that are passed by tiles, and numbers of inputs that are held.
    """

    operators: tuple[int, ...]
    tiles: int
    passed: tuple[int, ...] = ()
    held: tuple[int, ...] = ()


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
    found_s, _, arcs, masks = search_lattice(
        lattice.arrays,
        _row_prices(residency, tiling),
        residency.glb_bytes,
        residency.hbm_bytes_per_s,
        tiling.least_s,
        *known,
    )
    if found_s == math.inf:
        return None
    steps, resident = [], set()
    for arc, mask in zip(reversed(arcs.tolist()), reversed(masks.tolist()), strict=True):
        own, bits = lattice.arcs[arc], lattice.bits[arc]
        choices = (*bits.crossing, *bits.starting, *bits.passed, *bits.held)
        chosen = [mask >> bit & 1 for bit in range(len(choices))]
        first = len(bits.crossing) + len(bits.starting)
        ends = [first, first + len(bits.passed), len(choices)]
        parts = [
            tuple([choices[i] for i in range(begin, end) if chosen[i]])
            for begin, end in zip([0, *ends], ends, strict=False)
        ]
        resident |= set(parts[0])
        steps.append(Step(own.operators, own.tiles, parts[1], parts[2]))
    return evaluate_steps(residency, tiling, steps, frozenset(resident))


def evaluate_steps(
    residency: Residency, tiling: Tiling, steps: Sequence[Step], resident: frozenset[int]
) -> EvaluatedSteps:
    """Run steps one after another, each operator at its best level that fits.

    The steps must keep the precedences and the size of the global buffer, which nothing checks but
    that some level fits.
    """
    graph = residency.graph
    count = graph.operators
    start_s, end_s, flow, level_of = [0.0] * count, [0.0] * count, [0.0] * count, [0] * count
    step_of = {one: at for at, step in enumerate(steps) for one in step.operators}
    rate, now_s, groups = residency.hbm_bytes_per_s, 0.0, []
    for at, step in enumerate(steps):
        began_s = now_s
        free = residency.glb_bytes - _room(tiling, steps, at, resident, step_of)
        for one in step.operators:
            working, moved, other_s = _levels(residency, tiling, one, step.tiles)
            moved = moved - _saved(residency, tiling, one, step, resident, step_of)
            moved = np.maximum(moved, 0.0)
            seconds = np.maximum(other_s, moved / rate) + residency.overhead_s[one]
            fitting = [level for level in range(len(seconds)) if working[level] <= free]
            level = min(fitting, key=lambda level: (seconds[level], moved[level]))
            start_s[one], now_s = now_s, now_s + float(seconds[level])
            end_s[one], flow[one], level_of[one] = now_s, float(moved[level]), level
        if step.tiles > 1:
            alone_bytes = float(residency.hbm_bytes[list(step.operators), 0].sum())
            saved_bytes = alone_bytes - sum(flow[one] for one in step.operators)
            held = tuple([tiling.graph.held[number] for number in step.held])
            group = step.operators, step.tiles, step.passed, held
            groups.append(TiledGroup(*group, began_s, now_s, saved_bytes))
    order = tuple([one for step in steps for one in step.operators])
    chosen = tuple([i in resident for i in range(len(graph.tensors))])
    return EvaluatedSteps(
        ResidencyPlan(order, tuple(level_of), chosen),
        tuple(start_s),
        tuple(end_s),
        tuple(flow),
        now_s,
        tuple(groups),
    )


def _room(
    tiling: Tiling,
    steps: Sequence[Step],
    at: int,
    resident: frozenset[int],
    step_of: dict[int, int],
) -> int:
    """Return the bytes of all that is kept in the buffer while a step runs."""
    graph, step = tiling.graph, steps[at]
    room = sum(graph.tile_bytes(i, step.tiles) for i in step.passed)
    room += sum(graph.held[number].bytes for number in step.held)
    for i in resident:
        places = [step_of[one] for one in graph.graph.tensors[i].accesses]
        if min(places) <= at <= max(places):
            room += graph.graph.tensors[i].bytes
    return room


def _levels(
    residency: Residency, tiling: Tiling, operator: int, tiles: int
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return working bytes, HBM bytes with nothing kept, and other seconds of every level."""
    prices: Residency | TilePrices = residency
    row = operator
    if tiles > 1:
        prices, row = tiling.prices, tiling.graph.row_of[operator, tiles]
    return prices.working_bytes[row], prices.hbm_bytes[row], prices.other_s[row]


def _saved(
    residency: Residency,
    tiling: Tiling,
    operator: int,
    step: Step,
    resident: frozenset[int],
    step_of: dict[int, int],
) -> FloatArray:
    """Return the HBM bytes that an operator saves by all that is kept, at every level."""
    graph, tiles = residency.graph, tiling.graph
    row = tiles.row_of.get((operator, step.tiles), -1)
    saved = np.zeros(len(_levels(residency, tiling, operator, step.tiles)[0]))
    for i, tensor in enumerate(graph.tensors):
        if operator not in tensor.accesses or not (i in resident or i in step.passed):
            continue
        if operator == tensor.producer:
            others = i not in resident and not set(tensor.readers) <= set(step.operators)
            if tensor.outlives or others:
                continue
        if step.tiles > 1:
            saved = saved + tiling.prices.saved_bytes[tiles.access_of[row, i]]
        else:
            number = int(graph.first_access[i]) + tensor.accesses.index(operator)
            saved = saved + residency.saved_bytes[number]
        if tensor.producer is None:
            first = min(tensor.accesses, key=lambda one: (step_of[one], tiles.position[one]))
            saved = saved - tensor.bytes * (operator == first)
    for number in step.held:
        if tiles.held[number].operator == operator:
            access = tiles.access_of[row, len(graph.tensors) + number]
            saved = saved + tiling.prices.saved_bytes[access] - tiles.held[number].bytes
    return saved


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
    more = levels - values.shape[1]
    return values if more == 0 else np.concatenate([values, *[values[:, :1]] * more], axis=1)
