"""The rates of a chip, and the least ones of many chips, which bounds are made of."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.economics.carbon import embodied_kg
from phaze_opt.economics.choices import Economics
from phaze_opt.economics.constants import Case
from phaze_opt.economics.die import Number
from phaze_opt.economics.network_share import network_share
from phaze_opt.economics.operation import Rates, device_usd
from phaze_opt.economics.package import Parts, cheapest_dies, numbers_of_dies, package_usd
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import static_power_w
from phaze_opt.network.cluster import Cluster


def rates_of(
    parts: Parts[Number],
    dies: Number,
    static_w: Number,
    economics: Economics,
    cluster: Cluster,
    case: Case,
) -> Rates[Number]:
    """Return the rates of a chip in some number of dies, on a network."""
    made_usd = _sum(package_usd(parts, dies, case))
    network = network_share(economics, cluster, case)
    price_usd = made_usd + _sum(device_usd(made_usd, parts, economics, network, case))
    embodied = _sum(embodied_kg(parts, dies, case))
    return Rates.of(price_usd, embodied, static_w, economics, network, case)


def _sum(parts: Mapping[str, Number]) -> Number:
    """Return the sum of parts, which begins with the first one: 0 has no shape."""
    return reduce(add, parts.values())


def central_rates(chip: Accelerator, economics: Economics, cluster: Cluster) -> Rates[float] | None:
    """Return the central rates of a chip; ``None`` where the area of its dies is unknown."""
    parts = Parts.of(chip)
    if parts is None:
        return None
    dies, static_w = cheapest_dies(parts), static_power_w(chip)
    return rates_of(parts, dies, static_w, economics, cluster, "central")


def least_rates(
    parts: Parts[FloatArray], static_w: FloatArray, economics: Economics, cluster: Cluster
) -> Rates[FloatArray]:
    """Return central rates that no chip of these parts, or of larger ones, is below.

    The price and the carbon are each those of the number of dies in which they are least.
    """
    every = [
        rates_of(parts, n, static_w, economics, cluster, "central") for n in numbers_of_dies(parts)
    ]
    usd_per_s = np.min([rates.usd_per_s for rates in every], axis=0)
    kg_per_s = np.min([rates.kg_per_s for rates in every], axis=0)
    return every[0].with_rates(usd_per_s, kg_per_s)
