"""A run on several kinds of device: a pipeline, each stage of which is on one of them.

The fastest placement is that on one kind alone, or a pipeline over several
(`phaze_opt.placement.kinds`). Kinds whose chips are equal are one kind, so that the answer is that
of `phaze_opt.evaluation.evaluate` for all devices. Devices may stay unused; all of them count in
MFU and in what is said per device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.batch_energy import batch_energy_by_level_j
from phaze_opt.economics.choices import STANDARD
from phaze_opt.errors import InputError
from phaze_opt.evaluation import (
    Evaluation,
    evaluate_one,
    place_on_slice,
    with_range,
)
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import static_power_w
from phaze_opt.network.cluster import outermost_level
from phaze_opt.passes.layers import DegreeCost, LayerEvaluation
from phaze_opt.passes.scheduled import ScheduleCache
from phaze_opt.placed_figures import OfDevices, evaluation_of, peak_flops_per_s
from phaze_opt.placement.kinds import solve_kinds
from phaze_opt.placement.placement_problem import Placement
from phaze_opt.point import CostedPoint, Point, cost_point

_MOST_KINDS = 2


@dataclass(frozen=True)
class DeviceKind:
    """Devices of one kind.

    Attributes
    ----------
    name, accelerator
        The chip, and what it is called.
    devices
        How many there are.
    """

    name: str
    accelerator: Accelerator
    devices: int


def evaluate_kinds(
    point: Point, kinds: Sequence[DeviceKind], cache: ScheduleCache | None = None
) -> Evaluation:
    """Estimate, schedule and place one training run on several kinds of device.

    Parameters
    ----------
    point
        What is run, on a network that joins all of them; its accelerator does not count.
    kinds
        The devices. Those of a kind fill whole nodes, the units of the network's innermost level.
    cache
        As for `phaze_opt.evaluation.evaluate`.

    Returns
    -------
    Evaluation
        Infeasible ones too, with the reason.

    Raises
    ------
    InputError
        If numbers of devices do not add up, or an option does not go with several kinds.
    """
    known: ScheduleCache = {} if cache is None else cache
    _check(point, kinds)
    merged = _merged(kinds)
    if len(merged) == 1:
        whole = replace(point, accelerator=merged[0].accelerator)
        return with_range(whole, evaluate_one(whole, known), known)
    if len(merged) > _MOST_KINDS:
        names = ", ".join(kind.name for kind in merged)
        raise InputError(
            f"The kinds of device are {names}, but a pipeline is over at most {_MOST_KINDS}."
        )
    alone = [place_on_slice(cost_point(_alone(point, kind), known), known) for kind in merged]
    costed = [cost_point(replace(point, accelerator=each.accelerator), known) for each in merged]
    placed = [each.placement for _, each in alone]
    times_s = [math.inf if each is None else each.time_per_batch_s for each in placed]
    first = min(range(len(merged)), key=lambda kind: times_s[kind])
    found, bound_s = solve_kinds(
        [each.problem for each in costed],
        lambda devices: [kind.devices // devices for kind in merged],
        # Devices of a kind stand together.
        outermost_level(point.cluster.devices, point.cluster),
        times_s[first],
    )
    bounds_s = [each.bound_s for each in placed if each is not None and each.bound_s is not None]
    bound_s = min(bound_s, *bounds_s, math.inf)
    if found is not None:
        return _evaluation(found.placement.searched(bound_s), found.kinds, merged, costed)
    best = placed[first]
    if best is not None:
        own = (first,) * best.pipeline
        return _evaluation(best.searched(bound_s), own, merged, costed)
    nearest = min(range(len(merged)), key=lambda kind: alone[kind][1].violation)
    names = " and ".join(kind.name for kind in merged)
    return replace(
        alone[nearest][1],
        reason=f"Nothing fits over {names}; on {merged[nearest].name} alone: "
        f"{alone[nearest][1].reason}",
        area_mm2=None,
        area_chip_mm2=None,
        tdp_w=None,
    )


def _check(point: Point, kinds: Sequence[DeviceKind]) -> None:
    """Refuse what is not placed over several kinds of device."""
    training, cluster = point.training, point.cluster
    counts = [kind.devices for kind in kinds]
    for kind in kinds:
        if kind.devices < 1:
            raise InputError(
                f"There are {kind.devices} devices of {kind.name}, but there must be at least 1."
            )
    if sum(counts) != cluster.devices:
        raise InputError(
            f"devices is {cluster.devices}, but the kinds of device have "
            f"{' + '.join(map(str, counts))}, which is {sum(counts)}; it must be as many."
        )
    if cluster.levels[0].is_direct and len(cluster.levels) == 1:
        raise InputError(
            f"The network {cluster.name!r} is one {cluster.levels[0].topology}, but several kinds "
            "of device need a switch between them."
        )
    node = cluster.levels[0].group_size or 1
    for kind in kinds if len(cluster.levels) > 1 else ():
        if kind.devices % node:
            raise InputError(
                f"There are {kind.devices} devices of {kind.name}, but those of a kind must fill "
                f"whole nodes of {node}."
            )
    refused = {
        "a given placement": point.placement != "solve",
        "recompute solve": training.recompute == "solve",
        "interleave": training.interleave > 1,
        f"pipeline_schedule {training.pipeline_schedule}": training.splits_backward,
        "expert_parallel, expert_tensor_parallel or context_parallel": not (
            training.has_tensor_groups_only
        ),
        "zero_group": training.zero_group > 0,
        "power_limit_w": point.power_limit_w is not None,
        "economics": point.economics != STANDARD,
    }
    for option, is_given in refused.items():
        if is_given:
            raise InputError(f"Several kinds of device do not go with {option}; leave it out.")


def _merged(kinds: Sequence[DeviceKind]) -> list[DeviceKind]:
    """Return the kinds that differ."""
    by_chip: dict[Accelerator, DeviceKind] = {}
    for kind in kinds:
        same = by_chip.get(kind.accelerator)
        devices = kind.devices + (same.devices if same else 0)
        by_chip[kind.accelerator] = replace(same or kind, devices=devices)
    return list(by_chip.values())


def _alone(point: Point, kind: DeviceKind) -> Point:
    """Return the run on the devices of one kind."""
    cluster = replace(point.cluster, devices=kind.devices)
    return replace(point, accelerator=kind.accelerator, cluster=cluster)


def _evaluation(
    solved: Placement,
    own: Sequence[int],
    kinds: Sequence[DeviceKind],
    costed: Sequence[CostedPoint],
) -> Evaluation:
    """Say what follows from a placement.

    Parameters
    ----------
    solved, own
        The placement, and the kind of each stage.
    kinds, costed
        All kinds, and the run on each of them.
    """
    training = costed[0].problem.training
    layers: list[LayerEvaluation] = []
    energy_j: Counter[str] = Counter()
    for kind in sorted(set(own)):
        stages = [stage for stage, which in zip(solved.stages, own, strict=True) if which == kind]
        part = replace(solved, pipeline=len(stages), stages=tuple(stages))
        cost, chip = costed[kind].costs[solved.tensor], kinds[kind].accelerator
        held = _held(cost, part)
        energy_j.update(batch_energy_by_level_j(part, cost, chip, training, held))
        layers += [replace(each, name=f"{each.name} on {kinds[kind].name}") for each in held]
    each_peak = [peak_flops_per_s(kind.accelerator, training) for kind in kinds]
    counts = [kind.devices for kind in kinds]
    static_w = [static_power_w(kinds[kind].accelerator) for kind in own]
    devices = OfDevices(
        peak_flops_per_s=float(np.dot(each_peak, counts)) / sum(counts),
        energy_by_level_j=dict(energy_j),
        static_power_w=sum(static_w) / len(static_w),
        layers=tuple(layers),
    )
    evaluation = evaluation_of(solved, costed[own[0]], devices)
    return replace(evaluation, accelerators=tuple(kinds[kind].name for kind in own))


def _held(cost: DegreeCost, part: Placement) -> list[LayerEvaluation]:
    """Return the distinct layers that some stages hold, with how many of each they do."""
    of_name = dict(cost.variant.nodes)
    counts = Counter(of_name[name] for stage in part.stages for name in stage.layers)
    return [replace(each, count=counts[i]) for i, each in enumerate(cost.layers) if counts[i]]
