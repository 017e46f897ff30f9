"""A point as people name it: models, chips and networks by name or path, or as objects.

The command line and Python read it here, so that both find the same point: a model is captured at
the microbatch and the tensor degrees that training and placement need.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from phaze_opt.checked import Named, shown
from phaze_opt.choices import AttentionKind, FusionMode
from phaze_opt.degrees import Degrees
from phaze_opt.economics.choices import Economics, read_economics
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.point import Placing, Point
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload

if TYPE_CHECKING:
    from phaze_opt.workload.zoo import LoadWorkload

_PLACEMENTS = "solve, expert, PPxDPxTP, PPxDPxTPxEP or PPxDPxTPxEPxCP, for example 4x256x1"

PlacingText = Annotated[Placing | str, _PLACEMENTS]
"""A placement, or its degrees as text: ``"4x256x1"``."""


StagesText = Annotated[tuple[int, ...] | str, "a number of layers for each stage, as 3,4,4,3"]
"""Layers of the stages of a pipeline, or the same as text; none as empty text."""


class NamedPoint(NamedTuple):
    """What names stand for.

    Attributes
    ----------
    point
        The objects.
    load
        Loads the model under other options; ``None`` of a workload that was given as an object.
    """

    point: Point
    load: LoadWorkload | None


def named_point(
    workload: Workload | Named,
    accelerator: Accelerator | Named,
    cluster: Cluster | Named,
    training: Training,
    placement: PlacingText = "solve",
    *,
    devices: int | None = None,
    sequence: int | None = None,
    attention: AttentionKind | None = None,
    frozen: Sequence[str] = (),
    lora_rank: int = 0,
    lora_targets: Sequence[str] = (),
    fusion: FusionMode | None = None,
    power_limit_w: float | None = None,
    lane_rate: float = 1.0,
    prove: bool = False,
    stages: StagesText | None = None,
    economics: Economics | Named = "",
) -> NamedPoint:
    """Look up what is named, and capture the model where it is.

    Parameters
    ----------
    workload, accelerator, cluster
        Objects, or names or paths as `phaze_opt.workload.zoo.load_workload`,
        `phaze_opt.hardware.presets.load_accelerator` and
        `phaze_opt.network.presets.load_cluster` take them.
    devices
        Of a network that is named.
    sequence, attention
        Of a model that is named, if not its own.
    frozen, lora_rank, lora_targets
        What of a model that is named is not trained, see `phaze_opt.workload.trained.Trained`.
    training, placement, fusion, power_limit_w, lane_rate, prove, stages, economics
        As `phaze_opt.evaluation.evaluate` takes them.

    Raises
    ------
    InputError
        If a name is unknown, an option belongs to a name but an object is given, or the number of
        devices is missing.
    NotFoundError
        If there is no such file.
    """
    degrees = read_placement(placement)
    if isinstance(degrees, Degrees):
        training = _with_degree(training, degrees, "expert_parallel", degrees.expert)
        training = _with_degree(training, degrees, "context_parallel", degrees.context)
        degrees = degrees._replace(expert=1, context=1)
    for name, value in (("power_limit_w", power_limit_w), ("lane_rate", lane_rate)):
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{name} is {shown(value)}, but it must be positive and finite.")
    # Who gives objects loads nothing that reads names.
    if not isinstance(accelerator, Accelerator):
        from phaze_opt.hardware.presets import load_accelerator

        accelerator = load_accelerator(accelerator)
    cluster = _cluster(cluster, devices)
    load = None
    if not isinstance(workload, Workload):
        from phaze_opt.workload.trained import trained_parts
        from phaze_opt.workload.zoo import model_loader

        trained = trained_parts(frozen, lora_rank, lora_targets)
        load = model_loader(os.fspath(workload), sequence, attention, trained)
        workload = load(training, degrees[2] if isinstance(degrees, tuple) else None)
    else:
        _refuse_beside_object(
            "workload",
            sequence=sequence,
            attention=attention,
            frozen=frozen or None,
            lora_rank=lora_rank or None,
            lora_targets=lora_targets or None,
        )
    if not isinstance(economics, Economics):
        economics = read_economics(os.fspath(economics))
    point = Point(
        workload,
        accelerator,
        cluster,
        training,
        degrees,
        fusion,
        power_limit_w,
        lane_rate,
        prove,
        stages=_read_stages(stages, degrees),
        economics=economics,
    )
    return NamedPoint(point, load)


def _with_degree(
    training: Training,
    degrees: Degrees,
    name: Literal["expert_parallel", "context_parallel"],
    degree: int,
) -> Training:
    """Take the devices that share experts, or sequences, from the degrees that state some."""
    stated: int = getattr(training, name)
    if degree == 1:
        return training
    if stated not in (1, degree):
        raise InputError(
            f"{name} is {stated}, but the placement {degrees.text} states {degree}; give one of "
            "them."
        )
    changed: dict[str, Any] = {name: degree}
    return replace(training, **changed)


def read_placement(placement: PlacingText) -> Placing:
    """Return a placement, of which degrees may be text.

    Raises
    ------
    InputError
        If it is neither ``solve`` nor ``expert`` nor three degrees.
    """
    if placement == "solve":
        return "solve"
    if placement == "expert":
        return "expert"
    degrees = Degrees.of_text(placement) if isinstance(placement, str) else Degrees(*placement)
    if degrees is None or min(degrees) < 1:
        raise InputError(f"placement is {placement!r}, but it must be {_PLACEMENTS}.")
    return degrees


def _read_stages(stages: StagesText | None, placement: Placing) -> tuple[int, ...] | None:
    """Return the layers of stages, which may be text and belong to given degrees."""
    if not stages:
        return None
    sizes: tuple[int, ...] | None = None
    if isinstance(stages, str):
        texts = [text.strip() for text in stages.split(",")]
        if all(text.isdecimal() for text in texts):
            sizes = tuple(map(int, texts))
    elif min(stages) >= 0:
        sizes = stages
    if sizes is None:
        raise InputError(
            f"stages is {shown(stages)}, but it must be a number of layers for each stage, for "
            "example 3,4,4,3."
        )
    if isinstance(placement, str):
        raise InputError(
            f"stages is {','.join(map(str, sizes))}, but the placement is {placement}; give its "
            f"degrees, for example {len(sizes)}x1x1."
        )
    return sizes


def _cluster(cluster: Cluster | Named, devices: int | None) -> Cluster:
    """Return a network with its devices."""
    if isinstance(cluster, Cluster):
        _refuse_beside_object("cluster", devices=devices)
        return cluster
    if devices is None:
        raise InputError(
            f"devices is missing: say how many accelerators the network {str(cluster)!r} joins, "
            "for example devices=64."
        )
    from phaze_opt.network.presets import load_cluster

    return load_cluster(cluster, devices)


def _refuse_beside_object(name: str, **options: object) -> None:
    """Refuse options of a name where an object is given, which has its own."""
    for option, value in options.items():
        if value is not None:
            raise InputError(
                f"{option} is {shown(value)}, but the {name} is an object that has its own; give "
                f"the {name} by its name, or leave {option} out."
            )
