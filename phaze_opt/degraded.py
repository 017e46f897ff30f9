"""What is left of a run when a device is slow, a link is, or nodes are lost.

Training is synchronous: every collective waits for its slowest device, and a pipeline for its
slowest stage. A placement is timed as it stands on what is left, with the slow device where it
costs most, and so is the best one that could take its place:

- the same one, with the slow device where it costs least;
- a pipeline of which the stage of the slow device holds fewer layers;
- one that is found for the degraded devices, or for those that are left without the degraded one;
- on a spare node in place of the degraded one, the same as on whole devices.

Nodes are the units that the innermost level of the network joins. Spare nodes stand by: they take
the place of lost ones, and of that of a degraded device when the run is placed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from phaze_opt.checked import check_fields
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.fastest_slice import place_on_fastest_slice
from phaze_opt.hardware.ranges import at_speed
from phaze_opt.limits import MOST_DEVICES
from phaze_opt.network.cluster import Cluster, outermost_level
from phaze_opt.passes.scheduled import ScheduleCache
from phaze_opt.placement.kinds import is_over_kinds, solve_kinds
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import place_again, solve_placement
from phaze_opt.placement.stage_kinds import times_with_one_slower_s
from phaze_opt.point import CostedPoint, Point, cost_point


@dataclass(frozen=True)
class Degradation:
    """What is wrong with a cluster; by default nothing.

    Attributes
    ----------
    slow_device
        Speed of one device, of its clocks and its HBM, as a share of that of the others.
    link
        Bandwidth of the links of one device at a level, as a share; that of the slow device, if
        there is one too.
    link_level
        Which level, innermost 0; by default the outermost one that the placement uses.
    lost_nodes
        Nodes that are gone.
    spare_nodes
        Nodes that stand by, beyond the devices of the cluster.

    Raises
    ------
    InputError
        If a share is not in (0, 1], or a number is negative.
    """

    slow_device: float = 1.0
    link: float = 1.0
    link_level: int | None = None
    lost_nodes: int = 0
    spare_nodes: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("slow_device", "link"):
            share = getattr(self, name)
            if not 0.0 < share <= 1.0:
                raise InputError(f"{name} is {share:g}, but it must be in (0, 1].")
        for name in ("link_level", "lost_nodes", "spare_nodes"):
            count = getattr(self, name) or 0
            if not 0 <= count <= MOST_DEVICES:
                raise InputError(f"{name} is {count}, but it must be in 0 to {MOST_DEVICES}.")

    @property
    def is_of_a_device(self) -> bool:
        """Whether a device that is still there is degraded."""
        return self.slow_device < 1.0 or self.link < 1.0


@dataclass(frozen=True)
class DegradedRun:
    """A run on a degraded cluster.

    Attributes
    ----------
    throughput_samples_per_s
        0 if nothing fits.
    loss
        Which share of the throughput of the whole cluster is lost; below 0 where a placement was
        given and a faster one is found.
    time_per_batch_s, degrees
        Time and degrees, as ``PPxDPxTP``; ``None`` if nothing fits.
    devices
        That are used.
    stages
        Layers of each pipeline stage.
    reason
        Why nothing fits, if so.
    """

    throughput_samples_per_s: float
    loss: float
    time_per_batch_s: float | None
    degrees: str | None
    devices: int
    stages: tuple[int, ...]
    reason: str | None


@dataclass(frozen=True)
class Degraded(DegradedRun):
    """A run as it stands on a degraded cluster, and as the best placement there makes it.

    Attributes
    ----------
    replaced
        With the best placement; never slower.
    """

    replaced: DegradedRun


class _Placed(NamedTuple):
    """A placement, and the time of its batch on the degraded cluster."""

    time_s: float
    placement: Placement


@dataclass(frozen=True)
class _DegradedCluster:
    """A degraded cluster: what it takes to time and to find placements on it.

    Attributes
    ----------
    point
        The run on the cluster as it was.
    degradation, level
        What is wrong, and the level of the degraded link.
    left
        The devices that are left, with whole links.
    cache
        As `degraded` takes it.
    """

    point: Point
    degradation: Degradation
    level: int
    left: Cluster
    cache: ScheduleCache | None

    @property
    def with_link(self) -> Cluster:
        """What is left, with the degraded link in every collective that it may be in."""
        levels = list(self.left.levels)
        own = levels[self.level]
        bandwidth = own.bandwidth_bytes_per_s * self.degradation.link
        levels[self.level] = replace(own, bandwidth_bytes_per_s=bandwidth)
        return replace(self.left, levels=tuple(levels))

    def searched(self, cluster: Cluster, *, slow: bool = False) -> Point:
        """Return the run with its placement to be found."""
        speed = self.degradation.slow_device if slow else 1.0
        chip = at_speed(self.point.accelerator, speed)
        changed = replace(self.point, cluster=cluster, accelerator=chip, power_limit_w=None)
        return replace(changed, placement="solve", stages=None)

    def problem(
        self, cluster: Cluster, slice_index: int, *, slow: bool = False
    ) -> PlacementProblem:
        """Return what the placement takes on a slice of a cluster."""
        return cost_point(self.searched(cluster, slow=slow), self.cache, slice_index).problem

    def times_s(self, placement: Placement, slice_index: int) -> list[float]:
        """Return the times of a batch with the degraded device in one stage or another."""
        problem = self.problem(self.with_link, slice_index)
        same = place_again(problem, placement)
        if self.degradation.slow_device == 1.0:
            return [same.time_per_batch_s]
        slower = self.problem(self.with_link, slice_index, slow=True)
        times_s: list[float] = times_with_one_slower_s(problem, slower, same).tolist()
        return times_s

    def found(self) -> Iterator[_Placed]:
        """Yield placements that are searched for, of which one may be the best."""
        own, left = self.degradation, self.left
        if self.point.training.zero_group:
            return  # whose best placement is not known
        if not own.is_of_a_device or self.has_spare:
            yield from self._whole(left)
        elif left.devices > 1 and not left.levels[0].is_direct:
            # What is left of a ring or torus without one of its devices is none.
            yield from self._whole(replace(left, devices=left.devices - 1))
        if own.is_of_a_device:
            for costed, placement in self._solved(self.with_link, slow=True):
                yield _Placed(min(self.times_s(placement, costed.slice_index)), placement)

    def rebalanced(self, known_s: float) -> Iterator[_Placed]:
        """Yield pipelines in which the stage of the slow device has layers of its own number.

        Parameters
        ----------
        known_s
            What takes as long is left out.
        """
        if self.degradation.slow_device == 1.0:
            return
        cluster, reach = self.with_link, 1.0
        problems = [self.problem(cluster, 0, slow=slow) for slow in (False, True)]
        if not is_over_kinds(problems[0]):
            return
        for level in range(outermost_level(cluster.devices, cluster) + 1):
            reach *= cluster.levels[level].group_size or math.inf
            most = int(min(reach, cluster.devices))
            found, _ = solve_kinds(problems, partial(_one_slow, most), level, known_s)
            if found is not None:
                known_s = found.placement.time_per_batch_s
                yield _Placed(known_s, found.placement)

    @property
    def has_spare(self) -> bool:
        """Whether a spare node can take the place of that of the degraded device."""
        return self.degradation.spare_nodes > self.degradation.lost_nodes

    def on_spare(self, placement: Placement, slice_index: int) -> _Placed:
        """Return a placement with a spare node in place of that of the degraded device."""
        again = place_again(self.problem(self.left, slice_index), placement)
        return _Placed(again.time_per_batch_s, placement)

    def _whole(self, cluster: Cluster) -> Iterator[_Placed]:
        """Yield the best placement on whole devices, if any fits."""
        for _, placement in self._solved(cluster):
            yield _Placed(placement.time_per_batch_s, placement)

    def _solved(
        self, cluster: Cluster, *, slow: bool = False
    ) -> Iterator[tuple[CostedPoint, Placement]]:
        """Yield the best placement, if any fits, and the run as it is costed for that."""
        costed = cost_point(self.searched(cluster, slow=slow), self.cache)
        try:
            found = place_on_fastest_slice(costed, self.cache)
        except InfeasibleError:
            return
        yield found


def degraded(
    costed: CostedPoint,
    placement: Placement,
    degradation: Degradation,
    cache: ScheduleCache | None = None,
) -> Degraded:
    """Time a run on a degraded cluster, as it stands and placed again.

    Parameters
    ----------
    costed, placement
        The run on the whole cluster: as it is costed on the slice that it takes, and placed.
    degradation
        What is wrong.
    cache
        As for `phaze_opt.point.cost_point`.

    Raises
    ------
    InputError
        If the network has no such level, no nodes, or nothing is left of it.
    """
    point, index = costed.point, costed.slice_index
    level = _link_level(point.cluster, degradation, placement)
    left = _without_lost_nodes(point.cluster, degradation)
    cluster = _DegradedCluster(point, degradation, level, left, cache)
    kept: Placement | InfeasibleError = placement
    if placement.devices > left.devices:
        kept = _with_fewer_replicas(cluster.problem(cluster.with_link, index), placement)
    stands, answers = None, [*cluster.found()]
    if isinstance(kept, Placement):
        times_s = cluster.times_s(kept, index)
        stands = _Placed(max(times_s), kept)
        answers.append(_Placed(min(times_s), kept))
        if cluster.has_spare:
            answers.append(cluster.on_spare(kept, index))
    answers += cluster.rebalanced(min([each.time_s for each in answers], default=math.inf))
    # Of equal ones that which stands needs no other.
    best = min(reversed(answers), key=lambda each: each.time_s, default=None)
    batch, why = point.training.global_batch, None if stands else str(kept)
    whole = batch / placement.time_per_batch_s
    replaced = _run(best, batch, whole, None if best else why)
    own = vars(_run(stands, batch, whole, why))
    return Degraded(**own, replaced=replaced)


def _run(
    placed: _Placed | None, batch: int, whole_samples_per_s: float, reason: str | None
) -> DegradedRun:
    """Say what a placement brings, of the throughput on the whole cluster, if there is one."""
    if placed is None:
        return DegradedRun(0.0, 1.0, None, None, 0, (), reason)
    samples_per_s, placement = batch / placed.time_s, placed.placement
    return DegradedRun(
        throughput_samples_per_s=samples_per_s,
        loss=1.0 - samples_per_s / whole_samples_per_s,
        time_per_batch_s=placed.time_s,
        degrees=placement.degrees_text,
        devices=placement.devices,
        stages=tuple([len(stage.layers) for stage in placement.stages]),
        reason=None,
    )


def _one_slow(within: int, devices: int) -> list[int]:
    """Return the most stages of so many devices without and with the slow one, within others."""
    return [max(within // devices - 1, 0), min(within // devices, 1)]


def _link_level(cluster: Cluster, degradation: Degradation, placement: Placement) -> int:
    """Return the level of the degraded link."""
    level, count = degradation.link_level, len(cluster.levels)
    if level is None:
        return outermost_level(placement.devices, cluster)
    if level >= count:
        raise InputError(
            f"link_level is {level}, but the network of {cluster.name!r} has {count} levels, the "
            "innermost 0."
        )
    return level


def _without_lost_nodes(cluster: Cluster, degradation: Degradation) -> Cluster:
    """Return the devices that are left when spare nodes have taken the place of lost ones."""
    size, lost = cluster.levels[0].group_size, degradation.lost_nodes
    if lost == degradation.spare_nodes == 0:
        return cluster
    if size is None or len(cluster.levels) == 1:
        raise InputError(
            f"lost_nodes is {lost} and spare_nodes {degradation.spare_nodes}, but the network of "
            f"{cluster.name!r} has one level, and no nodes."
        )
    gone = max(lost - degradation.spare_nodes, 0) * size
    if gone >= cluster.devices:
        raise InputError(
            f"lost_nodes is {lost}, but of {cluster.devices} devices in nodes of {size} with "
            f"{degradation.spare_nodes} spare nodes, none are left."
        )
    return replace(cluster, devices=cluster.devices - gone)


def _with_fewer_replicas(
    problem: PlacementProblem, placement: Placement
) -> Placement | InfeasibleError:
    """Return the same stages with as many replicas as are fastest, or why none fit.

    Parameters
    ----------
    problem
        On the devices that are left.
    placement
        Needs more of them.
    """
    training, degrees = problem.training, placement.degrees.as_replicas
    each, step = degrees.pipeline * degrees.tensor, training.replica_step(degrees.tensor)
    step = math.lcm(step, min(training.zero_group, degrees.data) or 1)
    most = problem.cluster.devices // each // step * step
    if most == 0:
        return InfeasibleError(
            f"{placement.degrees_text} needs at least {each * step} devices, but "
            f"{problem.cluster.devices} are left."
        )
    # Of those that run equally many microbatches, the fewest; half of them are slower anyway.
    counts = np.arange(step, most + 1, step)[-(-most // step) // 2 :]
    microbatches = training.microbatches(counts)
    fewest = counts[np.append(True, microbatches[1:] != microbatches[:-1])]
    sizes = tuple([len(stage.layers) for stage in placement.stages])
    even = training.interleave > 1 or placement.pipeline_schedule == "zb-v"
    answers: list[Placement] = []
    failure = None
    for data in sorted({*fewest.tolist(), most}, reverse=True):
        try:
            fewer = degrees._replace(data=data, expert=1)
            answers.append(solve_placement(problem, fewer, None if even else sizes))
        except InfeasibleError as error:
            failure = failure or error
    best = min(answers, key=lambda each: each.time_per_batch_s, default=None)
    return best or failure or InfeasibleError("No placement fits.")
