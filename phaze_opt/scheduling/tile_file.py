"""The part of a problem file that is about tiles: read into a joint problem, and written."""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_TENSOR_BYTES, check_size
from phaze_opt.scheduling.problem_rows import ProblemRow, TileRow
from phaze_opt.scheduling.residency import LARGEST_BYTES, Residency, spread_savings
from phaze_opt.scheduling.schedule_problem import HeldInput, Schedule, ScheduleProblem
from phaze_opt.scheduling.tile_search import least_of_prices
from phaze_opt.scheduling.tiles import TileGraph, TilePrices, Tiling

_MOST_COUNT = 2**20


def read_tiling(row: ProblemRow, residency: Residency) -> Tiling | None:
    """Return what of a problem may run tile by tile; ``None`` where nothing is handed on so.

    Raises
    ------
    InputError
        If a name is unknown, a precedence is none, or a number is outside its range.
    """
    if not row.through:
        return None
    place = {operator.id: index for index, operator in enumerate(row.operators)}
    for name in (*(end for pair in row.through for end in pair), *(h.operator for h in row.held)):
        if name not in place:
            raise InputError(f"Tiles name the operator {name!r}, but none has this id.")
    through = frozenset((place[before], place[after]) for before, after in row.through)
    for before, after in sorted(through - set(residency.graph.edges)):
        pair = [row.operators[before].id, row.operators[after].id]
        raise InputError(f"through has {pair}, but there is no edge between them.")
    held = []
    for one in row.held:
        moved = one.bytes if one.moved_bytes is None else one.moved_bytes
        check_size("bytes of a held input", one.bytes, MOST_TENSOR_BYTES, 0)
        check_size("moved_bytes of a held input", moved, one.bytes, 0)
        held.append(HeldInput(place[one.operator], one.bytes, moved))
    graph = TileGraph(
        residency.graph,
        tuple([_counts(operator.id, operator.tiles) for operator in row.operators]),
        through,
        tuple(held),
    )
    prices = _prices(row, graph)
    return Tiling(graph, least_of_prices(residency, graph, prices), lambda: prices)


def _counts(name: str, tiles: tuple[TileRow, ...]) -> tuple[int, ...]:
    """Return into how many tiles an operator may be cut."""
    counts = tuple([one.count for one in tiles])
    for count in counts:
        check_size(f"count of the tiles of operator {name!r}", count, _MOST_COUNT, 2)
    if len(set(counts)) < len(counts) or not all(one.levels for one in tiles):
        raise InputError(
            f"Tiles of operator {name!r} must have each count once, and at least one level each."
        )
    return counts


def _prices(row: ProblemRow, graph: TileGraph) -> TilePrices:
    """Return the numbers of all tile operators; the last level of each is repeated."""
    stated = [(operator.id, one) for operator in row.operators for one in operator.tiles]
    most = max([len(one.levels) for _, one in stated], default=1)
    levels = [[*one.levels, *[one.levels[-1]] * (most - len(one.levels))] for _, one in stated]
    numbers = np.array(
        [[(each.working_bytes, each.hbm_bytes, each.other_s) for each in own] for own in levels],
        dtype=np.float64,
    ).reshape(len(stated), most, 3)
    hbm_bytes = np.ascontiguousarray(numbers[:, :, 1])
    saved = _saved_bytes(stated, graph, hbm_bytes)
    total = np.zeros_like(hbm_bytes)
    np.add.at(total, graph.access_row, saved)
    for number, (name, _) in enumerate(stated):
        own = np.concatenate([numbers[number].ravel(), saved[graph.access_row == number].ravel()])
        if not (np.isfinite(own) & (own >= 0.0) & (own <= LARGEST_BYTES)).all():
            raise InputError(f"Tiles of operator {name!r} have a number that is no size or time.")
        if (total[number] > hbm_bytes[number] * (1.0 + 1e-9)).any():
            raise InputError(f"Tiles of operator {name!r} save more bytes than they move.")
    return TilePrices(
        numbers[:, :, 0].astype(np.int64),
        hbm_bytes,
        np.ascontiguousarray(numbers[:, :, 2]),
        saved,
    )


def _saved_bytes(
    stated: list[tuple[str, TileRow]], graph: TileGraph, hbm_bytes: FloatArray
) -> FloatArray:
    """Give what every access of tile operators saves at every level, stated or not."""
    tensors, levels = graph.graph.tensors, hbm_bytes.shape[1]
    saved = np.zeros((len(graph.accesses), levels))
    known = np.zeros(len(saved), dtype=np.bool_)
    for number, (name, one) in enumerate(stated):
        accesses = np.flatnonzero(graph.access_row == number).tolist()
        for access in accesses:
            i = graph.accesses[access][1] - len(tensors)
            saved[access] = tensors[i].bytes if i < 0 else graph.held[i].bytes * one.count
        if one.saved_bytes is None:
            continue
        if [len(own) for own in one.saved_bytes] != [len(one.levels)] * len(accesses):
            raise InputError(
                f"saved_bytes of tiles of operator {name!r} must have a list for each of its "
                f"{len(accesses)} tensors and held inputs, with {len(one.levels)} numbers."
            )
        for access, own in zip(accesses, one.saved_bytes, strict=True):
            saved[access] = [*own, *[own[-1]] * (levels - len(own))]
            known[access] = True
    spread_savings(saved, known, graph.access_row, hbm_bytes)
    return saved


def tile_rows(
    tiling: Tiling, ids: list[str]
) -> tuple[list[list[dict[str, object]]], dict[str, object]]:
    """Write what may run tile by tile: the tiles of every operator, and the keys of the problem."""
    graph, prices = tiling.graph, tiling.prices
    tiles: list[list[dict[str, object]]] = [[] for _ in ids]
    for number, row in enumerate(graph.rows):
        columns = prices.working_bytes[number], prices.hbm_bytes[number], prices.other_s[number]
        levels = [
            {"working_bytes": working_bytes, "hbm_bytes": hbm_bytes, "other_s": other_s}
            for working_bytes, hbm_bytes, other_s in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]
        saved = prices.saved_bytes[graph.access_row == number].tolist()
        tiles[row.operator].append({"count": row.tiles, "levels": levels, "saved_bytes": saved})
    return tiles, {
        "through": [[ids[before], ids[after]] for before, after in sorted(graph.through)],
        "held": [
            {"operator": ids[one.operator], "bytes": one.bytes, "moved_bytes": one.moved_bytes}
            for one in graph.held
        ],
    }


def group_rows(problem: ScheduleProblem, schedule: Schedule) -> list[dict[str, object]]:
    """List the groups of a schedule that run tile by tile."""
    if problem.residency is None or schedule.residency is None or not schedule.residency.groups:
        return []
    assert problem.residency.tiling is not None
    graph, ids = problem.residency.tiling.graph, [operator.id for operator in problem.operators]
    rows: list[dict[str, object]] = []
    for group in schedule.residency.groups:
        passed: list[dict[str, object]] = []
        for i in group.passed:
            tensor = graph.graph.tensors[i]
            assert tensor.producer is not None
            passed.append(
                {
                    "from": ids[tensor.producer],
                    "to": [ids[one] for one in tensor.readers if one in group.operators],
                    "bytes": tensor.bytes,
                    "buffered_bytes": graph.tile_bytes(i, group.tiles),
                }
            )
        rows.append(
            {
                "operators": [ids[one] for one in group.operators],
                "tiles": group.tiles,
                "passed": passed,
                "held": [{"operator": ids[one.operator], "bytes": one.bytes} for one in group.held],
                "start_s": group.start_s,
                "end_s": group.end_s,
                "hbm_saved_bytes": group.saved_bytes,
            }
        )
    return rows
