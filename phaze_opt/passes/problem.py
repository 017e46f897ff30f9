"""What the scheduler takes of one pass of a layer: its operators as cores run them, and bounds.

The bounds are those of `phaze_opt.passes.least_seconds` for one chip, from estimates that it has.
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
    PassShapes,
    least_joint_makespan,
    least_makespan,
)
from phaze_opt.scheduling.problem_columns import PrecedenceGraph, ProblemColumns, precedence_graph
from phaze_opt.scheduling.residency import Residency
from phaze_opt.scheduling.schedule_problem import (
    CORE_TYPES,
    CoreType,
    ScheduleOperator,
    ScheduleProblem,
)
from phaze_opt.workload.graph import Operator, OperatorGraph


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


def columns_of(
    graph: OperatorGraph, values: FloatArray, accelerator: Accelerator
) -> ProblemColumns:
    """Join the operators of a graph with their numbers and the cores of the chip."""
    ids, core, precedence = _operators(graph)
    return ProblemColumns(
        ids=ids,
        core=core,
        values=values,
        graph=precedence,
        num_tc=accelerator.num_tc,
        num_vc=accelerator.num_vc,
        intra_operator="exclusive",
        serial=not accelerator.concurrent_operators,
        elastic=accelerator.concurrent_operators,
    )


def operator_values(estimate: GraphEstimate) -> FloatArray:
    """Return the numbers that the scheduler takes of operators.

    The share of a bandwidth is its busy time over the operator's latency: an operator that
    saturates takes all of it.

    Parameters
    ----------
    estimate
        Of a graph on one chip, or on many.

    Returns
    -------
    values : (operators, 7) or (chips, operators, 7)
        See `phaze_opt.scheduling.problem_columns.ProblemColumns`.
    """
    one_core, every = estimate.one_core, estimate.all_cores
    shares = bandwidth_shares([one_core.hbm_s, one_core.glb_s, one_core.link_s], one_core)
    intra_shares = bandwidth_shares([every.hbm_s, every.glb_s], every)
    return np.stack([one_core.latency_s, every.latency_s, *shares, *intra_shares], axis=-1)


def build_problem(name: str, graph: OperatorGraph, columns: ProblemColumns) -> ScheduleProblem:
    """Write the columns of a graph as a problem with a name."""
    operators = zip(columns.ids, core_types(graph), columns.values.tolist(), strict=True)
    return ScheduleProblem(
        name=name,
        num_tc=columns.num_tc,
        num_vc=columns.num_vc,
        operators=tuple(
            [ScheduleOperator(operator, core, *row) for operator, core, row in operators]
        ),
        edges=precedences(graph),
        intra_operator=columns.intra_operator,
        serial=columns.serial,
        elastic=columns.elastic,
    )


def bandwidth_shares(busy_s: Sequence[FloatArray], mode: ModeSeconds) -> FloatArray:
    """Busy time of some resources over latency."""
    latency_s = np.where(mode.latency_s > 0.0, mode.latency_s, 1.0)
    return np.asarray(np.minimum(np.array(busy_s) / latency_s, 1.0))


@lru_cache(maxsize=1024)
def pass_shapes(graphs: tuple[OperatorGraph, ...]) -> PassShapes:
    """Return what the bound of the makespan takes of passes, whatever the chip."""
    return PassShapes(tuple(map(core_types, graphs)), tuple(map(precedences, graphs)))


def least_of_passes(
    graphs: tuple[OperatorGraph, ...], values: FloatArray, cores: FloatArray
) -> FloatArray:
    """Bound the makespans of some passes on some chips: (chips, passes).

    Parameters
    ----------
    values : (chips, operators, 7)
        Of all passes, see `operator_values`.
    cores : (chips, 2)
        Tensor cores and vector cores.
    """
    one_core_s, all_cores_s, hbm, glb, link = np.moveaxis(values, 2, 0)[:5]
    operators = OperatorColumns(
        one_core_s,
        all_cores_s,
        hbm_fraction=hbm,
        glb_fraction=glb,
        link_fraction=link,
        num_tc=cores[:, 0],
        num_vc=cores[:, 1],
    )
    return least_makespan(pass_shapes(graphs), operators)


def least_of_residency(joint: Residency) -> float:
    """Bound the makespan of every schedule of the joint problem from below, up to rounding."""
    if joint.tiling is not None:
        return float(joint.tiling.least_s.sum())
    saved = np.zeros_like(joint.hbm_bytes)
    np.add.at(saved, joint.graph.access_operator, joint.effective_saved_bytes)
    left_bytes = np.maximum(joint.hbm_bytes - saved, 0.0).min(axis=1)
    least_hbm_s = (left_bytes / joint.hbm_bytes_per_s)[np.newaxis]
    other_s, overhead_s = joint.other_s.min(axis=1)[np.newaxis], joint.overhead_s[np.newaxis]
    return float(least_joint_makespan(other_s, least_hbm_s, overhead_s)[0])
