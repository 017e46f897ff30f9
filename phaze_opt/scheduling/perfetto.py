"""Timelines of schedules for Perfetto and Chrome: a process per schedule, a lane per core.

Below the cores, the tensors that stay in the global buffer or that a cache holds take as many lanes
as there are at once. Operators that take turns tile by tile are one bar, with the number of tiles.

The format is the Trace Event Format: complete events ("X") with times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

from phaze_opt.codec import to_json
from phaze_opt.errors import InputError, PhazeError
from phaze_opt.scheduling.schedule_problem import (
    CoreType,
    Schedule,
    ScheduledOperator,
    ScheduleOperator,
    ScheduleProblem,
)
from phaze_opt.user_files import write_file

MOST_LANES = 64
"""With more cores of one type, those that never run an operator alone share one lane."""

_US_PER_S = 1e6
_NETWORK = "network"

Event = dict[str, object]


def schedule_events(schedules: Iterable[tuple[ScheduleProblem, Schedule]]) -> list[Event]:
    """Give the timelines of schedules, each as its own process from time 0."""
    return [
        event
        for process, (problem, schedule) in enumerate(schedules, start=1)
        for event in trace_events(problem, schedule, process)
    ]


def write_events(path: Path, events: Sequence[Event]) -> None:
    """Write events to one file.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    try:
        write_file(path, trace_document(events))
    except PhazeError as error:
        raise InputError(str(error)) from None


def trace_document(events: Sequence[Event]) -> bytes:
    """Return events as the JSON that Perfetto and Chrome open."""
    return to_json({"traceEvents": events, "displayTimeUnit": "ns"})


def trace_events(problem: ScheduleProblem, schedule: Schedule, process: int = 1) -> list[Event]:
    """Give the events of a schedule of a problem; operators without duration have none.

    ``process`` is the number of the process that holds the lanes.
    """
    pairs = [pair for pair in _bars(problem, schedule) if pair[1].end_s > pair[1].start_s]
    pairs.sort(key=lambda pair: (pair[1].start_s, pair[1].end_s))
    events = [name_event("process_name", process, 0, problem.name or f"schedule {process}")]
    first_lane = 1
    for core, count in (("TC", problem.num_tc), ("VC", problem.num_vc), (_NETWORK, 0)):
        own = [pair for pair in pairs if core in _kinds(pair[0])]
        lanes, used = _assign_lanes(own)
        labels = _lane_labels(core, count, used)
        for lane, label in enumerate(labels, start=first_lane):
            events.append(name_event("thread_name", process, lane, label))
        for (operator, entry), own_lane in zip(own, lanes, strict=True):
            taken = range(len(labels)) if own_lane is None else (own_lane,)
            events += [_work_event(operator, entry, process, first_lane + lane) for lane in taken]
        first_lane += len(labels)
    return events + _stay_events(problem, schedule, process, first_lane)


def _bars(
    problem: ScheduleProblem, schedule: Schedule
) -> list[tuple[ScheduleOperator, ScheduledOperator]]:
    """Pair operators with when they run; a group that runs tile by tile is as one operator."""
    residency, kept = problem.residency, schedule.residency
    pairs = list(zip(problem.operators, schedule.operators, strict=True))
    if residency is None or kept is None:
        return pairs
    grouped = {one for group in kept.groups for one in group.operators}
    bars = [pair for one, pair in enumerate(pairs) if one not in grouped]
    for group in kept.groups:
        members = [problem.operators[one] for one in group.operators]
        own = [core for core in ("TC", "VC") if any(core in _kinds(member) for member in members)]
        span_s = group.end_s - group.start_s
        moved_bytes = sum(kept.hbm_bytes[one] for one in group.operators)
        share = moved_bytes / residency.hbm_bytes_per_s / span_s if span_s > 0.0 else 0.0
        name = f"{', '.join(member.id for member in members)}: {group.tiles} tiles in turns"
        cores = cast(CoreType, "+".join(own) or "none")
        operator = ScheduleOperator(name, cores, span_s, span_s, intra_op_hbm_fraction=share)
        bars.append((operator, ScheduledOperator(name, group.start_s, group.end_s, True)))
    return bars


def _stays(
    problem: ScheduleProblem, schedule: Schedule
) -> Iterator[tuple[str, int, tuple[float, float]]]:
    """Yield name, bytes and span of all that stays on the chip."""
    residency, kept = problem.residency, schedule.residency
    if kept is None:
        return
    for stay in kept.tensors:
        tensor = problem.tensors[stay.tensor]
        first = tensor.producer
        if first is None:
            first = min(tensor.readers, key=lambda reader: schedule.operators[reader].start_s)
        kind = "input of" if tensor.producer is None else "result of"
        name = f"{kind} {problem.operators[first].id}"
        yield name, tensor.bytes, (stay.start_s, stay.end_s)
    for group in kept.groups:
        assert residency is not None and residency.tiling is not None
        span_s = group.start_s, group.end_s
        for i in group.passed:
            made_by = problem.operators[problem.tensors[i].producer or 0].id
            yield f"tiles of {made_by}", residency.tiling.graph.tile_bytes(i, group.tiles), span_s
        for held in group.held:
            yield f"held for {problem.operators[held.operator].id}", held.bytes, span_s


def _stay_events(
    problem: ScheduleProblem, schedule: Schedule, process: int, first_lane: int
) -> list[Event]:
    """Give the events of what stays on the chip, a tensor below another while both stay."""
    stays = sorted(_stays(problem, schedule), key=lambda stay: stay[2])
    lanes = _first_free_lanes([span_s for *_, span_s in stays])
    label = "global buffer" if problem.cached is None else "L2 cache"
    events = [
        name_event("thread_name", process, first_lane + lane, f"{label} {lane}")
        for lane in range(max(lanes, default=-1) + 1)
    ]
    for (name, size_bytes, span_s), lane in zip(stays, lanes, strict=True):
        args = dict[str, object](bytes=size_bytes)
        events.append(slice_event(name, "tensor", span_s, process, first_lane + lane, args))
    return events


def _lane_labels(core: str, count: int, used: int) -> list[str]:
    """Name the lanes of one kind of core.

    Parameters
    ----------
    core
        Kind of core, or the network.
    count
        Number of cores of this kind; 0 for the network, whose lanes are those used.
    used
        Number of cores, the first ones, on which an operator runs alone at some time.
    """
    if count <= MOST_LANES or used >= count - 1:
        return [f"{core} {lane}" for lane in range(max(count, used))]
    return [*[f"{core} {lane}" for lane in range(used)], f"{core} {used} to {count - 1}"]


def _kinds(operator: ScheduleOperator) -> tuple[str, ...]:
    """List the kinds of lanes that an operator occupies."""
    return (_NETWORK,) if operator.core == "none" else tuple(operator.core.split("+"))


def _assign_lanes(
    pairs: list[tuple[ScheduleOperator, ScheduledOperator]],
) -> tuple[list[int | None], int]:
    """Give each operator the first free lane, or None for all lanes, and count the lanes used."""
    alone = [entry for _, entry in pairs if not entry.intra_operator]
    own = _first_free_lanes([(entry.start_s, entry.end_s) for entry in alone])
    following = iter(own)
    lanes = [None if entry.intra_operator else next(following) for _, entry in pairs]
    return lanes, max(own, default=-1) + 1


def _first_free_lanes(spans_s: Sequence[tuple[float, float]]) -> list[int]:
    """Give each span, sorted by start, the first lane that is free."""
    free_from_s: list[float] = []
    lanes = []
    for start_s, end_s in spans_s:
        free = [lane for lane, until_s in enumerate(free_from_s) if until_s <= start_s]
        lane = free[0] if free else len(free_from_s)
        free_from_s[lane : lane + 1] = [end_s]
        lanes.append(lane)
    return lanes


def name_event(kind: str, process: int, lane: int, name: str) -> Event:
    """Build the event that names a process or a lane."""
    return {"name": kind, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}


def slice_event(
    name: str, category: str, span_s: tuple[float, float], process: int, lane: int, args: Event
) -> Event:
    """Build the event that shows work on a lane.

    Parameters
    ----------
    name, category, args
        Text that the viewer shows; equal names have equal colours.
    span_s
        Start and end in seconds.
    process, lane
        Numbers of the process and of its lane.
    """
    start_s, end_s = span_s
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": start_s * _US_PER_S,
        "dur": (end_s - start_s) * _US_PER_S,
        "pid": process,
        "tid": lane,
        "args": args,
    }


def _work_event(
    operator: ScheduleOperator, entry: ScheduledOperator, process: int, lane: int
) -> Event:
    """Build the event that shows an operator on a lane."""
    hbm, *_ = operator.bandwidth_shares(entry.intra_operator)
    args: Event = {"intra_operator": entry.intra_operator, "hbm_fraction": hbm}
    span_s = entry.start_s, entry.end_s
    return slice_event(operator.id, operator.core, span_s, process, lane, args)
