"""What the scheduler takes and gives: operators with times on identical cores, and their order.

The rules (Phaze, ICML 2024, section 4): every operator needs one core of its type, or runs
intra-operator parallel on all of them; then, under ``exclusive``, nothing else runs. HBM, global
buffer and network bandwidth are shared resources that concurrent operators may not overdraw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CoreType = Literal["TC", "VC", "TC+VC", "none"]
IntraOperatorRule = Literal["exclusive", "per-type"]
ScheduleStatus = Literal["optimal", "feasible"]
ScheduleMethod = Literal["bound", "list", "branch-and-bound"]


@dataclass(frozen=True)
class ScheduleOperator:
    """One operator with its two modes.

    Attributes
    ----------
    id
        Unique in the problem.
    core
        What it occupies: a tensor core, a vector core, one of each, or nothing (a collective, whose
        resource is the link; a view). An operator on no core has one mode, ``latency_s``.
    latency_s
        On one core of its type.
    intra_op_latency_s
        On all cores of its type.
    hbm_fraction, glb_fraction, link_fraction
        Share of each bandwidth, in [0, 1], taken while running on one core (the link's share is
        the same on all cores).
    intra_op_hbm_fraction, intra_op_glb_fraction
        The same while running on all cores.
    """

    id: str
    core: CoreType
    latency_s: float
    intra_op_latency_s: float
    hbm_fraction: float = 0.0
    glb_fraction: float = 0.0
    link_fraction: float = 0.0
    intra_op_hbm_fraction: float = 0.0
    intra_op_glb_fraction: float = 0.0


@dataclass(frozen=True)
class ScheduleProblem:
    """Operators, precedences, and the cores of one accelerator.

    Nothing is checked here, because thousands are built; `validate` does that.

    Attributes
    ----------
    edges
        ``(before, after)`` as indices into ``operators``.
    intra_operator
        What an operator on all cores of its type keeps from running beside it: every operator that
        takes time (``exclusive``), or only those that need a core of its type (``per-type``).
    serial
        One operator at a time, each on all cores of its type, as on a GPU's stream.
    """

    name: str
    num_tc: int
    num_vc: int
    operators: tuple[ScheduleOperator, ...]
    edges: tuple[tuple[int, int], ...]
    intra_operator: IntraOperatorRule = "exclusive"
    serial: bool = False


@dataclass(frozen=True)
class ScheduledOperator:
    """When and how one operator runs; ``intra_operator`` means on all cores of its type."""

    id: str
    start_s: float
    end_s: float
    intra_operator: bool


@dataclass(frozen=True)
class Schedule:
    """An order of the operators with its proof.

    Attributes
    ----------
    operators
        In the order of the problem.
    makespan_s
        Time from the first start to the last end.
    status
        ``"optimal"`` only where ``bound_s`` proves it.
    bound_s
        No schedule is shorter than this.
    method
        The strongest tool that a part of the problem needed: ``"bound"`` where every operator must
        follow another, ``"list"`` where a list schedule met a lower bound, else
        ``"branch-and-bound"``.
    solve_s
        Time the solver took, on the clock, without loading its compiled part.
    """

    operators: tuple[ScheduledOperator, ...]
    makespan_s: float
    status: ScheduleStatus
    bound_s: float
    method: ScheduleMethod
    solve_s: float

    @property
    def gap(self) -> float:
        """``(makespan − bound) / makespan``; 0 where proven."""
        if self.makespan_s <= 0.0:
            return 0.0
        return max(0.0, (self.makespan_s - self.bound_s) / self.makespan_s)
