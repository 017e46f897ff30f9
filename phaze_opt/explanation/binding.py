"""What binds one pass of a layer: its critical path, and the resource that binds each step of it.

A schedule starts every operator at 0 or when another one ends. So a chain of operators without a
gap leads back from the end to the start: the critical path. Each of its operators takes the longest
of the times that the resources need for it, plus the chip's constant per operator; the longest one
is what binds it. Summed over the path, the seconds by binding resource add up to the makespan.

That is also what a faster resource brings. The makespan is homogeneous in the rates: with all of
them twice as fast it halves. By Euler's theorem it is the sum of its derivatives along each
resource's time, and the derivative along one resource is the seconds of the critical path that it
binds. A resource that is ``1 + e`` times as fast shortens the pass by its share times
``e / (1 + e)``, as long as the same resources bind the same operators; one that binds nothing
shortens it by nothing. Where two resources need nearly the same time, a tenth more of one is soon
held up by the other; so what a tenth more saves is also computed, not only derived.

The schedule binds too: while an operator of the path runs on one core, the idle cores of its type
could do half of it, if the operators did not depend on one another or could be cut. Those seconds
are *idle*: a part of what compute or lanes bind (faster cores help), but more cores do not help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from phaze_opt.estimator.chips import hbm_flow_bytes
from phaze_opt.estimator.estimate import RESOURCES, ModeEstimate
from phaze_opt.estimator.working_sets import kept_tensors
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.passes.problem import core_types
from phaze_opt.passes.scheduled import ScheduledPass
from phaze_opt.passes.tiles import tile_graph
from phaze_opt.scheduling.schedule_problem import ScheduledOperator

SCHEDULE = "schedule"
"""What binds where idle cores outweigh every resource."""

_BUSY = RESOURCES[:-1]
_FIELDS = ("tc_s", "vc_s", "glb_s", "hbm_s", "link_s")
"""Busy times of a mode, in the same order."""
_BANDWIDTHS = ("glb", "hbm", "link")
_ROUNDING = 1e-9
"""Of the end of an operator: its start and end are rounded."""
_CORE_OF = {"compute": "TC", "lanes": "VC"}


@dataclass(frozen=True)
class CriticalOperator:
    """One operator of the critical path.

    Attributes
    ----------
    id
        In its fused graph.
    start_s, end_s
        In the schedule.
    all_cores
        Whether it runs on all cores of its type.
    bound_by
        What takes most of its time, one of `RESOURCES`.
    overhead_s
        The chip's constant, part of the operator's time.
    collective
        Whether it is communication, with nothing beside it.
    exchange
        Whether it sends tokens to their experts, or results back.
    """

    id: str
    start_s: float
    end_s: float
    all_cores: bool
    bound_by: str
    overhead_s: float
    collective: bool
    exchange: bool = False


@dataclass(frozen=True)
class Stay:
    """A tensor that stays in the global buffer, or that a cache holds until it serves a read.

    Attributes
    ----------
    operator
        That makes it, or the first that reads it where it comes into the pass.
    is_input
        Whether it comes into the pass.
    size_bytes
        Of the tensor.
    start_s, end_s
        From when to when.
    """

    operator: str
    is_input: bool
    size_bytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class TiledOperators:
    """Operators that run tile by tile, in turns.

    Attributes
    ----------
    operators
        Their names, in the order of their turns.
    tiles
        Into how many each is cut.
    passed
        Of which of them the result is passed by tiles.
    passed_bytes, buffered_bytes
        Of all that is passed, and the room that its tiles take in the global buffer.
    held_bytes
        Of inputs that stay there while the operators run.
    saved_bytes
        HBM bytes less than those of the operators one by one with nothing kept.
    start_s, end_s
        From when to when.
    """

    operators: tuple[str, ...]
    tiles: int
    passed: tuple[str, ...]
    passed_bytes: int
    buffered_bytes: int
    held_bytes: int
    saved_bytes: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class PassBinding:
    """What binds one pass of a layer, per device and microbatch.

    Attributes
    ----------
    makespan_s
        Of its schedule.
    bound_by
        What takes most of it: one of `RESOURCES`, or ``"schedule"``. Idle seconds count for the
        schedule here, not for the resource that they are part of.
    bound_s
        Seconds of the critical path by `RESOURCES`; they add up to the makespan.
    idle_s
        The part of ``bound_s`` in which cores of the binding type stand idle.
    busy_s
        Seconds that each resource would need for the whole pass by itself, at its full rate.
    critical_path
        First operator first.
    saving
        Share of the makespan that a tenth more of each resource saves, all operators estimated and
        scheduled anew; keys are those of `phaze_opt.explanation.gains.Gain`. It may be negative by
        no more than the gap of the schedules, where they are not proven.
    stays
        Tensors that stay in the global buffer, by their start; of a cache, what serves a read.
    hbm_bytes, hbm_bytes_without
        What the HBM moves in the pass, and what it would move if nothing stayed.
    cached
        Whether a cache holds them by itself; it saves reads only.
    groups
        Operators that run tile by tile, by their start.
    """

    makespan_s: float
    bound_by: str
    bound_s: Mapping[str, float]
    idle_s: Mapping[str, float]
    busy_s: Mapping[str, float]
    critical_path: tuple[CriticalOperator, ...]
    saving: Mapping[str, float]
    stays: tuple[Stay, ...] = ()
    hbm_bytes: float = 0.0
    hbm_bytes_without: float = 0.0
    cached: bool = False
    groups: tuple[TiledOperators, ...] = ()

    @property
    def schedule_s(self) -> float:
        """Idle seconds together: what the schedule binds."""
        return sum(self.idle_s.values())

    @property
    def collectives_s(self) -> float:
        """Seconds of the critical path that communicate in the tensor-parallel group."""
        return self.communication_s(exchanges=False)

    def communication_s(self, exchanges: bool) -> float:
        """Return the same, or the seconds that send tokens to their experts and results back."""
        return sum(step.end_s - step.start_s for step in self._communication(exchanges))

    def network_s(self, exchanges: bool) -> float:
        """Return `communication_s` without the chip's constant per operator."""
        steps = self._communication(exchanges)
        return sum(step.end_s - step.start_s - step.overhead_s for step in steps)

    def _communication(self, exchanges: bool) -> Iterator[CriticalOperator]:
        """Yield the steps that communicate."""
        steps = (step for step in self.critical_path if step.collective)
        return (step for step in steps if step.exchange == exchanges)

    def share(self, resource: str) -> float:
        """Return a resource's share of the makespan; 0 of a pass that takes no time."""
        return self.bound_s[resource] / self.makespan_s if self.makespan_s > 0.0 else 0.0


def bind_pass(
    scheduled: ScheduledPass,
    accelerator: Accelerator,
    others: Mapping[str, ScheduledPass] | None = None,
) -> PassBinding:
    """Say what binds a pass.

    Parameters
    ----------
    scheduled
        Estimated and scheduled.
    accelerator
        That it was scheduled on.
    others
        The same pass with a tenth more of a resource, by the resource's name.
    """
    path = critical_path(scheduled.schedule.operators, scheduled.graph.edges)
    bound_s, idle_s = dict.fromkeys(RESOURCES, 0.0), dict.fromkeys(_CORE_OF, 0.0)
    idle = _IdleCores(scheduled, accelerator)
    steps = []
    for index in path:
        step, resource = _critical_operator(scheduled, index)
        slowed_s = _slowed_s(scheduled, index)
        work_s = step.end_s - step.start_s - step.overhead_s - slowed_s
        bound_s["overhead"] += step.overhead_s
        if slowed_s > 0.0:
            bound_s[_bandwidth(scheduled.chosen, index)] += slowed_s
        for part, part_s in _parts_s(scheduled.chosen, index, resource, work_s).items():
            bound_s[part] += part_s
            if part in _CORE_OF and not step.all_cores:
                idle_s[part] += part_s * idle.share(_CORE_OF[part], index)
        steps.append(step)
    makespan_s = scheduled.schedule.makespan_s
    saving = {
        resource: 1.0 - other.schedule.makespan_s / makespan_s if makespan_s > 0.0 else 0.0
        for resource, other in (others or {}).items()
    }
    return PassBinding(
        makespan_s=makespan_s,
        bound_by=_largest(bound_s, idle_s),
        bound_s=bound_s,
        idle_s=idle_s,
        busy_s=_busy_s(scheduled, accelerator),
        critical_path=tuple(steps),
        saving=saving,
        stays=_stays(scheduled),
        hbm_bytes=_hbm_bytes(scheduled.chosen, accelerator),
        hbm_bytes_without=_hbm_bytes(scheduled.estimates.all_cores, accelerator),
        cached=not accelerator.concurrent_operators,
        groups=_groups(scheduled),
    )


def _hbm_bytes(mode: ModeEstimate, accelerator: Accelerator) -> float:
    """Return the HBM traffic of a pass; none where there is no HBM."""
    return float(hbm_flow_bytes(mode.hbm_s.sum(), accelerator.sustained_hbm_bytes_per_s))


def _stays(scheduled: ScheduledPass) -> tuple[Stay, ...]:
    """Name the tensors that stay in the global buffer, or that a cache holds."""
    if scheduled.schedule.residency is None:
        return ()
    tensors = kept_tensors(scheduled.graph)
    stays = []
    for stay in scheduled.schedule.residency.tensors:
        tensor = tensors[stay.tensor]
        first = min(
            (reader.operator for reader in tensor.readers),
            key=lambda index: scheduled.schedule.operators[index].start_s,
        )
        index = first if tensor.writer is None else tensor.writer.operator
        name = scheduled.graph.operators[index].id
        is_input = tensor.writer is None
        stays.append(Stay(name, is_input, tensor.size_bytes, stay.start_s, stay.end_s))
    return tuple(sorted(stays, key=lambda stay: (stay.start_s, stay.end_s)))


def _groups(scheduled: ScheduledPass) -> tuple[TiledOperators, ...]:
    """Name the operators that run tile by tile, and what they pass."""
    if scheduled.schedule.residency is None:
        return ()
    names = [operator.id for operator in scheduled.graph.operators]
    groups = []
    for group in scheduled.schedule.residency.groups:
        tiles = tile_graph(scheduled.graph)
        passed = [tiles.graph.tensors[i] for i in group.passed]
        groups.append(
            TiledOperators(
                operators=tuple([names[one] for one in group.operators]),
                tiles=group.tiles,
                passed=tuple(
                    [names[each.producer] for each in passed if each.producer is not None]
                ),
                passed_bytes=sum(each.bytes for each in passed),
                buffered_bytes=sum(tiles.tile_bytes(i, group.tiles) for i in group.passed),
                held_bytes=sum(each.bytes for each in group.held),
                saved_bytes=group.saved_bytes,
                start_s=group.start_s,
                end_s=group.end_s,
            )
        )
    return tuple(groups)


def critical_path(
    operators: Sequence[ScheduledOperator], edges: Sequence[tuple[int, int, int]]
) -> list[int]:
    """Return a chain of operators without a gap from time 0 to the makespan.

    Of several operators that end when one starts, one that it depends on is preferred, then the
    longest; an operator that takes no time is never on the path.

    Parameters
    ----------
    operators
        Scheduled; every one starts at 0 or when another ends.
    edges
        ``(before, after, bytes)`` between them.
    """
    working = [i for i, entry in enumerate(operators) if entry.end_s > entry.start_s]
    if not working:
        return []
    before = {(source, destination) for source, destination, _ in edges}
    at = max(working, key=lambda i: (operators[i].end_s, -i))
    path = [at]
    while operators[at].start_s > 0.0:
        # Starts are ends of others to the bit: schedules are laid out operator behind operator.
        ending = [i for i in working if operators[i].end_s == operators[at].start_s]
        at = max(ending, key=lambda i: ((i, path[-1]) in before, -operators[i].start_s, -i))
        path.append(at)
    return path[::-1]


def _critical_operator(scheduled: ScheduledPass, index: int) -> tuple[CriticalOperator, str]:
    """Describe one operator, and name the resource that needs longest for it."""
    operator, entry = scheduled.graph.operators[index], scheduled.schedule.operators[index]
    mode = scheduled.chosen
    busy_s = [float(getattr(mode, name)[index]) for name in _FIELDS]
    most_s = max(busy_s)
    overhead_s = max(0.0, float(mode.latency_s[index]) - most_s)
    parts_s = _parts_s(mode, index, _BUSY[busy_s.index(most_s)], most_s)
    parts_s["overhead"] = overhead_s
    step = CriticalOperator(
        id=operator.id,
        start_s=entry.start_s,
        end_s=entry.end_s,
        all_cores=entry.intra_operator,
        bound_by=max(parts_s, key=lambda part: parts_s[part]),
        overhead_s=overhead_s,
        collective=operator.collective is not None and not operator.gemms,
        exchange=operator.is_exchange,
    )
    return step, _BUSY[busy_s.index(most_s)]


def _slowed_s(scheduled: ScheduledPass, index: int) -> float:
    """Return the seconds by which others slow an operator that shares bandwidths with them."""
    entry = scheduled.schedule.operators[index]
    slowed_s = entry.end_s - entry.start_s - float(scheduled.chosen.latency_s[index])
    return slowed_s if slowed_s > _ROUNDING * entry.end_s else 0.0


def _bandwidth(mode: ModeEstimate, index: int) -> str:
    """Name the bandwidth that an operator uses most."""
    return max(_BANDWIDTHS, key=lambda name: float(getattr(mode, f"{name}_s")[index]))


def _parts_s(mode: ModeEstimate, index: int, resource: str, work_s: float) -> dict[str, float]:
    """Split the seconds of an operator by what binds; only fused attention has two parts.

    While its tensor cores wait for its lanes, the lanes bind.
    """
    exposed_s = float(mode.exposed_lanes_s[index])
    if resource != "compute" or exposed_s == 0.0:
        return {resource: work_s}
    return {"compute": work_s - exposed_s, "lanes": exposed_s}


def _busy_s(scheduled: ScheduledPass, accelerator: Accelerator) -> dict[str, float]:
    """Sum what each resource does; a core of many counts as its share of them."""
    total = dict.fromkeys(_BUSY, 0.0)
    counts = {"compute": accelerator.num_tc, "lanes": accelerator.num_vc}
    for index, entry in enumerate(scheduled.schedule.operators):
        mode = scheduled.chosen
        for resource, field in zip(_BUSY, _FIELDS, strict=True):
            cores = 1 if entry.intra_operator else counts.get(resource, 1)
            total[resource] += float(getattr(mode, field)[index]) / cores
            if resource == "compute":
                total[resource] -= float(mode.exposed_lanes_s[index]) / cores
    return total


def _largest(bound_s: Mapping[str, float], idle_s: Mapping[str, float]) -> str:
    """Name what takes most, idle seconds counted for the schedule."""
    seconds = {resource: bound_s[resource] - idle_s.get(resource, 0.0) for resource in RESOURCES}
    seconds[SCHEDULE] = sum(idle_s.values())
    return max(seconds, key=lambda name: seconds[name])


class _IdleCores:
    """How many cores of a type are idle while an operator runs."""

    def __init__(self, scheduled: ScheduledPass, accelerator: Accelerator) -> None:
        self._operators = scheduled.schedule.operators
        self._types = core_types(scheduled.graph)
        self._counts = {"TC": accelerator.num_tc, "VC": accelerator.num_vc}

    def share(self, core: str, index: int) -> float:
        """Return the idle share of the cores of a type, averaged over an operator's time."""
        start_s, end_s = self._operators[index].start_s, self._operators[index].end_s
        used_s = 0.0
        for entry, kind in zip(self._operators, self._types, strict=True):
            overlap_s = min(end_s, entry.end_s) - max(start_s, entry.start_s)
            if overlap_s > 0.0 and core in kind.split("+"):
                used_s += overlap_s * (1.0 if entry.intra_operator else 1.0 / self._counts[core])
        return max(0.0, 1.0 - used_s / (end_s - start_s))
