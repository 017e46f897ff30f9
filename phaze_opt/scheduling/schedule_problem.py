"""The problem that the scheduler takes, the schedule that it gives, and the check of a problem.

The rules (Phaze, ICML 2024, section 4): every operator occupies one core of its type, or runs
intra-operator parallel on all cores of its type; in the second mode, under ``exclusive``, no other
operator runs. HBM, global buffer and network bandwidth are shared resources: the shares that
concurrent operators take must not exceed 1. Shares are rigid, or elastic: then an operator that
gets less than it could take runs slower (`elastic`).

A problem may also say which tensors can stay on the chip (`residency`). Its schedules are those
without residency, and those of the joint problem, in which operators run one at a time on all cores
and what they take depends on the resident tensors.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from phaze_opt.choices import IntraOperatorRule, SolveMethod
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.limits import MOST_SIZE, check_size
from phaze_opt.on_demand import deferrable

if TYPE_CHECKING:
    from phaze_opt.scheduling.residency import PassTensor, Residency

CoreType = Literal["TC", "VC", "TC+VC", "none"]
ScheduleStatus = Literal["optimal", "feasible"]
ScheduleMethod = Literal["bound", "list", "branch-and-bound", "dynamic-program", "cp-sat"]

CORE_TYPES: tuple[CoreType, ...] = typing.get_args(CoreType)
INTRA_OPERATOR_RULES: tuple[IntraOperatorRule, ...] = typing.get_args(IntraOperatorRule)
SOLVE_METHODS: tuple[SolveMethod, ...] = typing.get_args(SolveMethod)

_LATENCIES = ("latency_s", "intra_op_latency_s")
_FRACTIONS = (
    "hbm_fraction",
    "glb_fraction",
    "link_fraction",
    "intra_op_hbm_fraction",
    "intra_op_glb_fraction",
)
VALUES = (*_LATENCIES, *_FRACTIONS)
"""The numbers of an operator, in the order of `ScheduleOperator`."""


@dataclass(frozen=True)
class ScheduleOperator:
    """One operator with its two modes.

    Attributes
    ----------
    id
        Name, unique in the problem.
    core
        Cores that the operator occupies: a tensor core, a vector core, one of each, or none (a
        collective, which occupies the link; a view). An operator on no core has one mode, with
        ``latency_s``.
    latency_s
        Duration on one core of its type.
    intra_op_latency_s
        Duration on all cores of its type.
    hbm_fraction, glb_fraction, link_fraction
        Share of each bandwidth, in [0, 1], that the operator takes while it runs on one core. The
        share of the link holds for both modes.
    intra_op_hbm_fraction, intra_op_glb_fraction
        Share of HBM and global buffer bandwidth that the operator takes on all cores.
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

    def bandwidth_shares(self, intra_operator: bool) -> tuple[float, float, float]:
        """Give the shares of HBM, global buffer and link bandwidth in one of the two modes."""
        if intra_operator:
            return self.intra_op_hbm_fraction, self.intra_op_glb_fraction, self.link_fraction
        return self.hbm_fraction, self.glb_fraction, self.link_fraction


@dataclass(frozen=True)
class CachedReads:
    """What a cache saves while the operators of a problem run one by one in their order.

    Nothing is chosen: the cache keeps what was touched last.

    Attributes
    ----------
    latency_s, hbm_bytes
        Of every operator, with the reads that the cache serves left out; never more than without.
    tensors
        Those that operators hand over or read several times.
    served
        ``(tensor, source, reader)`` of every read that the cache serves: the number of the tensor,
        the operator that touched it last, and the operator that reads it.
    """

    latency_s: tuple[float, ...]
    hbm_bytes: tuple[float, ...]
    tensors: tuple[PassTensor, ...]
    served: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class ScheduleProblem:
    """Operators, precedences, and the cores of one accelerator.

    The constructor checks nothing, because thousands are built; `check_problem` does.

    Attributes
    ----------
    edges
        Precedences ``(before, after)`` as indices into ``operators``.
    intra_operator
        Which operators may not run beside an operator on all cores of its type: all that take time
        (``exclusive``), or only those that need a core of its type (``per-type``).
    serial
        One operator at a time, each on all cores of its type, as on a GPU's stream.
    elastic
        Whether operators may take smaller shares of the bandwidths than stated, and run as much
        slower; otherwise shares are rigid.
    residency
        The joint problem over the same operators and edges; None if no tensor can stay.
    cached
        What a cache serves; None if there is no cache, or it serves nothing. Only of a problem that
        is ``serial``, with the operators in topological order, and without ``residency``.
    """

    name: str
    num_tc: int
    num_vc: int
    operators: tuple[ScheduleOperator, ...]
    edges: tuple[tuple[int, int], ...]
    intra_operator: IntraOperatorRule = "exclusive"
    serial: bool = False
    elastic: bool = False
    residency: Residency | None = None
    cached: CachedReads | None = None

    @property
    def tensors(self) -> tuple[PassTensor, ...]:
        """The tensors that may stay, or that a cache may hold."""
        if self.cached is not None:
            return self.cached.tensors
        return () if self.residency is None else self.residency.graph.tensors


@dataclass(frozen=True)
class ScheduledOperator:
    """When and how one operator runs; ``intra_operator`` means on all cores of its type.

    In an elastic problem it may take longer than in the problem, where it got less bandwidth.
    """

    id: str
    start_s: float
    end_s: float
    intra_operator: bool


@dataclass(frozen=True)
class ResidentTensor:
    """From when to when a tensor stays in the global buffer, or a cache holds it.

    ``tensor`` is its place in the `residency.TensorGraph` of the problem, or its number in
    `CachedReads.tensors`.
    """

    tensor: int
    start_s: float
    end_s: float


class HeldInput(NamedTuple):
    """What one operator alone moves again for every tile: an input of the pass, or a sum.

    Attributes
    ----------
    operator
        Its index.
    bytes
        Room in the global buffer.
    moved_bytes
        Bytes that it moves all the same: the input once, or the finished sum.
    """

    operator: int
    bytes: int
    moved_bytes: int


@dataclass(frozen=True)
class TiledGroup:
    """Operators that take turns tile by tile; see `tiles`.

    In the schedule they stand one behind another, each with the time of all its tiles.

    Attributes
    ----------
    operators
        In the order in which they take turns.
    tiles
        Into how many each is cut.
    passed
        Tensors that are passed by tiles, by their place in the `residency.TensorGraph`.
    held
        Inputs that stay in the global buffer while the group runs.
    start_s, end_s
        Of the group.
    saved_bytes
        HBM bytes less than those of its operators alone with nothing resident.
    """

    operators: tuple[int, ...]
    tiles: int
    passed: tuple[int, ...]
    held: tuple[HeldInput, ...]
    start_s: float
    end_s: float
    saved_bytes: float


@dataclass(frozen=True)
class ResidencySchedule:
    """What a schedule of the joint problem chooses besides the order, or what a cache serves.

    Attributes
    ----------
    levels, hbm_bytes
        Level of every operator, and the bytes that it moves from and to HBM.
    tensors
        The resident tensors; all others go through HBM. With a cache, a tensor stands here once for
        every stay that serves a read.
    groups
        Operators that run tile by tile; their levels are those of `tiles.TilePrices`.
    """

    levels: tuple[int, ...]
    hbm_bytes: tuple[float, ...]
    tensors: tuple[ResidentTensor, ...]
    groups: tuple[TiledGroup, ...] = ()


@deferrable("operators")
@dataclass(frozen=True)
class Schedule:
    """When and how every operator runs, with the proof.

    Attributes
    ----------
    operators
        In the order of the problem.
    makespan_s
        Time from the first start to the last end.
    status
        ``"optimal"`` only where ``bound_s`` proves that no schedule is shorter.
    bound_s
        Lower bound on the makespan of every schedule.
    method
        The strongest method that a part of the problem needed: ``"bound"`` where the operators can
        only run one after another, ``"list"`` where a list schedule met a lower bound, else
        ``"branch-and-bound"`` or ``"cp-sat"``. A schedule of the joint problem has the method
        ``"dynamic-program"``, or ``"cp-sat"`` if that took part.
    solve_s
        Wall-clock time of the solver, without the time to load its compiled code.
    residency
        None if the schedule is one without residency; then every operator is as in the problem's
        two modes.
    """

    operators: tuple[ScheduledOperator, ...]
    makespan_s: float
    status: ScheduleStatus
    bound_s: float
    method: ScheduleMethod
    solve_s: float
    residency: ResidencySchedule | None = None

    @property
    def gap(self) -> float:
        """Relative gap ``(makespan − bound) / makespan``; 0 where proven."""
        if self.makespan_s <= 0.0:
            return 0.0
        return max(0.0, (self.makespan_s - self.bound_s) / self.makespan_s)


def with_bound(schedule: Schedule, bound_s: float) -> Schedule:
    """Return a schedule that is the best of several kinds, of which one has a smaller bound."""
    if bound_s >= schedule.makespan_s * (1.0 - 1e-9):
        return schedule
    return replace(schedule, bound_s=min(schedule.bound_s, bound_s), status="feasible")


def check_problem(problem: ScheduleProblem) -> tuple[int, ...]:
    """Refuse a problem that cannot be scheduled, in one sentence that names the operator.

    Returns
    -------
    A topological order of the operators' indices.

    Raises
    ------
    InputError
        For an unknown rule or core type, a latency or fraction outside its range, an operator that
        no core can run, latencies without a finite sum, two operators of one id, an edge to an
        unknown operator, a cycle, or a joint problem that `residency.check_residency` refuses.
    """
    if problem.intra_operator not in INTRA_OPERATOR_RULES:
        raise unknown_name("intra-operator rule", problem.intra_operator, INTRA_OPERATOR_RULES)
    for name in ("num_tc", "num_vc"):
        check_size(name, getattr(problem, name), MOST_SIZE, least=0)
    seen: set[str] = set()
    total_s = 0.0
    for operator in problem.operators:
        _check_operator(operator, problem)
        if operator.id in seen:
            raise InputError(f"Two operators have the id {operator.id!r}; ids must be unique.")
        seen.add(operator.id)
        total_s += max(operator.latency_s, operator.intra_op_latency_s)
        if math.isinf(total_s):
            raise InputError(
                f"With {operator.id!r}, the latencies of the operators add up to more seconds "
                "than a floating-point number can hold."
            )
    order = topological_order(problem)
    if problem.residency is not None:
        _check_joint_problem(problem, problem.residency)
    if problem.cached is not None:
        _check_cached_reads(problem, problem.cached)
    return order


def _check_joint_problem(problem: ScheduleProblem, residency: Residency) -> None:
    """Check that the joint problem is valid, and about the same operators and edges."""
    from phaze_opt.scheduling.residency import check_residency

    check_residency(residency, [operator.id for operator in problem.operators])
    own = residency.graph.edges
    if own is not problem.edges and set(own) != set(problem.edges):
        raise InputError(
            f"The tensors of {problem.name!r} come with other edges than its operators."
        )


def _check_cached_reads(problem: ScheduleProblem, cached: CachedReads) -> None:
    """Check that operators run in their order, and that the cache makes none of them slower."""
    if not problem.serial or problem.residency is not None:
        raise InputError(
            f"{problem.name!r} has cached reads, but it is not serial or has a managed buffer."
        )
    if any(before >= after for before, after in problem.edges):
        raise InputError(
            f"{problem.name!r} has cached reads, but its operators are in no topological order."
        )
    for name in ("latency_s", "hbm_bytes"):
        values = getattr(cached, name)
        if len(values) != len(problem.operators):
            raise InputError(
                f"{name} of the cached reads has {len(values)} values, but it must have one for "
                f"each of the {len(problem.operators)} operators."
            )
        for operator, value in zip(problem.operators, values, strict=True):
            if not (math.isfinite(value) and value >= 0.0):
                raise InputError(
                    f"{name} of operator {operator.id!r} with cached reads is {value}, "
                    "but it must be finite and not negative."
                )


def _check_operator(operator: ScheduleOperator, problem: ScheduleProblem) -> None:
    """Check the numbers of one operator, and that the chip has the cores that it needs."""
    if operator.core not in CORE_TYPES:
        raise unknown_name(f"core type of operator {operator.id!r}:", operator.core, CORE_TYPES)
    for name in _LATENCIES:
        value = getattr(operator, name)
        if not (math.isfinite(value) and value >= 0.0):
            raise InputError(
                f"{name} of operator {operator.id!r} is {value}, "
                "but it must be finite and not negative."
            )
    for name in _FRACTIONS:
        value = getattr(operator, name)
        if not 0.0 <= value <= 1.0:
            raise InputError(
                f"{name} of operator {operator.id!r} is {value}, but it must be from 0 to 1."
            )
    for core, count in (("TC", problem.num_tc), ("VC", problem.num_vc)):
        if core in operator.core and count == 0:
            raise InputError(
                f"No core can run operator {operator.id!r}: it needs a {core}, "
                f"and num_{core.lower()} is 0."
            )


def topological_order(problem: ScheduleProblem) -> tuple[int, ...]:
    """Give an order of the operators in which every edge points forward.

    Raises
    ------
    InputError
        If an edge names an operator that does not exist, or the edges form a cycle.
    """
    count = len(problem.operators)
    for before, after in problem.edges:
        for end, other in ((before, after), (after, before)):
            if not 0 <= end < count:
                known = problem.operators[other].id if 0 <= other < count else "?"
                raise InputError(
                    f"An edge of operator {known!r} ends at operator number {end}, "
                    f"but there are {count} operators, counted from 0."
                )
    order, successors, waiting = sorted_topologically(count, problem.edges)
    if len(order) < count:
        raise InputError(
            f"The operators form a cycle: {_name_cycle(problem, successors, waiting)}."
        )
    return tuple(order)


def sorted_topologically(
    count: int, edges: Sequence[tuple[int, int]]
) -> tuple[list[int], list[list[int]], list[int]]:
    """Order operators as far as they are on no cycle.

    Returns the order, the successors of each operator, and for how many predecessors that could not
    be ordered each waits.
    """
    waiting = [0] * count
    successors: list[list[int]] = [[] for _ in range(count)]
    for before, after in edges:
        successors[before].append(after)
        waiting[after] += 1
    order = [index for index in range(count) if waiting[index] == 0]
    for index in order:
        for after in successors[index]:
            waiting[after] -= 1
            if waiting[after] == 0:
                order.append(after)
    return order, successors, waiting


def _name_cycle(problem: ScheduleProblem, successors: list[list[int]], waiting: list[int]) -> str:
    """Write one cycle among the operators that a topological sort could not order."""
    predecessor = {}
    for index, blocked in enumerate(waiting):
        if blocked:
            for after in successors[index]:
                if waiting[after]:
                    predecessor[after] = index
    # Each of these operators waits for another of them, so a walk backwards must repeat.
    position = next(index for index, blocked in enumerate(waiting) if blocked)
    trail: list[int] = []
    while position not in trail:
        trail.append(position)
        position = predecessor[position]
    cycle = [position, *reversed(trail[trail.index(position) :])]
    return " -> ".join(repr(problem.operators[index].id) for index in cycle)
