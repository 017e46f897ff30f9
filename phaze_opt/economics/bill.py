"""What an evaluated run costs, takes and emits, each low, central and high."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phaze_opt.economics.carbon import embodied_kg
from phaze_opt.economics.choices import STANDARD, Economics
from phaze_opt.economics.constants import CASES, Case
from phaze_opt.economics.network_share import network_share
from phaze_opt.economics.operation import device_usd, wall_power_w
from phaze_opt.economics.package import MADE, Parts, cheapest_dies, package_usd
from phaze_opt.economics.rates import rates_of
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import static_power_w
from phaze_opt.network.bill import NetworkBill, network_bill
from phaze_opt.network.cluster import Cluster
from phaze_opt.ranged import Ranged

_MILLION = 1e6


@dataclass(frozen=True)
class Bill:
    """Dollars, watts and carbon of a run.

    Attributes
    ----------
    devices
        Of the cluster, used or not.
    silicon_mm2, dies_per_package
        Area of all dies of a chip, and how many they are.
    device_usd
        Price of a device by part: what its chip costs to make (``silicon``, ``memory``,
        ``packaging``, ``loss``, ``assembly``), ``margin``, ``design``, and its share of ``host``
        and ``network``.
    embodied_kg
        Carbon of making it, by part.
    power_w
        Average power of a device of the cluster at the wall, by part; see
        `phaze_opt.economics.operation.wall_power_w`.
    wall_power_w_per_device
        Their sum.
    tco_usd
        Price of all devices of the cluster, and their electricity over the lifetime.
    carbon_kg
        Embodied carbon of all devices, and that of their electricity over the lifetime.
    cost_usd_per_million_samples, carbon_kg_per_million_samples
        These over the samples of a lifetime, times a million.
    network
        What the network of all devices is built of, whether it is counted or not; only where
        something is stated about the economics.
    """

    devices: int
    silicon_mm2: float
    dies_per_package: int
    device_usd: Mapping[str, Ranged]
    embodied_kg: Mapping[str, Ranged]
    power_w: Mapping[str, Ranged]
    wall_power_w_per_device: Ranged
    tco_usd: Ranged
    carbon_kg: Ranged
    cost_usd_per_million_samples: Ranged
    carbon_kg_per_million_samples: Ranged
    network: NetworkBill | None = None

    @property
    def device_price_usd(self) -> float:
        """Price of a device with its shares of host and network."""
        return sum(part.central for part in self.device_usd.values())

    @property
    def made_usd(self) -> float:
        """What the chip costs to make."""
        return sum(self.device_usd[part].central for part in MADE)


@dataclass(frozen=True)
class _Case:
    """The figures of a bill with the constants of one case."""

    device_usd: Mapping[str, float]
    embodied_kg: Mapping[str, float]
    power_w: Mapping[str, float]
    totals: tuple[float, ...]


def bill_of(
    chip: Accelerator,
    economics: Economics,
    cluster: Cluster,
    throughput_samples_per_s: float,
    energy_by_level_j: Mapping[str, float],
    time_per_batch_s: float,
) -> Bill | None:
    """Return the bill of a run; ``None`` where the area of the chip's dies is unknown.

    Parameters
    ----------
    chip, economics
        The chip, and what those who pay state.
    cluster
        All of it: unused devices are paid too.
    throughput_samples_per_s, time_per_batch_s
        Of the run.
    energy_by_level_j
        Dynamic energy of a batch on all devices by level.
    """
    parts = Parts.of(chip)
    if parts is None:
        return None
    dies, devices = cheapest_dies(parts), cluster.devices
    static_w = static_power_w(chip)
    by_level_w = {
        level: joules / time_per_batch_s / devices for level, joules in energy_by_level_j.items()
    }

    def in_case(case: Case) -> _Case:
        made, network = package_usd(parts, dies, case), network_share(economics, cluster, case)
        priced = {**made, **device_usd(sum(made.values()), parts, economics, network, case)}
        embodied = embodied_kg(parts, dies, case)
        rates = rates_of(parts, dies, static_w, economics, cluster, case)
        watts = wall_power_w(by_level_w, static_w, network, case)
        _, usd, kg = rates.of_sample(
            devices / throughput_samples_per_s,
            sum(by_level_w.values()) * devices / throughput_samples_per_s,
        )
        samples = throughput_samples_per_s * rates.lifetime_s
        totals = sum(watts.values()), usd * samples, kg * samples, usd * _MILLION, kg * _MILLION
        return _Case(priced, embodied, watts, totals)

    cases = [in_case(case) for case in CASES]
    totals = [_ranged(values) for values in zip(*[case.totals for case in cases], strict=True)]
    wall_w, tco_usd, carbon_kg, sample_usd, sample_kg = totals
    return Bill(
        devices,
        float(parts.silicon_mm2),
        int(dies),
        _by_part([case.device_usd for case in cases]),
        _by_part([case.embodied_kg for case in cases]),
        _by_part([case.power_w for case in cases]),
        wall_w,
        tco_usd,
        carbon_kg,
        sample_usd,
        sample_kg,
        None if economics == STANDARD else network_bill(cluster, devices),
    )


def _by_part(cases: list[Mapping[str, float]]) -> dict[str, Ranged]:
    """Join the parts of the cases."""
    return {part: _ranged([case[part] for case in cases]) for part in cases[0]}


def _ranged(values: list[float] | tuple[float, ...]) -> Ranged:
    """Join the values of the cases; over a longer life a cluster costs more, a sample less."""
    return Ranged(min(values), values[CASES.index("central")], max(values))
