"""The answer for one point: the record, and what its properties say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phaze_opt.checked import check_fields
from phaze_opt.choices import EvaluationPlotKind
from phaze_opt.degraded import Degraded
from phaze_opt.economics.bill import Bill
from phaze_opt.on_demand import deferrable
from phaze_opt.passes.layers import LayerEvaluation
from phaze_opt.placement.placement_problem import Misfit, Placement
from phaze_opt.printing import DrawsPlots, PrintsAsTables
from phaze_opt.units import format_number, format_seconds


@deferrable("layers", "time_per_batch_range_s", "bill")
@dataclass(frozen=True, repr=False)
class Evaluation(PrintsAsTables, DrawsPlots):
    """The answer for one point, with its breakdown.

    Attributes
    ----------
    feasible, reason, violation
        Whether a placement fits; if not, a sentence and the relative excess.
    throughput_samples_per_s
        Global batch over time per batch; 0 if infeasible.
    time_per_batch_s
        ``None`` if infeasible.
    area_mm2, area_chip_mm2
        Of one accelerator under the area models ``phaze-22nm`` and ``chip``; ``None`` where a
        buffer lies outside their table.
    mfu
        Model FLOPs (no recompute; attention in full) over nominal peak of ALL devices and time; the
        peak is that of the precision in which linear layers multiply. What is frozen has no weight
        gradients to count.
    placement
        Degrees and stages; ``None`` if infeasible.
    layers
        The distinct layers at the chosen tensor degree (the widest, if infeasible).
    time_breakdown_s
        By kind, summing to ``time_per_batch_s``.
    unused_devices
        Devices that no stage runs on.
    padding_samples
        Samples trained beyond the global batch, because the replicas' microbatches do not divide
        it; throughput and MFU do not count them.
    energy_by_level_j
        Dynamic energy of one batch on all devices by `ENERGY_LEVELS`; empty if infeasible.
    power_w_per_device
        Average dynamic power of the devices in use; 0 if no placement fits the memory.
    static_power_w_per_device
        Leakage, which is not part of the two above.
    tdp_w
        What the accelerator's board is rated for; ``None`` where that is not known.
    misfit
        The stage that does not fit its memory; ``None`` if that is not the reason.
    hfu
        As ``mfu``, with the FLOPs that run again before the backward.
    mfu_causal
        As ``mfu``, with causal attention counted by the part that its mask leaves, about half,
        where one fused core skips the rest.
    tflops_per_device
        Model FLOPs per second of ALL devices, in TFLOP/s; ``None`` if infeasible.
    tokens_per_s_per_device
        Of ALL devices; ``None`` also where a sample is no sequence, or one of unknown length.
    recompute
        The recompute that was found where it was asked for: ``none``, ``full``, ``selective``, or
        the parts that run again, see `phaze_opt.training.Training`; else ``None``.
    time_per_batch_range_s
        Time per batch on the fastest and on the slowest chips of the name, see
        `phaze_opt.hardware.ranges`; ``None`` if infeasible, if the chip states no range, and of the
        designs of a study and of `evaluate_many`, to which `with_range` adds it.
    degraded
        The run on a degraded cluster, where that was asked for and the whole one runs it.
    accelerators
        On which kind of device each stage is, where there are several kinds
        (`phaze_opt.device_kinds`): areas and the rated power are then not known, numbers per device
        are averages, and layers are counted on each kind.
    bill
        Dollars, watts at the wall and carbon; ``None`` if infeasible, or where the area of the
        chip's dies is unknown.
    """

    feasible: bool
    reason: str | None
    throughput_samples_per_s: float
    time_per_batch_s: float | None
    area_mm2: float | None
    mfu: float
    placement: Placement | None
    layers: tuple[LayerEvaluation, ...]
    time_breakdown_s: Mapping[str, float] = field(default_factory=dict)
    unused_devices: int = 0
    energy_by_level_j: Mapping[str, float] = field(default_factory=dict)
    power_w_per_device: float = 0.0
    static_power_w_per_device: float = 0.0
    violation: float = 0.0
    padding_samples: int = 0
    misfit: Misfit | None = None
    hfu: float | None = None
    tflops_per_device: float | None = None
    tokens_per_s_per_device: float | None = None
    mfu_causal: float | None = None
    area_chip_mm2: float | None = None
    tdp_w: float | None = None
    recompute: str | None = None
    time_per_batch_range_s: tuple[float, float] | None = None
    degraded: Degraded | None = None
    accelerators: tuple[str, ...] | None = None
    bill: Bill | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        if self.placement is None or self.time_per_batch_s is None:
            return f"Evaluation(infeasible: {self.reason})"
        return (
            f"Evaluation({format_number(self.throughput_samples_per_s)} samples/s, "
            f"{format_seconds(self.time_per_batch_s)} per batch, MFU {self.mfu:.1%}, "
            f"{self.placement.degrees_text})"
        )

    def plot(self, kind: EvaluationPlotKind = "time") -> Any:
        """Draw it, as a ``plotly.graph_objects.Figure`` that a notebook shows.

        Parameters
        ----------
        kind
            ``time`` (of a batch, by what it is spent on), ``memory`` (of the fullest device) or
            ``binding`` (the share of the operators' time that each resource binds).

        Raises
        ------
        InputError
            If there is no such plot.
        """
        return self._drawn(kind)

    @property
    def energy_j_per_batch(self) -> float:
        """Dynamic energy of one batch on all devices; 0 if infeasible."""
        return sum(self.energy_by_level_j.values())

    @property
    def is_above_tdp(self) -> bool:
        """Whether a device takes more on average, leakage included, than its board is rated for."""
        if self.tdp_w is None:
            return False
        return self.power_w_per_device + self.static_power_w_per_device > self.tdp_w

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
