"""Schedules with residency: the fast method, CP-SAT where it leaves a gap, and the choice."""

from __future__ import annotations

import hashlib
import math
import struct
import time
from collections.abc import MutableMapping
from dataclasses import replace

import numpy as np

from phaze_opt.choices import SolveMethod
from phaze_opt.scheduling.residency import EvaluatedPlan, EvaluatedSteps, Residency, spans_s
from phaze_opt.scheduling.residency_search import search_frames
from phaze_opt.scheduling.schedule_problem import (
    ResidencySchedule,
    ResidentTensor,
    Schedule,
    ScheduledOperator,
    ScheduleMethod,
    ScheduleProblem,
    with_bound,
)

JOINT_VERSION = 2
"""Part of every key in a cache. Raise it when the joint problem gets another schedule."""

_ROUNDING = 1e-6
"""Relative distance from its bound at which a makespan counts as optimal: CP-SAT has integers."""


def solve_jointly(
    problem: ScheduleProblem,
    residency: Residency,
    without: Schedule,
    method: SolveMethod,
    effort: int,
    cache: MutableMapping[str, Schedule] | None,
) -> Schedule:
    """Give the shorter of a schedule without residency and one with it, and a bound on both kinds.

    Parameters
    ----------
    problem, residency
        The problem, valid, and its part on residency.
    without
        A schedule without residency.
    method, effort, cache
        As for `solve_schedule`. Only what CP-SAT found is worth a place in the cache.
    """
    began = time.perf_counter()
    key = _key(residency, effort) if method != "branch-and-bound" else ""
    joint = cache.get(key) if cache is not None and key else None
    if joint is None or len(joint.operators) != len(problem.operators):
        joint = _solve(problem, residency, without.makespan_s, method, effort)
        if cache is not None and joint is not None and joint.method == "cp-sat":
            cache[key] = joint
    tiled_s = math.inf
    if residency.tiling is not None:
        joint, tiled_s = _with_tiles(problem, residency, joint, without.makespan_s, method)
    solve_s = without.solve_s + time.perf_counter() - began
    if joint is None:
        return with_bound(replace(without, solve_s=solve_s), tiled_s)
    own = zip(problem.operators, joint.operators, strict=True)
    joint = replace(
        joint,
        operators=tuple(
            [
                replace(entry, id=operator.id, intra_operator=operator.core != "none")
                for operator, entry in own
            ]
        ),
    )
    chosen = joint if _is_better(joint, without, residency) else without
    bound_s = min(joint.bound_s, without.bound_s, chosen.makespan_s)
    proven = bound_s >= chosen.makespan_s * (1.0 - 1e-9)
    return replace(
        chosen,
        status="optimal" if proven else "feasible",
        bound_s=chosen.makespan_s if proven else bound_s,
        solve_s=solve_s,
    )


def _is_better(joint: Schedule, without: Schedule, residency: Residency) -> bool:
    """Whether the joint schedule is shorter, or as short with fewer bytes from and to HBM."""
    if joint.makespan_s != without.makespan_s:
        return joint.makespan_s < without.makespan_s
    assert joint.residency is not None
    return sum(joint.residency.hbm_bytes) < float(residency.hbm_bytes[:, 0].sum())


def _solve(
    problem: ScheduleProblem,
    residency: Residency,
    enough_s: float,
    method: SolveMethod,
    effort: int,
) -> Schedule | None:
    """Solve the joint problem, or return None if the working bytes of an operator never fit.

    CP-SAT is not asked where every joint schedule takes longer than ``enough_s``.
    """
    fast = search_frames(residency)
    if fast.best is None:
        return None
    best, bound_s = fast.best, fast.bound_s
    used: ScheduleMethod = "dynamic-program"
    if method != "branch-and-bound" and not _is_proven(best, bound_s) and bound_s < enough_s:
        from phaze_opt.scheduling.cp_sat_positions import check_proof
        from phaze_opt.scheduling.cp_sat_residency import improve_jointly

        best, claim_s = improve_jointly(residency, best, effort)
        limit_s = min(best.makespan_s * (1.0 - _ROUNDING), enough_s)
        if bound_s < limit_s <= claim_s:
            best, claim_s = check_proof(residency, best, claim_s, limit_s, effort)
        bound_s, used = max(bound_s, claim_s), "cp-sat"
    if _is_proven(best, bound_s):
        bound_s = best.makespan_s
    return _to_schedule(problem, residency, best, min(bound_s, best.makespan_s), used)


def _with_tiles(
    problem: ScheduleProblem,
    residency: Residency,
    joint: Schedule | None,
    enough_s: float,
    method: SolveMethod,
) -> tuple[Schedule | None, float]:
    """Give the best schedule with groups that run tile by tile, or the one without if it is better.

    Beside it stands a lower bound on every schedule with groups.

    Parameters
    ----------
    joint
        The schedule without tiles; ``None`` if the working bytes of an operator never fit.
    enough_s
        As for `_solve`.
    """
    from phaze_opt.scheduling.tile_search import search_tiles

    tiling = residency.tiling
    assert tiling is not None
    known = math.inf, math.inf
    if joint is not None and joint.residency is not None:
        known = joint.makespan_s, sum(joint.residency.hbm_bytes)
    if enough_s < known[0]:
        known = enough_s, math.inf
    bound_s = min(float(tiling.least_s.sum()), known[0])
    best, proven = None, bound_s >= known[0] * (1.0 - _ROUNDING)
    if not proven and tiling.graph.fast_lattice.has_groups:
        best = search_tiles(residency, tiling, tiling.graph.fast_lattice, known)
        known = known if best is None else best.rank
        proven = bound_s >= known[0] * (1.0 - _ROUNDING)
    if not proven and method != "branch-and-bound" and tiling.graph.whole_lattice is not None:
        found = search_tiles(residency, tiling, tiling.graph.whole_lattice, known)
        best, proven = best if found is None else found, True
        known = known if found is None else found.rank
    bound_s = known[0] if proven else bound_s
    if best is not None:
        return _to_schedule(problem, residency, best, bound_s, "dynamic-program"), bound_s
    if joint is not None:
        joint = replace(joint, bound_s=min(bound_s, joint.makespan_s))
    return joint, bound_s


def _is_proven(best: EvaluatedPlan, bound_s: float) -> bool:
    """Whether no plan is shorter, but for rounding."""
    return bound_s >= best.makespan_s * (1.0 - _ROUNDING)


def _to_schedule(
    problem: ScheduleProblem,
    residency: Residency,
    best: EvaluatedPlan,
    bound_s: float,
    method: ScheduleMethod,
) -> Schedule:
    """Write a plan as a schedule."""
    entries = zip(problem.operators, best.start_s, best.end_s, strict=True)
    groups = best.groups if isinstance(best, EvaluatedSteps) else ()
    return Schedule(
        operators=tuple(
            [
                ScheduledOperator(str(i), start_s, end_s, operator.core != "none")
                for i, (operator, start_s, end_s) in enumerate(entries)
            ]
        ),
        makespan_s=best.makespan_s,
        status="optimal" if math.isclose(bound_s, best.makespan_s, rel_tol=1e-9) else "feasible",
        bound_s=bound_s,
        method=method,
        solve_s=0.0,
        residency=ResidencySchedule(
            best.plan.levels,
            best.hbm_bytes,
            tuple([ResidentTensor(*span) for span in spans_s(residency.graph, best)]),
            groups,
        ),
    )


def _key(residency: Residency, effort: int) -> str:
    """Hash the joint problem as it is written, with the settings of the solver."""
    graph = residency.graph
    head = (JOINT_VERSION, effort, residency.glb_bytes, graph.operators, residency.levels)
    digest = hashlib.blake2b(struct.pack("<5q", *head), digest_size=20)
    digest.update(repr((residency.hbm_bytes_per_s, sorted(set(graph.edges)))).encode())
    digest.update(repr(graph.tensors).encode())
    for values in (
        residency.working_bytes,
        residency.hbm_bytes,
        residency.other_s,
        residency.overhead_s,
        residency.saved_bytes,
    ):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
