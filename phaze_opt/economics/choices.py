"""What those who pay for a cluster state; what they leave open is a range."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from phaze_opt.checked import check_fields
from phaze_opt.choices import NetworkPricing
from phaze_opt.codec import FILE_SUFFIXES, from_builtins, read_document
from phaze_opt.economics.constants import grids
from phaze_opt.errors import InputError, look_up
from phaze_opt.printing import short_repr


@dataclass(frozen=True, repr=False)
class Economics:
    """The choices; ``None`` for the low, central and high value of ``data/parts.toml``.

    Attributes
    ----------
    grid
        Whose electricity runs the cluster, for its carbon: a name of ``data/parts.toml``.
    grid_g_per_kwh
        Its grams of CO2 equivalent per kWh, instead of those of ``grid``.
    energy_usd_per_kwh
        Price of electricity.
    pue
        Power of the whole building over that of its nodes.
    lifetime_years
        For how long the cluster trains; it is worth nothing afterwards.
    margin
        Price of a chip over what it costs to make, alike for all chips that are compared.
    volume
        Number of chips that share one mask set and one design.
    host_usd, network_usd
        What a device adds for its share of host and network.
    network
        ``share``: that of the network is the same whatever network is evaluated; ``levels``: it
        follows from the switches, cables and transceivers of the levels of that network
        (`phaze_opt.network.bill.network_bill`), price and power.
    devices_per_rack
        Devices whose power `max_power_w_rack` of a study limits together.

    Raises
    ------
    InputError
        If a number is not positive, ``pue`` or ``margin`` is below 1, the grid is unknown, or
        ``network_usd`` is stated beside levels that have prices of their own.
    """

    grid: str = "world"
    grid_g_per_kwh: float | None = None
    energy_usd_per_kwh: float | None = None
    pue: float | None = None
    lifetime_years: float | None = None
    margin: float = 1.0
    volume: float = 1e6
    host_usd: float | None = None
    network_usd: float | None = None
    devices_per_rack: int = 32
    network: NetworkPricing = "share"

    def __post_init__(self) -> None:
        check_fields(self)
        look_up(grids(), self.grid, "grid")
        free = ("grid_g_per_kwh", "energy_usd_per_kwh", "host_usd", "network_usd")
        for name, value in vars(self).items():
            if value is None or name in ("grid", "network"):
                continue
            least = 1.0 if name in ("pue", "margin") else 0.0
            if not (least <= value < math.inf and (value > 0.0 or name in free)):
                allowed = f"at least {least:g}" if least or name in free else "positive"
                raise InputError(f"{name} is {value:g}, but it must be {allowed} and finite.")
        if self.network == "levels" and self.network_usd is not None:
            raise InputError(
                f"network_usd is {self.network_usd:g} and network is levels, which have prices of "
                "their own; leave one out."
            )

    __repr__ = short_repr

    @property
    def grid_kg_per_kwh(self) -> float:
        """Kilograms of CO2 equivalent per kWh of the cluster."""
        stated = self.grid_g_per_kwh
        return (grids()[self.grid] if stated is None else stated) / 1000.0


STANDARD = Economics()
"""Nobody states anything."""


def read_economics(text: str) -> Economics:
    """Return the choices that a text states: a file, or ``grid=europe,margin=7``.

    Raises
    ------
    InputError
        If a name is unknown or a value is not allowed.
    NotFoundError
        If there is no such file.
    """
    if text.endswith(FILE_SUFFIXES):
        what = f"economics file {text}"
        return from_builtins(read_document(Path(text), "economics file"), Economics, what)
    stated: dict[str, str | float | int] = {}
    for pair in filter(None, text.split(",")):
        name, separator, value = (part.strip() for part in pair.partition("="))
        if not separator:
            raise InputError(
                f"economics is {pair!r}, but it must be a file, or numbers as grid=europe,margin=7."
            )
        stated[name] = _number(value)
    return from_builtins(stated, Economics, "economics")


def _number(text: str) -> str | float | int:
    """Read a number, where it is one."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text
