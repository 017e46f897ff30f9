"""Timelines as a Gantt chart: a page of HTML with drawings and no script.

Takes the events that `phaze_opt.scheduling.perfetto` writes for Perfetto; the page itself is the
template ``data/gantt.html``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phaze_opt.report.figure_style import (
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PINK,
    RED,
    SKY,
    YELLOW,
    thinned,
)
from phaze_opt.report.templates import templates
from phaze_opt.scheduling.perfetto import Event
from phaze_opt.units import format_bytes, format_seconds

_LABELS, _WIDTH, _LANE, _GAP, _AXIS = 230, 1_100, 20, 4, 26
"""Pixels: of the names of lanes, of the time, of a lane, between lanes, of the axis."""

_LETTER = 6.6
_TICKS = 8
_S_PER_US = 1e-6

_COLOURS = {
    "forward": BLUE,
    "recompute": SKY,
    "backward": GREEN,
    "weight gradient": YELLOW,
    "parameter gather": PINK,
    "gradient synchronisation": RED,
    "exposed gradient synchronisation": RED,
    "hidden gradient synchronisation": "#F2B27A",
    "optimizer": "#7A5C3E",
    "TC": BLUE,
    "VC": GREEN,
    "TC+VC": SKY,
    "none": ORANGE,
    "tensor": LIGHT,
}
_WORDS = {
    "TC": "tensor cores",
    "VC": "vector cores",
    "TC+VC": "both kinds of cores",
    "none": "network",
    "tensor": "tensor on the chip",
}
_WHITE_TEXT = (BLUE, GREEN, RED, "#7A5C3E")
_SPARE = (YELLOW, GREY)


@dataclass(frozen=True)
class GanttLimits:
    """How much a drawing shows.

    Attributes
    ----------
    slices
        Most slices of a drawing, about; shorter neighbours are then drawn as one.
    lanes
        Most lanes.
    """

    slices: int = 8_000
    lanes: int = 200


@dataclass
class _Lane:
    """A row of a drawing."""

    name: str
    slices: list[Event] = field(default_factory=list)


@dataclass
class _Process:
    """A drawing: rows on one axis of time."""

    name: str
    lanes: dict[object, _Lane] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        """End of the last slice."""
        events = (event for lane in self.lanes.values() for event in lane.slices)
        return max((sum(_span_s(event)) for event in events), default=0.0)


def gantt_page(events: Iterable[Event], title: str) -> str:
    """Draw events, each process by itself from time 0.

    Parameters
    ----------
    events
        As `phaze_opt.scheduling.perfetto.trace_events` gives them.
    title
        Of the page.
    """
    drawings = [
        _drawing(process, GanttLimits()) for process in _processes(events) if process.end_s > 0.0
    ]
    return templates().get_template("gantt.html").render(title=title, drawings=drawings)


def gantt_fragment(events: Iterable[Event], most: GanttLimits) -> str:
    """Draw events as `gantt_page` does, as a part of another page.

    Parameters
    ----------
    events
        As for `gantt_page`.
    most
        How much is drawn.
    """
    parts: Any = templates().get_template("gantt_drawing.html").module
    drawings = (_drawing(each, most) for each in _processes(events) if each.end_s > 0.0)
    return "".join(str(parts.gantt(drawing)) for drawing in drawings)


def _processes(events: Iterable[Event]) -> list[_Process]:
    """Sort events into processes and lanes, in the order in which they are named."""
    processes: dict[object, _Process] = {}
    for event in events:
        process = processes.setdefault(event["pid"], _Process("timeline"))
        args: Any = event.get("args", {})
        if event["ph"] == "M" and event["name"] == "process_name":
            process.name = str(args["name"])
            continue
        lane = process.lanes.setdefault(event["tid"], _Lane(str(event["tid"])))
        if event["ph"] == "M":
            lane.name = str(args["name"])
        elif event["ph"] == "X":
            lane.slices.append(event)
    return list(processes.values())


def _drawing(process: _Process, most: GanttLimits) -> dict[str, Any]:
    """Return a process as the template draws it; positions are in pixels."""
    end_s = process.end_s
    lanes = [lane for lane in process.lanes.values() if lane.slices]
    shown = thinned(lanes, most.lanes)
    least = max(0.6, _WIDTH * len(shown) / most.slices)
    used = {_kind(event) for lane in shown for event in lane.slices}
    kinds = [kind for kind in _COLOURS if kind in used] + sorted(used - set(_COLOURS))
    return {
        "title": f"{process.name}: {format_seconds(end_s)}",
        "legend": [(_colour(kind), _WORDS.get(kind, kind)) for kind in kinds],
        "width": _LABELS + _WIDTH + 60,
        "height": _AXIS + len(shown) * (_LANE + _GAP) + 4,
        "ticks": _ticks(end_s),
        "lanes": [
            {
                "top": _AXIS + place * (_LANE + _GAP),
                "name": lane.name,
                "label": _shortened(lane.name, _LABELS - 12),
                "slices": [_slice(entry, end_s) for entry in _merged(lane.slices, end_s, least)],
            }
            for place, lane in enumerate(shown)
        ],
        "hidden": len(lanes) - len(shown),
        "labels": _LABELS,
        "lane": _LANE,
        "axis": _AXIS,
    }


def _ticks(end_s: float) -> list[tuple[str, str]]:
    """Return position and time of every line of the axis."""
    step_s = _step(end_s / _TICKS)
    times_s = [tick * step_s for tick in range(int(end_s / step_s * (1.0 + 1e-9)) + 1)]
    return [
        (f"{_LABELS + _WIDTH * time_s / end_s:.1f}", format_seconds(time_s)) for time_s in times_s
    ]


def _step(least_s: float) -> float:
    """Return the next larger of 1, 2 and 5 times a power of ten."""
    power = 10.0**-30
    while power * 10.0 <= least_s:
        power *= 10.0
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least_s)


def _merged(slices: Sequence[Event], end_s: float, least: float) -> list[dict[str, Any]]:
    """Join slices that are too short to be seen with those before them.

    Parameters
    ----------
    slices
        Of one lane.
    end_s
        End of the axis.
    least
        Pixels of the shortest slice that is drawn by itself.
    """
    merged: list[dict[str, Any]] = []
    for event in sorted(slices, key=lambda event: _span_s(event)[0]):
        start_s, length_s = _span_s(event)
        pixels = _WIDTH / end_s
        last = merged[-1] if merged else None
        is_short = last is not None and min(length_s, last["length_s"]) * pixels < least
        if last is not None and is_short and (start_s - last["end_s"]) * pixels < least:
            last["end_s"] = max(last["end_s"], start_s + length_s)
            last["length_s"] = last["end_s"] - last["start_s"]
            last["count"] += 1
        else:
            end = start_s + length_s
            entry = {"event": event, "start_s": start_s, "end_s": end, "length_s": length_s}
            merged.append({**entry, "count": 1})
    return merged


def _slice(entry: Mapping[str, Any], end_s: float) -> dict[str, Any]:
    """Return a slice as the template draws it, with its name where there is room for it."""
    event, colour = entry["event"], _colour(_kind(entry["event"]))
    x = _LABELS + _WIDTH * entry["start_s"] / end_s
    width = max(0.5, _WIDTH * entry["length_s"] / end_s)
    return {
        "x": f"{x:.2f}",
        "label_x": f"{x + 4:.1f}",
        "width": f"{width:.2f}",
        "border": 0.5 if width > 3 else 0,
        "colour": colour,
        "ink": "#FFFFFF" if colour in _WHITE_TEXT else "#222222",
        "label": _shortened(str(event["name"]), width - 8) if width > 8 * _LETTER else "",
        "tooltip": _tooltip(entry),
    }


def _tooltip(entry: Mapping[str, Any]) -> str:
    """Say what a slice is."""
    event, count = entry["event"], entry["count"]
    args: Mapping[str, Any] = event.get("args", {})
    size = f", {format_bytes(args['bytes'])}" if "bytes" in args else ""
    batch = f", microbatch {args['microbatch']}" if "microbatch" in args else ""
    more = f" and {count - 1} more" if count > 1 else ""
    span = f"{format_seconds(entry['start_s'])} to {format_seconds(entry['end_s'])}"
    return f"{event['name']}{more}{batch}{size}: {format_seconds(entry['length_s'])}, {span}"


def _kind(event: Event) -> str:
    """Return what decides the colour of a slice: its name in a pipeline, its cores in a layer."""
    name, category = str(event["name"]), str(event.get("cat", ""))
    return name if name in _COLOURS else category


def _colour(kind: str) -> str:
    """Return a colour."""
    return _COLOURS.get(kind, _SPARE[len(kind) % len(_SPARE)])


def _span_s(event: Event) -> tuple[float, float]:
    """Return start and length of a slice in seconds."""
    start: Any = event["ts"]
    length: Any = event["dur"]
    return _S_PER_US * start, _S_PER_US * length


def _shortened(text: str, pixels: float) -> str:
    """Cut text that does not fit."""
    longest = max(1, int(pixels / _LETTER))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
