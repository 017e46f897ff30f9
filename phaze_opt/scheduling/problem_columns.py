"""A problem without residency as arrays, as the scheduler's compiled code takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.choices import IntraOperatorRule
from phaze_opt.scheduling.schedule_problem import (
    CORE_TYPES,
    VALUES,
    ScheduleProblem,
    sorted_topologically,
)


@dataclass(frozen=True, eq=False)
class PrecedenceGraph:
    """Precedences as the scheduler's compiled code takes them.

    Attributes
    ----------
    edges : (precedences, 2)
        Sorted, without repetition.
    order : (operators,)
        A topological order.
    """

    edges: IntArray
    order: IntArray

    @classmethod
    def of(cls, edges: Sequence[tuple[int, int]], order: Sequence[int]) -> PrecedenceGraph:
        """Return the graph of some edges with a topological order."""
        pairs = np.array(sorted(set(edges)), dtype=np.int64).reshape(-1, 2)
        return cls(pairs, np.array(order, dtype=np.int64))


@lru_cache(maxsize=256)
def precedence_graph(count: int, edges: tuple[tuple[int, int], ...]) -> PrecedenceGraph:
    """Return the graph of edges among so many operators that form no cycle."""
    order, _, _ = sorted_topologically(count, edges)
    return PrecedenceGraph.of(edges, order)


@dataclass(frozen=True, eq=False)
class ProblemColumns:
    """A valid problem without residency, as arrays.

    Attributes
    ----------
    ids
        Of the operators.
    core : (operators,)
        Place in `CORE_TYPES`.
    values : (operators, 7)
        The numbers of a `ScheduleOperator`, in its order.
    graph
        The precedences.
    num_tc, num_vc, intra_operator, serial, elastic
        As in `ScheduleProblem`.
    """

    ids: tuple[str, ...]
    core: IntArray
    values: FloatArray
    graph: PrecedenceGraph
    num_tc: int
    num_vc: int
    intra_operator: IntraOperatorRule = "exclusive"
    serial: bool = False
    elastic: bool = False


def problem_columns(problem: ScheduleProblem, graph: PrecedenceGraph) -> ProblemColumns:
    """Write a valid problem as arrays."""
    values = [[getattr(operator, name) for name in VALUES] for operator in problem.operators]
    return ProblemColumns(
        ids=tuple([operator.id for operator in problem.operators]),
        core=np.array(
            [CORE_TYPES.index(operator.core) for operator in problem.operators], dtype=np.int64
        ),
        values=np.array(values, dtype=np.float64).reshape(-1, len(VALUES)),
        graph=graph,
        num_tc=problem.num_tc,
        num_vc=problem.num_vc,
        intra_operator=problem.intra_operator,
        serial=problem.serial,
        elastic=problem.elastic,
    )
