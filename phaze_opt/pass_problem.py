"""What the scheduler takes of one pass of a layer: its operators as cores run them, and bounds.

The bounds are those of `phaze_opt.least_layers` for one chip, from the estimates that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.estimator.estimate import GraphEstimate, ModeSeconds
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.scheduling.least_makespan import (
    OperatorColumns,
    least_joint_makespan,
    least_makespan,
)
from phaze_opt.scheduling.problem_columns import PrecedenceGraph, ProblemColumns, precedence_graph
from phaze_opt.scheduling.residency import Residency
from phaze_opt.scheduling.schedule_problem import (
    CORE_TYPES,
    VALUES,
    CoreType,
    IntraOperatorRule,
    ScheduleOperator,
    ScheduleProblem,
)
from phaze_opt.workload.graph import Operator, OperatorGraph

BANDWIDTH_STEPS = 100
"""Shares of a bandwidth are rounded up to this many steps."""
_ROUNDING_SLACK = 1e-9


def core_type(operator: Operator) -> CoreType:
    """Return the cores that an operator occupies."""
    if operator.gemms:
        return "TC+VC" if operator.vector else "TC"
    return "VC" if operator.vector else "none"


@lru_cache(maxsize=1024)
def core_types(graph: OperatorGraph) -> tuple[CoreType, ...]:
    """Return the cores that every operator occupies."""
    return tuple(core_type(operator) for operator in graph.operators)


@lru_cache(maxsize=1024)
def precedences(graph: OperatorGraph) -> tuple[tuple[int, int], ...]:
    """Return the edges of a graph as pairs of operators."""
    return tuple((source, destination) for source, destination, _ in graph.edges)


@lru_cache(maxsize=1024)
def _operators(graph: OperatorGraph) -> tuple[tuple[str, ...], IntArray, PrecedenceGraph]:
    """Return names, places of the core types, and precedences of the operators of a graph."""
    places = [CORE_TYPES.index(core) for core in core_types(graph)]
    return (
        tuple([operator.id for operator in graph.operators]),
        np.array(places, dtype=np.int64),
        precedence_graph(len(places), precedences(graph)),
    )


def build_columns(
    graph: OperatorGraph,
    estimate: GraphEstimate,
    accelerator: Accelerator,
    intra_operator: IntraOperatorRule = "exclusive",
) -> ProblemColumns:
    """Join operators, their two modes and the cores of the chip.

    The share of a bandwidth is its busy time over the operator's latency, rounded up to a
    hundredth: an operator that saturates takes all of it. Shares are rigid while the operator runs,
    which is pessimistic, since a real operator would slow down and let others in.
    """
    one, every = estimate.one_core, estimate.all_cores
    ids, core, precedence = _operators(graph)
    values = np.empty((len(ids), len(VALUES)))
    values[:, 0], values[:, 1] = one.latency_s, every.latency_s
    values[:, 2:5] = bandwidth_shares([one.hbm_s, one.glb_s, one.link_s], one).T
    values[:, 5:] = bandwidth_shares([every.hbm_s, every.glb_s], every).T
    return ProblemColumns(
        ids=ids,
        core=core,
        values=values,
        graph=precedence,
        num_tc=accelerator.num_tc,
        num_vc=accelerator.num_vc,
        intra_operator=intra_operator,
        serial=not accelerator.concurrent_operators,
    )


def build_problem(name: str, graph: OperatorGraph, columns: ProblemColumns) -> ScheduleProblem:
    """Write the columns of a graph as a problem with a name."""
    operators = zip(columns.ids, core_types(graph), columns.values.tolist(), strict=True)
    return ScheduleProblem(
        name=name,
        num_tc=columns.num_tc,
        num_vc=columns.num_vc,
        operators=tuple([ScheduleOperator(one, core, *row) for one, core, row in operators]),
        edges=precedences(graph),
        intra_operator=columns.intra_operator,
        serial=columns.serial,
    )


def bandwidth_shares(busy_s: Sequence[FloatArray], mode: ModeSeconds) -> FloatArray:
    """Busy time of some resources over latency, rounded up to `BANDWIDTH_STEPS`."""
    latency_s = np.where(mode.latency_s > 0.0, mode.latency_s, 1.0)
    steps = np.ceil(np.array(busy_s) / latency_s * BANDWIDTH_STEPS - _ROUNDING_SLACK)
    return np.asarray(np.minimum(steps, BANDWIDTH_STEPS) / BANDWIDTH_STEPS)


def least_of_pass(graph: OperatorGraph, columns: ProblemColumns) -> float:
    """Bound the makespan of every schedule without residency from below, up to rounding."""
    one_core_s, all_cores_s, hbm, glb, link = columns.values.T[:5, np.newaxis]
    operators = OperatorColumns(
        one_core_s,
        all_cores_s,
        hbm_fraction=hbm,
        glb_fraction=glb,
        link_fraction=link,
        num_tc=np.array([float(columns.num_tc)]),
        num_vc=np.array([float(columns.num_vc)]),
    )
    return float(least_makespan(core_types(graph), precedences(graph), operators)[0])


def least_of_residency(joint: Residency) -> float:
    """Bound the makespan of every schedule of the joint problem from below, up to rounding."""
    saved = np.zeros_like(joint.hbm_bytes)
    np.add.at(saved, joint.graph.access_operator, joint.effective_saved_bytes)
    left_bytes = np.maximum(joint.hbm_bytes - saved, 0.0).min(axis=1)
    least_hbm_s = (left_bytes / joint.hbm_bytes_per_s)[np.newaxis]
    other_s, overhead_s = joint.other_s.min(axis=1)[np.newaxis], joint.overhead_s[np.newaxis]
    return float(least_joint_makespan(other_s, least_hbm_s, overhead_s)[0])
