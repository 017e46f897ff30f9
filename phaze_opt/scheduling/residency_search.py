"""The fast method for the joint problem: the best plan over the frames of a pass.

Every frame is searched exactly (`residency_kernel`), so the method is never slower than without
residency in its first order, and never slower with more global buffer (`residency_frames`). It
proves its plan where that meets `least_makespan_s`, or where the precedences allow one order only
and every tensor was a candidate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.scheduling.residency import (
    EvaluatedPlan,
    Residency,
    ResidencyPlan,
    TensorGraph,
    evaluate_plan,
)
from phaze_opt.scheduling.residency_frames import Frame, frames_of_order
from phaze_opt.scheduling.residency_kernel import least_seconds, search_frame


@dataclass(frozen=True)
class FastResult:
    """What the fast method finds.

    Attributes
    ----------
    best
        The best plan, or None if the working bytes of an operator never fit.
    bound_s
        Lower bound on the makespan of every plan; infinity if there is none.
    """

    best: EvaluatedPlan | None
    bound_s: float


def search_frames(residency: Residency) -> FastResult:
    """Find a short plan with a lower bound, in well under a millisecond for most layers."""
    graph = residency.graph
    least_s = least_operator_s(residency)
    bound_s = float(least_s.sum())
    if not math.isfinite(bound_s):
        return FastResult(None, math.inf)
    frames = graph.frames
    best = _search(residency, frames, least_s, bound_s)
    if best is None:
        return FastResult(None, math.inf)
    exhaustive = len(frames) == 1 and frames[0].complete and _is_chain(graph, frames[0].order)
    bound_s = best.makespan_s if exhaustive else min(bound_s, best.makespan_s)
    return FastResult(best, bound_s)


def search_order(residency: Residency, order: tuple[int, ...]) -> EvaluatedPlan | None:
    """Find a short plan in one order: the best one, where the frame of all tensors is small."""
    frames = frames_of_order(residency.graph, np.array(order, dtype=np.int64))
    return _search(residency, frames, least_operator_s(residency), 0.0)


def least_operator_s(residency: Residency) -> FloatArray:
    """Give the least time of every operator: of its own tensors all that fit are resident.

    The sum is a lower bound on every makespan of the joint problem.
    """
    graph = residency.graph
    least_s = np.empty(graph.operators)
    least_seconds(
        residency.numbers,
        graph.nothing_once,
        *graph.accesses_by_operator,
        graph.access_tensor,
        graph.sole_load,
        residency.glb_bytes,
        residency.hbm_bytes_per_s,
        least_s,
    )
    return least_s


def _search(
    residency: Residency, frames: tuple[Frame, ...], least_s: FloatArray, bound_s: float
) -> EvaluatedPlan | None:
    """Search frames one after another, each only for what is better than those before."""
    graph, chip = residency.graph, residency.numbers
    level: IntArray = np.zeros(graph.operators, dtype=np.int64)
    resident = np.zeros(len(graph.tensors), dtype=np.bool_)
    best_s, best_bytes, best_order = math.inf, math.inf, None
    for frame in frames:
        found_s, flowed = search_frame(
            frame.arrays,
            chip,
            residency.glb_bytes,
            residency.hbm_bytes_per_s,
            least_s,
            best_s,
            best_bytes,
            frame.slots,
            level,
            resident,
        )
        if found_s < math.inf:
            best_s, best_bytes, best_order = found_s, flowed, frame.order
        if best_s <= bound_s:
            break
    if best_order is None:
        return None
    plan = ResidencyPlan(
        tuple(best_order.tolist()), tuple(level.tolist()), tuple(resident.tolist())
    )
    return evaluate_plan(residency, plan)


def _is_chain(graph: TensorGraph, order: IntArray) -> bool:
    """Whether the precedences allow one order only."""
    edges = set(graph.edges)
    operators = order.tolist()
    return all(pair in edges for pair in pairwise(operators))
