"""What running a device takes: watts at the wall, dollars and carbon per second and per joule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.economics.choices import Economics
from phaze_opt.economics.constants import Case, operation, system, wafer
from phaze_opt.economics.die import Number
from phaze_opt.economics.network_share import NetworkShare
from phaze_opt.economics.package import Parts

SECONDS_PER_YEAR = 365.25 * 86400.0
J_PER_KWH = 3.6e6


def device_usd(
    made_usd: Number,
    parts: Parts[Number],
    economics: Economics,
    network: NetworkShare,
    case: Case,
) -> Mapping[str, Number]:
    """Return the price of a device by part, from what its chip costs to make, in US dollars.

    ``margin`` is of its maker; ``design`` is its share of one mask set and one design.
    """
    own, of_wafer = system(case), wafer(parts.node, case)
    same = 0.0 * made_usd
    design_usd = (of_wafer.mask_set_usd + of_wafer.design_usd) / economics.volume
    host = economics.host_usd
    return {
        "margin": made_usd * (economics.margin - 1.0),
        "design": design_usd + same,
        "host": (own.host_usd if host is None else host) + same,
        "network": network.usd + same,
    }


@dataclass(frozen=True)
class Rates(Generic[Number]):
    """What a cluster takes per second that a device is there, and per joule that operators take.

    Attributes
    ----------
    lifetime_s
        For how long it trains.
    wall_w, wall_j_per_j
        Power at the wall of a device that runs nothing, and joules there per joule of operators.
    usd_per_s, usd_per_j
        Price over the lifetime and electricity of a device that runs nothing; and of a joule of
        operators.
    kg_per_s, kg_per_j
        Carbon in the same way.
    """

    lifetime_s: float
    wall_w: Number
    wall_j_per_j: float
    usd_per_s: Number
    usd_per_j: float
    kg_per_s: Number
    kg_per_j: float

    @classmethod
    def of(
        cls,
        price_usd: Number,
        embodied_kg: Number,
        static_w: Number,
        economics: Economics,
        network: NetworkShare,
        case: Case,
    ) -> Rates[Number]:
        """Return the rates of a device of some price, embodied carbon, leakage and network."""
        own = operation(case)
        years = economics.lifetime_years or own.lifetime_years
        pue = economics.pue or own.pue
        usd_per_kwh = economics.energy_usd_per_kwh
        usd_per_kwh = own.energy_usd_per_kwh if usd_per_kwh is None else usd_per_kwh
        usd_per_j = pue * usd_per_kwh / J_PER_KWH
        kg_per_j = pue * economics.grid_kg_per_kwh / J_PER_KWH
        lifetime_s = years * SECONDS_PER_YEAR
        wall_w, wall_j_per_j = idle_wall_w(static_w, network, case), _wall_j_per_j(case)
        return Rates(
            lifetime_s=lifetime_s,
            wall_w=wall_w,
            wall_j_per_j=wall_j_per_j,
            usd_per_s=price_usd / lifetime_s + wall_w * usd_per_j,
            usd_per_j=wall_j_per_j * usd_per_j,
            kg_per_s=embodied_kg / lifetime_s + wall_w * kg_per_j,
            kg_per_j=wall_j_per_j * kg_per_j,
        )

    def with_rates(self, usd_per_s: Number, kg_per_s: Number) -> Rates[Number]:
        """Return the rates of a device of another price and embodied carbon."""
        return replace(self, usd_per_s=usd_per_s, kg_per_s=kg_per_s)

    def most_dynamic_w(
        self,
        devices: int,
        max_cost_usd: float | None,
        max_carbon_kg: float | None,
        max_wall_w: float | None,
    ) -> FloatArray:
        """Return the dynamic power of all devices with which limits are just kept.

        Negative where a cluster that runs nothing exceeds them, infinite without a limit.

        Parameters
        ----------
        devices
            Of the cluster.
        max_cost_usd, max_carbon_kg
            Of all devices and their electricity over the lifetime.
        max_wall_w
            Of one device at the wall.
        """
        wall_w = None if max_wall_w is None else devices * max_wall_w
        most_w = np.full(np.shape(self.usd_per_s), np.inf)
        for limit, per_s, per_j, span_s in (
            (max_cost_usd, self.usd_per_s, self.usd_per_j, self.lifetime_s),
            (max_carbon_kg, self.kg_per_s, self.kg_per_j, self.lifetime_s),
            (wall_w, self.wall_w, self.wall_j_per_j, 1.0),
        ):
            if limit is not None:
                left = np.asarray(limit / span_s - devices * per_s)
                # Where a joule takes nothing, any power is kept, or none.
                free = np.where(left >= 0.0, np.inf, -np.inf)
                most_w = np.minimum(most_w, left / per_j if per_j > 0.0 else free)
        return most_w

    def of_sample(self, device_s: Number, joules: Number) -> tuple[Number, Number, Number]:
        """Return joules at the wall, dollars and kilograms of a sample.

        All three grow with both: with the least of them they are least.

        Parameters
        ----------
        device_s
            Seconds per sample times all devices of the cluster.
        joules
            Dynamic energy of operators per sample.
        """
        return (
            self.wall_w * device_s + self.wall_j_per_j * joules,
            self.usd_per_s * device_s + self.usd_per_j * joules,
            self.kg_per_s * device_s + self.kg_per_j * joules,
        )


def wall_power_w(
    by_level_w: Mapping[str, float],
    static_w: float,
    network: NetworkShare,
    case: Case = "central",
) -> dict[str, float]:
    """Return the power of a device at the wall of its node, by part; they sum to that of `Rates`.

    Parameters
    ----------
    by_level_w
        Dynamic power by level of `phaze_opt.estimator.traffic.ENERGY_LEVELS`.
    static_w
        Leakage.
    network
        Its share of the network.
    case
        Of the constants.

    Returns
    -------
    Watts: ``dynamic`` on the chip, ``hbm``, ``network`` (its bytes, and its optics and switches),
    ``static``, ``conversion`` on the board, ``host``, ``supply`` (fans, and losses of the supply).
    """
    own = system(case)
    beside = "hbm", "network"
    chip = sum(watts for level, watts in by_level_w.items() if level not in beside)
    parts = {"dynamic": chip, **{level: by_level_w.get(level, 0.0) for level in beside}}
    parts = {level: own.true_over_modelled_energy * watts for level, watts in parts.items()} | {
        "static": static_w
    }
    board_w = sum(parts.values())
    parts["conversion"] = board_w * (1.0 / own.board_efficiency - 1.0)
    parts["host"] = own.host_w
    parts["network"] += network.power_w
    parts["supply"] = sum(parts.values()) * (_supply(case) - 1.0)
    return parts


def idle_wall_w(static_w: Number, network: NetworkShare, case: Case) -> Number:
    """Return the power at the wall of a device that runs nothing."""
    own = system(case)
    return (static_w / own.board_efficiency + own.host_w + network.power_w) * _supply(case)


def _wall_j_per_j(case: Case) -> float:
    """Return joules at the wall per joule of operators, as modelled."""
    own = system(case)
    return own.true_over_modelled_energy / own.board_efficiency * _supply(case)


def _supply(case: Case) -> float:
    """Return the power of a node over that of what stands in it."""
    own = system(case)
    return (1.0 + own.fan_share) / own.supply_efficiency
