"""Share of a device in price and power of its network: a constant, or that of all levels."""

from __future__ import annotations

from dataclasses import dataclass

from phaze_opt.economics.choices import Economics
from phaze_opt.economics.constants import Case, system
from phaze_opt.network.bill import network_bill
from phaze_opt.network.cluster import Cluster


@dataclass(frozen=True)
class NetworkShare:
    """The share of one device.

    Attributes
    ----------
    usd
        Price.
    power_w
        Power, before the losses of the supply.
    """

    usd: float
    power_w: float


def network_share(economics: Economics, cluster: Cluster, case: Case) -> NetworkShare:
    """Return the share of a device in the network of a cluster.

    Parameters
    ----------
    economics
        Whose ``network`` says what is counted.
    cluster
        All of it: unused devices are joined too.
    case
        Of the constants.
    """
    if economics.network == "levels":
        bill = network_bill(cluster, cluster.devices)
        each = 1.0 / cluster.devices
        usd, power_w = bill.usd.times(each), bill.power_w.times(each)
        return NetworkShare(getattr(usd, case), getattr(power_w, case))
    own = system(case)
    stated = economics.network_usd
    return NetworkShare(own.network_usd if stated is None else stated, own.network_w)
