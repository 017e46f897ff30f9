"""What chips that are bounded together cost at least, by size of the HBM."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.economics.operation import Rates
from phaze_opt.economics.package import Parts
from phaze_opt.economics.rates import least_rates
from phaze_opt.hardware.energy import static_power_w
from phaze_opt.hardware.process_node import known_silicon_mm2, silicon_mm2
from phaze_opt.network.cluster import Cluster
from phaze_opt.on_demand import cached_property
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.objectives import ObjectiveKind

_SLACK = 1e-9
"""Relative margin of a limit: sums in another order are not above it."""


@dataclass(eq=False)
class PaidChips:
    """The chips, and what they cost.

    Attributes
    ----------
    study
        Their study.
    chips
        Single ones, or boxes.
    cluster
        Where they stand, all of it.
    """

    study: ResolvedStudy
    chips: BoundedChips = field(repr=False)
    cluster: Cluster = field(repr=False)

    @cached_property
    def rates(self) -> Rates[FloatArray]:
        """Central rates that no chip is below: (sizes, architectures).

        Of boxes the leakage is left out, and stacks count by their size alone.
        """
        chips, first = self.chips, self.chips.architectures[0]
        # Elements of the study may be larger than those that an evaluation pays for.
        least_mm2 = chips.area_mm2 / max(1.0, self.study.pe_scale)
        area_mm2 = silicon_mm2(least_mm2, first.process_node)
        if first.die_mm2 is not None:  # no chip of the space differs from the base
            area_mm2 = np.full_like(area_mm2, known_silicon_mm2(first))
        hbm_bytes = chips.hbm_bytes.astype(np.float64)
        rate = static_w = np.zeros(len(area_mm2))
        if not chips.rooflines:
            rate = chips.architectures.column("hbm_bytes_per_s")[:, 0]
            static_w = np.array([static_power_w(chip) for chip in chips.architectures])
        area_mm2 = np.broadcast_to(area_mm2, hbm_bytes.shape)
        parts = Parts.made_as(first, area_mm2, hbm_bytes, rate)
        return least_rates(parts, static_w, self.study.spec.economics, self.cluster)

    def worth(self, kind: ObjectiveKind, rates: FloatArray, joules: FloatArray) -> FloatArray:
        """Bound an objective of `PAID_OBJECTIVES` from above.

        Parameters
        ----------
        kind
            The objective.
        rates : (..., sizes, architectures)
            Most samples per second.
        joules : as ``rates``
            Least dynamic energy of a sample.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            wall_j, usd, _ = self.rates.of_sample(self.cluster.devices / rates, joules)
            least = usd if kind.name == "throughput_per_dollar" else wall_j
            return np.where(rates > 0.0, 1.0 / least, 0.0)

    def most_dynamic_w(self) -> FloatArray:
        """Return the most dynamic power of all devices within the limits of dollars and carbon."""
        spec = self.study.spec
        limits, rack = spec.constraints, spec.economics.devices_per_rack
        rack_w = limits.max_power_w_rack
        wall_w = None if rack_w is None else rack_w / rack * (1.0 + _SLACK)
        cost, carbon = (
            None if limit is None else limit * (1.0 + _SLACK)
            for limit in (limits.max_cost_usd, limits.max_carbon_kg)
        )
        return self.rates.most_dynamic_w(self.cluster.devices, cost, carbon, wall_w)
