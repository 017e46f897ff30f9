"""What a tenth more of each resource would bring on the whole step.

Every answer is an evaluation with that one resource changed, the others as before: with the same
placement, and with the placement that is then the fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from phaze_opt.costed_point import CostedPoint, Point, cost_point
from phaze_opt.evaluation import Evaluation, place_point
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.layer_passes import ScheduleCache
from phaze_opt.network.cluster import NetworkLevel
from phaze_opt.placement.solve_placement import place_again
from phaze_opt.training import Overlap

MORE = 1.1
"""How much of a resource is tried; of what should be small (overhead, latency) a tenth less."""
LESS = 0.9


@dataclass(frozen=True)
class Gain:
    """What more of one resource brings.

    Attributes
    ----------
    resource
        ``compute`` (rate of the PE arrays), ``lanes`` (rate of the vector lanes), ``clock`` (of
        the chip: arrays, lanes, L2 and GLB), ``glb`` and ``hbm`` (bandwidth), ``hbm_size``,
        ``link_0``, ``link_1``, … (bandwidth of a network level, innermost first),
        ``network_latency`` (of all levels, with the launch), ``overhead`` (per operator);
        ``overlap_data`` and ``overlap_all`` for more communication beside compute, see
        `phaze_opt.training.Training`.
    factor
        What it was multiplied by; 1 for overlap.
    feasible
        False only if a power limit stands in the way.
    throughput_gain
        Relative gain of throughput: 0.05 is 5 % faster. With the placement found anew where it was
        to be found, else with the given degrees. 0 if infeasible.
    same_placement_gain
        The same with every layer where it was.
    time_per_batch_s, same_placement_time_per_batch_s
        What the gains are computed from; the first is ``None`` if infeasible.
    placement
        The degrees of ``throughput_gain``, as ``PPxDPxTP``.
    """

    resource: str
    factor: float
    feasible: bool
    throughput_gain: float
    same_placement_gain: float
    time_per_batch_s: float | None
    same_placement_time_per_batch_s: float
    placement: str | None


def degrees_text(evaluation: Evaluation) -> str | None:
    """Write the degrees of an evaluation as ``PPxDPxTP``; ``None`` without a placement."""
    placed = evaluation.placement
    return None if placed is None else placed.degrees_text


@dataclass(frozen=True, eq=False)
class TriedChange:
    """A point with more of one resource, its layers estimated and scheduled."""

    resource: str
    factor: float
    costed: CostedPoint


def try_changes(
    changed: Iterable[tuple[str, float, Point]], cache: ScheduleCache
) -> tuple[TriedChange, ...]:
    """Estimate and schedule the layers of changed points.

    Parameters
    ----------
    changed
        From `changes` or `more_overlap`.
    cache
        Schedules by content; solved ones are added.
    """
    return tuple(
        TriedChange(resource, factor, cost_point(point, cache))
        for resource, factor, point in changed
    )


def gains(tried: Sequence[TriedChange], base: Evaluation) -> tuple[Gain, ...]:
    """Place the layers with more of every resource.

    Parameters
    ----------
    tried
        From `try_changes`.
    base
        The evaluation of the point as it is; without a placement there is nothing to gain from.

    Returns
    -------
    gains
        The largest first.
    """
    before_s = base.time_per_batch_s
    if base.placement is None or before_s is None:
        return ()
    found = []
    for change in tried:
        anew = place_point(change.costed)
        same_s = place_again(change.costed.problem, base.placement).time_per_batch_s
        after_s = anew.time_per_batch_s
        found.append(
            Gain(
                resource=change.resource,
                factor=change.factor,
                feasible=anew.feasible,
                throughput_gain=0.0 if after_s is None else before_s / after_s - 1.0,
                same_placement_gain=before_s / same_s - 1.0,
                time_per_batch_s=after_s,
                same_placement_time_per_batch_s=same_s,
                placement=degrees_text(anew),
            )
        )
    return tuple(sorted(found, key=lambda gain: (-gain.throughput_gain, gain.resource)))


def changes(point: Point) -> Iterator[tuple[str, float, Point]]:
    """Yield every resource with its factor and the point that has so much of it."""
    chip = point.accelerator
    # The arrays' rate is the clock with all that shares it held: lanes, and bytes per second of
    # the global buffer. The L2 belongs to its array.
    arrays = replace(_with_clock(chip, MORE), glb_bytes_per_cycle=chip.glb_bytes_per_cycle / MORE)
    slower_lanes = point.lane_rate / MORE
    yield "compute", MORE, replace(point, accelerator=arrays, lane_rate=slower_lanes)
    yield "lanes", MORE, replace(point, lane_rate=point.lane_rate * MORE)
    yield "clock", MORE, replace(point, accelerator=_with_clock(chip, MORE))
    for resource, name in (("glb", "glb_bytes_per_cycle"), ("hbm", "hbm_bytes_per_s")):
        faster: Accelerator = replace(chip, **{name: getattr(chip, name) * MORE})
        yield resource, MORE, replace(point, accelerator=faster)
    larger = replace(chip, hbm_bytes=round(chip.hbm_bytes * MORE))
    yield "hbm_size", MORE, replace(point, accelerator=larger)
    yield from _network_changes(point)
    if chip.calibration.operator_overhead_s > 0.0:
        less_s = chip.calibration.operator_overhead_s * LESS
        calibration = replace(chip.calibration, operator_overhead_s=less_s)
        quicker = replace(chip, calibration=calibration)
        yield "overhead", LESS, replace(point, accelerator=quicker)


def more_overlap(point: Point) -> Iterator[tuple[str, float, Point]]:
    """Yield the point with more communication beside compute, as ``changes`` does resources."""
    further: dict[Overlap, tuple[Overlap, ...]] = {
        "none": ("data", "all"),
        "data": ("all",),
        "all": (),
    }
    for overlap in further[point.training.overlap]:
        training = replace(point.training, overlap=overlap)
        yield f"overlap_{overlap}", 1.0, replace(point, training=training)


def _with_clock(chip: Accelerator, factor: float) -> Accelerator:
    """Return the chip at another clock."""
    sustained_hz = chip.calibration.sustained_clock_hz
    calibration = replace(
        chip.calibration,
        sustained_clock_hz=None if sustained_hz is None else sustained_hz * factor,
    )
    return replace(chip, clock_hz=chip.clock_hz * factor, calibration=calibration)


def _network_changes(point: Point) -> Iterator[tuple[str, float, Point]]:
    """Yield every level with more bandwidth, and all with less latency."""
    levels = point.cluster.levels

    def with_levels(changed: Sequence[NetworkLevel]) -> Point:
        return replace(point, cluster=replace(point.cluster, levels=tuple(changed)))

    for index, level in enumerate(levels):
        wider = replace(level, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * MORE)
        yield f"link_{index}", MORE, with_levels([*levels[:index], wider, *levels[index + 1 :]])
    if any(level.latency_s > 0.0 or level.launch_s > 0.0 for level in levels):
        quicker = [
            replace(
                level,
                latency_s=level.latency_s * LESS,
                launch_s=level.launch_s * LESS,
                in_switch_latency_s=level.in_switch_latency_s * LESS,
            )
            for level in levels
        ]
        yield "network_latency", LESS, with_levels(quicker)
