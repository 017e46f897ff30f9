"""Changes of a training run that take less memory, as the options of the command line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phaze_opt.choices import Recompute
from phaze_opt.degrees import Degrees
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.placement.expert import expert_degrees
from phaze_opt.point import Point
from phaze_opt.precision import PRIMARY_WEIGHTS
from phaze_opt.units import GIB, MIB

_RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
_WIDEST_TENSOR = 64
_EXCLUSIVE = (frozenset(("placement", "tensor")), frozenset(("placement", "pipeline")))
"""A placement that is found anew leaves nothing to widen or deepen."""


@dataclass(frozen=True, eq=False)
class Step:
    """One change.

    Attributes
    ----------
    kind
        ``recompute``, ``zero``, ``fp8_primary_weights``, ``sequence_parallel``, ``microbatch``,
        ``pipeline_schedule``, ``tensor``, ``pipeline`` or ``placement`` (which is then found anew).
    training
        Fields of `Training` that change.
    degree
        The new tensor or pipeline degree.
    """

    kind: str
    training: Mapping[str, Any] = field(default_factory=dict)
    degree: int = 1

    def placed(self, point: Point) -> Point:
        """Change where the layers of a point are, and nothing else."""
        if self.kind == "placement":
            return replace(point, placement="solve", stages=None)
        if self.kind not in ("tensor", "pipeline"):
            return point
        degrees = given_degrees(point)._replace(**{self.kind: self.degree})
        # As many replicas stay as the devices then hold.
        sharing = degrees.tensor * point.training.context_parallel
        most = point.cluster.devices // (degrees.pipeline * sharing)
        degrees = degrees._replace(data=max(1, min(degrees.data, most)))
        stages = point.stages if degrees.pipeline == given_degrees(point).pipeline else None
        return replace(point, placement=degrees, stages=stages)


def applied(point: Point, *steps: Step) -> Point:
    """Make changes of a point together; its workload is still the old one.

    Raises
    ------
    InputError
        If the training cannot have them, as some go with others only.
    """
    options = {name: value for step in steps for name, value in step.training.items()}
    changed = replace(point, training=replace(point.training, **options))
    for step in steps:
        changed = step.placed(changed)
    return changed


def given_degrees(point: Point) -> Degrees:
    """Return the degrees of a point whose placement is not to be found."""
    if isinstance(point.placement, tuple):
        return Degrees(*point.placement)
    return expert_degrees(point.workload.model, point.cluster.devices)


def single_steps(point: Point) -> Iterator[Step]:
    """Yield every change of a point, the stronger ones of a kind later.

    Some a training may have together with others only, see `applied`.
    """
    training = point.training
    for recompute in _RECOMPUTES[_RECOMPUTES.index(training.recompute) + 1 :]:
        # Captured selective recompute does not say by name what can wait on the host.
        if recompute == "full" or not training.offloaded_names:
            yield Step("recompute", {"recompute": recompute, "recompute_parts": ""})
    for zero in range(training.zero + 1, 4):
        yield Step("zero", {"zero": zero})
    held = training.precision in PRIMARY_WEIGHTS and not training.fp8_primary_weights
    if held and OPTIMIZERS[training.optimizer].state_bytes:
        yield Step("fp8_primary_weights", {"fp8_primary_weights": True})
    if not training.sequence_parallel:
        yield Step("sequence_parallel", {"sequence_parallel": True})
    microbatch = training.microbatch // 2
    while microbatch >= 1:
        yield Step("microbatch", {"microbatch": microbatch})
        microbatch //= 2
    if training.pipeline_schedule != "1f1b":
        yield Step("pipeline_schedule", {"pipeline_schedule": "1f1b", "interleave": 1})
    if point.placement != "solve":
        yield from _degree_steps(point)
        if training.zero_group == 0:
            yield Step("placement")


def _degree_steps(point: Point) -> Iterator[Step]:
    """Yield wider tensor-parallel groups and deeper pipelines, by doubling."""
    degrees, devices = given_degrees(point), point.cluster.devices
    pipeline, tensor = degrees.pipeline, degrees.tensor
    layers = len(point.workload.variants[0].nodes)
    wider = 2 * tensor
    while wider * pipeline <= devices and wider <= _WIDEST_TENSOR:
        yield Step("tensor", degree=wider)
        wider *= 2
    deeper = 2 * pipeline
    while deeper * tensor <= devices and deeper <= layers:
        yield Step("pipeline", degree=deeper)
        deeper *= 2


def pairs(steps: Sequence[Step]) -> Iterator[tuple[Step, Step]]:
    """Yield two changes of different kinds that make sense together."""
    for first, second in itertools.combinations(steps, 2):
        kinds = frozenset((first.kind, second.kind))
        if len(kinds) == 2 and kinds not in _EXCLUSIVE:
            yield first, second


def strongest(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the strongest change of every kind."""
    by_kind = {step.kind: step for step in steps}
    if "placement" in by_kind:
        by_kind = {k: step for k, step in by_kind.items() if k not in ("tensor", "pipeline")}
    return tuple(by_kind.values())


def changed_options(before: Point, after: Point) -> tuple[str, ...]:
    """Write the options of the command line in which two points differ."""
    old, new = before.training, after.training
    options = [
        f"--{name.replace('_', '-')} {getattr(new, name)}"
        for name in ("recompute", "zero", "microbatch", "pipeline_schedule", "interleave")
        if getattr(new, name) != getattr(old, name)
    ]
    if new.recompute_parts != old.recompute_parts:
        options.append(f'--recompute-parts "{new.recompute_parts}"')
    options += [
        f"--{name.replace('_', '-')}"
        for name in ("sequence_parallel", "fp8_primary_weights")
        if getattr(new, name) and not getattr(old, name)
    ]
    if after.placement != before.placement:
        placement = after.placement
        text = placement if isinstance(placement, str) else Degrees(*placement).text
        options.append(f"--placement {text}")
    if after.stages != before.stages:
        options.append("--stages ''")
    if after.accelerator.hbm_bytes != before.accelerator.hbm_bytes:
        options.append(f"--set hbm_gib={after.accelerator.hbm_bytes // GIB}")
    if after.accelerator.glb_bytes != before.accelerator.glb_bytes:
        options.append(f"--set glb_mib={after.accelerator.glb_bytes // MIB}")
    return tuple(options)
