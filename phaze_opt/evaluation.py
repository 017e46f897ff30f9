"""The answer for one point, with its breakdown, and as the data that scripts read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phaze_opt.codec import to_builtins
from phaze_opt.placement.problem import Placement
from phaze_opt.scheduling.problem import ScheduleStatus


@dataclass(frozen=True)
class ScheduleProof:
    """What is known about a schedule: proven or not, the bound, and the relative gap."""

    status: ScheduleStatus
    bound_s: float
    gap: float


@dataclass(frozen=True)
class LayerEvaluation:
    """One distinct layer at the chosen tensor-parallel width, per device and microbatch.

    Attributes
    ----------
    name, count
        The layer, and how often it occurs.
    forward_s, backward_s, recompute_s
        Makespans; the backward is without the recompute before it.
    parameters, stash_bytes
        On one device; the stash under the chosen recompute.
    forward_schedule, backward_schedule
        Proofs of the two makespans.
    bound_by_s
        Operator seconds of one microbatch by the resource that binds each operator, in the mode
        that its schedule chose.
    energy_by_level_j
        Dynamic energy of one microbatch on one device by `ENERGY_LEVELS`, recompute included.
    """

    name: str
    count: int
    forward_s: float
    backward_s: float
    recompute_s: float
    parameters: int
    stash_bytes: int
    forward_schedule: ScheduleProof
    backward_schedule: ScheduleProof
    bound_by_s: Mapping[str, float]
    energy_by_level_j: Mapping[str, float]


@dataclass(frozen=True)
class Evaluation:
    """The answer for one point, with its breakdown.

    Attributes
    ----------
    feasible, reason, violation
        Whether a placement fits; if not, a sentence and the relative excess.
    throughput_samples_per_s
        Global batch over time per batch; 0 if infeasible.
    time_per_batch_s
        ``None`` if infeasible.
    area_mm2
        Of one accelerator under ``phaze-22nm``.
    mfu
        Model FLOPs (no recompute; attention in full) over nominal peak of ALL devices and time.
    placement
        Degrees and stages; ``None`` if infeasible.
    layers
        The distinct layers at the chosen width (the widest, if infeasible).
    time_breakdown_s
        By kind, summing to ``time_per_batch_s``.
    unused_devices
        Devices that no stage runs on.
    energy_by_level_j
        Dynamic energy of one batch on all devices by `ENERGY_LEVELS`; empty if infeasible.
    power_w_per_device
        Average dynamic power of the devices in use.
    static_power_w_per_device
        Leakage, which is not part of the two above.
    """

    feasible: bool
    reason: str | None
    throughput_samples_per_s: float
    time_per_batch_s: float | None
    area_mm2: float
    mfu: float
    placement: Placement | None
    layers: tuple[LayerEvaluation, ...]
    time_breakdown_s: Mapping[str, float] = field(default_factory=dict)
    unused_devices: int = 0
    energy_by_level_j: Mapping[str, float] = field(default_factory=dict)
    power_w_per_device: float = 0.0
    static_power_w_per_device: float = 0.0
    violation: float = 0.0

    @property
    def energy_j_per_batch(self) -> float:
        """Dynamic energy of one batch on all devices; 0 if infeasible."""
        return sum(self.energy_by_level_j.values())

    @property
    def proven_schedule_share(self) -> float:
        """Share of the layers' schedules that are proven optimal."""
        proofs = [
            proof
            for layer in self.layers
            for proof in (layer.forward_schedule, layer.backward_schedule)
        ]
        return sum(proof.status == "optimal" for proof in proofs) / len(proofs)

    @property
    def bound_by_share(self) -> dict[str, float]:
        """Share of all operator seconds by binding resource, largest first."""
        total: dict[str, float] = {}
        for layer in self.layers:
            for resource, seconds in layer.bound_by_s.items():
                total[resource] = total.get(resource, 0.0) + layer.count * seconds
        whole = sum(total.values())
        ranked = sorted(total.items(), key=lambda item: -item[1])
        return {resource: seconds / whole for resource, seconds in ranked if seconds > 0.0}


def evaluation_to_json_dict(evaluation: Evaluation) -> dict[str, Any]:
    """Return the evaluation as the plain data that ``evaluate --json`` prints."""
    plain: dict[str, Any] = to_builtins(evaluation)
    if evaluation.placement is not None:
        for stage, source in zip(
            plain["placement"]["stages"], evaluation.placement.stages, strict=True
        ):
            stage["memory_bytes"]["total"] = source.memory_bytes.total
    plain["bound_by_share"] = evaluation.bound_by_share
    plain["energy_j_per_batch"] = evaluation.energy_j_per_batch
    return plain
