"""The part of a problem file that is about residency: read into a joint problem, and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_TENSOR_BYTES, check_size
from phaze_opt.scheduling.problem_rows import OperatorRow, ProblemRow, TensorRow
from phaze_opt.scheduling.residency import PassTensor, Residency, TensorGraph, spread_savings
from phaze_opt.scheduling.schedule_problem import Schedule, ScheduleOperator, ScheduleProblem

_ROUNDING = 1e-9
"""Relative difference of times that counts as none."""


def add_residency(problem: ScheduleProblem, row: ProblemRow) -> ScheduleProblem:
    """Add the joint problem that a row states, and the precedences that its tensors imply.

    Raises
    ------
    InputError
        If a number is missing, or a tensor names an operator that does not exist.
    """
    if row.glb_bytes is None or row.hbm_bytes_per_s is None:
        raise InputError("A problem with tensors needs glb_bytes and hbm_bytes_per_s.")
    if not row.hbm_bytes_per_s > 0.0:
        raise InputError(f"hbm_bytes_per_s is {row.hbm_bytes_per_s}, but it must be above 0.")
    place = {operator.id: index for index, operator in enumerate(row.operators)}
    tensors = tuple(_to_tensor(tensor, place) for tensor in row.tensors)
    made = [(tensor.producer, tensor.readers) for tensor in tensors if tensor.producer is not None]
    implied = {(producer, reader) for producer, readers in made for reader in readers}
    edges = (*problem.edges, *sorted(implied - set(problem.edges)))
    graph = TensorGraph(len(row.operators), edges, tensors)
    operators = tuple(
        _at_least(operator, stated.hbm_bytes / row.hbm_bytes_per_s)
        for operator, stated in zip(problem.operators, row.operators, strict=True)
    )
    count = 1 + max([len(operator.levels) for operator in row.operators], default=0)
    rate = row.hbm_bytes_per_s
    levels = [
        _levels(stated, latency, rate, count)
        for stated, latency in zip(row.operators, operators, strict=True)
    ]
    numbers = np.array(levels, dtype=np.float64).reshape(len(levels), count, 3)
    hbm_bytes = np.ascontiguousarray(numbers[:, :, 1])
    residency = Residency(
        graph=graph,
        glb_bytes=row.glb_bytes,
        hbm_bytes_per_s=rate,
        working_bytes=numbers[:, :, 0].astype(np.int64),
        hbm_bytes=hbm_bytes,
        other_s=np.ascontiguousarray(numbers[:, :, 2]),
        overhead_s=np.array([stated.overhead_s for stated in row.operators]),
        saved_bytes=_saved_bytes(row, graph, hbm_bytes),
    )
    if row.through or row.held:
        from phaze_opt.scheduling.tile_file import read_tiling

        residency = replace(residency, tiling=read_tiling(row, residency))
    return replace(problem, operators=operators, edges=edges, residency=residency)


def _to_tensor(row: TensorRow, place: dict[str, int]) -> PassTensor:
    """Turn operator ids into indices."""
    named = row.readers if row.producer is None else (row.producer, *row.readers)
    for name in named:
        if name not in place:
            raise InputError(f"A tensor names the operator {name!r}, but none has this id.")
    check_size("bytes of a tensor", row.bytes, MOST_TENSOR_BYTES, 0)
    producer = None if row.producer is None else place[row.producer]
    return PassTensor(row.bytes, producer, tuple(place[id_] for id_ in row.readers), row.outlives)


def _at_least(operator: ScheduleOperator, hbm_s: float) -> ScheduleOperator:
    """Raise the latencies of an operator to the time of its HBM bytes."""
    return replace(
        operator,
        latency_s=max(operator.latency_s, hbm_s),
        intra_op_latency_s=max(operator.intra_op_latency_s, hbm_s),
    )


def _levels(
    row: OperatorRow, operator: ScheduleOperator, rate: float, count: int
) -> list[tuple[float, float, float]]:
    """List working bytes, HBM bytes and other time of every level; the last one is repeated."""
    other_s = row.other_s
    if other_s is None:
        latency_s = operator.latency_s if row.core == "none" else operator.intra_op_latency_s
        busy_s = latency_s - row.overhead_s
        other_s = busy_s if busy_s > row.hbm_bytes / rate * (1.0 + _ROUNDING) else 0.0
    levels = [(float(row.working_bytes), row.hbm_bytes, other_s)]
    levels += [(float(level.working_bytes), level.hbm_bytes, level.other_s) for level in row.levels]
    return [*levels, *[levels[-1]] * (count - len(levels))]


def _saved_bytes(row: ProblemRow, graph: TensorGraph, hbm_bytes: FloatArray) -> FloatArray:
    """Give what every access saves at every level, stated or not."""
    saved = np.zeros((len(graph.accesses), hbm_bytes.shape[1]))
    stated = np.zeros(len(saved), dtype=np.bool_)
    for tensor, first in zip(row.tensors, graph.first_access.tolist(), strict=False):
        accesses = len(tensor.readers) + (tensor.producer is not None)
        saved[first : first + accesses] = tensor.bytes
        if tensor.saved_bytes is None:
            continue
        if len(tensor.saved_bytes) != accesses:
            raise InputError(
                f"saved_bytes of a tensor has {len(tensor.saved_bytes)} lists, "
                f"but {accesses} operators make or read it."
            )
        for number, own in enumerate(tensor.saved_bytes, start=first):
            levels = 1 + len(row.operators[int(graph.access_operator[number])].levels)
            if len(own) != levels:
                raise InputError(
                    f"saved_bytes of a tensor has {len(own)} numbers for an operator "
                    f"with {levels} levels."
                )
            saved[number] = [*own, *[own[-1]] * (saved.shape[1] - levels)]
            stated[number] = True
    spread_savings(saved, stated, graph.access_operator, hbm_bytes)
    return saved


def residency_rows(problem: ScheduleProblem, residency: Residency) -> dict[str, object]:
    """Write a problem with residency as the keys of a file; reading them gives an equal problem."""
    ids = [operator.id for operator in problem.operators]
    operators = [
        {
            **asdict(operator),
            "overhead_s": float(residency.overhead_s[i]),
            **_level_row(residency, i, 0),
            "levels": [_level_row(residency, i, level) for level in range(1, residency.levels)],
        }
        for i, operator in enumerate(problem.operators)
    ]
    first = residency.graph.first_access.tolist()
    tensors = [
        {
            "from": None if tensor.producer is None else ids[tensor.producer],
            "to": [ids[reader] for reader in tensor.readers],
            "bytes": tensor.bytes,
            "outlives": tensor.outlives,
            "saved_bytes": residency.saved_bytes[first[i] : first[i + 1]].tolist(),
        }
        for i, tensor in enumerate(residency.graph.tensors)
    ]
    keys: dict[str, object] = {}
    if residency.tiling is not None:
        from phaze_opt.scheduling.tile_file import tile_rows

        tiles, keys = tile_rows(residency.tiling, ids)
        operators = [{**row, "tiles": own} for row, own in zip(operators, tiles, strict=True)]
    return {
        "glb_bytes": residency.glb_bytes,
        "hbm_bytes_per_s": residency.hbm_bytes_per_s,
        "operators": operators,
        "tensors": tensors,
        **keys,
    }


def _level_row(residency: Residency, operator: int, level: int) -> dict[str, float]:
    """Write one level of an operator."""
    return {
        "working_bytes": int(residency.working_bytes[operator, level]),
        "hbm_bytes": float(residency.hbm_bytes[operator, level]),
        "other_s": float(residency.other_s[operator, level]),
    }


def resident_rows(problem: ScheduleProblem, schedule: Schedule) -> list[dict[str, object]]:
    """List what a schedule keeps on the chip, from when to when."""
    if schedule.residency is None or problem.residency is None:
        return []
    ids = [operator.id for operator in problem.operators]
    rows: list[dict[str, object]] = []
    for stay in schedule.residency.tensors:
        tensor = problem.residency.graph.tensors[stay.tensor]
        rows.append(
            {
                "from": None if tensor.producer is None else ids[tensor.producer],
                "to": [ids[reader] for reader in tensor.readers],
                "bytes": tensor.bytes,
                "start_s": stay.start_s,
                "end_s": stay.end_s,
            }
        )
    return rows


def flow_bytes(residency: Residency, schedule: Schedule) -> Sequence[float]:
    """Give the HBM bytes of every operator; without residency, those of its first level."""
    if schedule.residency is None:
        first: list[float] = residency.hbm_bytes[:, 0].tolist()
        return first
    return schedule.residency.hbm_bytes
