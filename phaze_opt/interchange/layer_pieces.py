"""A pass of a layer as a few pieces: each collective by itself, and compute between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from phaze_opt.passes.layer_cost import LayerCost
from phaze_opt.passes.layers import DegreeCost
from phaze_opt.passes.scheduled import ScheduledLayer, ScheduledPass
from phaze_opt.workload.graph import Collective


@dataclass(frozen=True)
class Piece:
    """A part of a pass that runs without a break.

    Attributes
    ----------
    name
        What it is; empty for compute.
    start_s, end_s
        From the begin of the pass.
    after
        Pieces that it waits for, by their places; none where it begins with the pass.
    collective
        What it sends; ``None`` for compute.
    """

    name: str
    start_s: float
    end_s: float
    after: tuple[int, ...]
    collective: Collective | None = None


def pass_pieces(scheduled: ScheduledPass, seconds: float) -> tuple[Piece, ...]:
    """Cut the schedule of a pass where collectives start and end.

    Every piece starts when one that it waits for ends, so that the pieces and what they wait for
    say when everything runs. A fused operator that also sends is compute.

    Parameters
    ----------
    scheduled
        The pass.
    seconds
        What it takes, with what it waits for besides (the host, copies): the last piece.
    """
    operators = zip(scheduled.graph.operators, scheduled.schedule.operators, strict=True)
    networks: list[tuple[float, float, str, Collective]] = []
    busy: list[tuple[float, float]] = []
    for operator, entry in operators:
        if entry.end_s <= entry.start_s:
            continue
        if operator.collective is None or operator.gemms or operator.vector:
            busy.append((entry.start_s, entry.end_s))
        else:
            networks.append((entry.start_s, entry.end_s, operator.id, operator.collective))
    makespan_s = scheduled.schedule.makespan_s
    inner = {time_s for start_s, end_s, *_ in networks for time_s in (start_s, end_s)}
    cuts = sorted({0.0, makespan_s} | {time_s for time_s in inner if 0.0 < time_s < makespan_s})
    ends = {min(end_s, makespan_s) for _, end_s, *_ in networks}
    found: list[tuple[str, float, float, Collective | None]] = [
        (name, start_s, min(end_s, makespan_s), collective)
        for start_s, end_s, name, collective in networks
    ]
    for begin_s, end_s in pairwise(cuts):
        works = any(first < end_s and last > begin_s for first, last in busy)
        # Where nothing else ends with an idle time, it is a piece too: the next one waits for it.
        if works or end_s not in ends:
            found.append(("", begin_s, end_s, None))
    if seconds > makespan_s:
        found.append(("wait", makespan_s, seconds, None))
    found.sort(key=lambda piece: (piece[2], piece[1]))
    return tuple(
        Piece(
            name,
            start_s,
            end_s,
            tuple(place for place, other in enumerate(found) if other[2] == start_s > 0.0),
            collective,
        )
        for name, start_s, end_s, collective in found
    )


def pieces_of_layers(cost: DegreeCost) -> list[Mapping[str, tuple[Piece, ...]]]:
    """Cut the passes of every layer of a model, by name, without those that take no time."""
    distinct = list(map(_layer_pieces, cost.distinct, cost.passes))
    return [distinct[kind] for kind in cost.variant.kinds]


def _layer_pieces(layer: LayerCost, scheduled: ScheduledLayer) -> dict[str, tuple[Piece, ...]]:
    """Cut the passes of a layer: ``forward``, ``recompute`` and ``backward``."""
    again = scheduled.recompute
    passes = {"forward": scheduled.forward, "backward": scheduled.backward}
    if again is not None:
        passes["recompute"] = again
    taken_s = {name: getattr(layer.passes, name).seconds for name in passes}
    return {
        name: pass_pieces(own, taken_s[name]) for name, own in passes.items() if taken_s[name] > 0.0
    }
