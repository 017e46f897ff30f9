"""The constants of ``data`` at their low, central or high values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

from phaze_opt.choices import ProcessNodeName
from phaze_opt.codec import data_table, from_builtins

Case = Literal["low", "central", "high"]
"""Of what is computed: with the low constants a cost is low."""

CASES: tuple[Case, ...] = ("low", "central", "high")

_PARTS = "parts.toml"
Record = TypeVar("Record")


@dataclass(frozen=True)
class Wafer:
    """A wafer of 300 mm in one process (``data/wafers.toml``).

    Attributes
    ----------
    usd
        Price of a processed wafer.
    defects_per_cm2
        Density of defects.
    mask_set_usd, design_usd
        Of one mask set, and of one design, which all chips of a volume share.
    fab_kwh, gas_g, material_g
        Electricity of the fab, and CO2 equivalent of its gases and materials, per cm².
    confidence
        How far to trust them.
    """

    usd: float
    defects_per_cm2: float
    mask_set_usd: float
    design_usd: float
    fab_kwh: float
    gas_g: float
    material_g: float
    confidence: str


@dataclass(frozen=True)
class Package:
    """What stands around the dies (``data/parts.toml``).

    Attributes
    ----------
    defect_clustering, harvested_share
        See `phaze_opt.economics.die.sold_share`.
    die_to_die_share
        Area of the links between several dies, as a share of each die.
    interposer_usd_per_mm2, organic_usd_per_mm2
        Of what carries several dies or stacks, and of what carries one die.
    attached_share
        Of good packages, for each die or stack that is attached.
    assembly_usd
        Test, assembly and the rest, per chip.
    memory_usd_per_gb
        By kind.
    """

    defect_clustering: float
    harvested_share: float
    die_to_die_share: float
    interposer_usd_per_mm2: float
    organic_usd_per_mm2: float
    attached_share: float
    assembly_usd: float
    memory_usd_per_gb: Mapping[str, float]


@dataclass(frozen=True)
class Carbon:
    """Carbon of parts, in kilograms of CO2 equivalent (``data/parts.toml``).

    Attributes
    ----------
    fab_grid
        Name of the grid whose electricity fabs have.
    package_kg_per_die, memory_kg_per_gb
        Of packaging a die, and of memory.
    cooler_kg, board_kg, host_kg
        Of a device's cooler and board, and of its share of a host.
    """

    fab_grid: str
    package_kg_per_die: float
    memory_kg_per_gb: float
    cooler_kg: float
    board_kg: float
    host_kg: float


@dataclass(frozen=True)
class System:
    """What a device takes beside itself, and what is lost on the way to it (``data/parts.toml``).

    Attributes
    ----------
    host_usd, network_usd, host_w, network_w
        Price and power of its shares of a host and of the network, whatever network that is.
    fan_share
        Power of fans over that of all else in a node.
    supply_efficiency, board_efficiency
        Of the power supply of a node, and of the voltage regulators of a device.
    true_over_modelled_energy
        Of the dynamic energy of operators.
    """

    host_usd: float
    network_usd: float
    host_w: float
    network_w: float
    fan_share: float
    supply_efficiency: float
    board_efficiency: float
    true_over_modelled_energy: float


@dataclass(frozen=True)
class Operation:
    """What a user may state instead; `phaze_opt.economics.choices.Economics` says what it means."""

    energy_usd_per_kwh: float
    pue: float
    lifetime_years: float


@cache
def wafer(node: ProcessNodeName, case: Case) -> Wafer:
    """Return the constants of a process."""
    return _record(data_table("economics", "wafers.toml")[node], Wafer, case)


@cache
def package(case: Case) -> Package:
    """Return the constants of packages."""
    table = data_table("economics", _PARTS)
    named = {name: table[name] for name in Package.__dataclass_fields__}
    return _record(named, Package, case)


@cache
def carbon(case: Case) -> Carbon:
    """Return the carbon of parts."""
    return _record(data_table("economics", _PARTS)["carbon"], Carbon, case)


@cache
def system(case: Case) -> System:
    """Return the constants of nodes and network."""
    return _record(data_table("economics", _PARTS)["system"], System, case)


@cache
def operation(case: Case) -> Operation:
    """Return the constants of running a cluster."""
    return _record(data_table("economics", _PARTS)["operation"], Operation, case)


@cache
def grids() -> Mapping[str, float]:
    """Return grams of CO2 equivalent per kWh by grid."""
    grams: Mapping[str, float] = data_table("economics", _PARTS)["grid_g_per_kwh"]
    return grams


def _record(table: Mapping[str, Any], kind: type[Record], case: Case) -> Record:
    """Choose from every list of three the value of the case."""
    return from_builtins(_chosen(table, CASES.index(case)), kind, f"data of {kind.__name__}")


def _chosen(value: Any, place: int) -> Any:
    """Choose from lists, inside of tables too."""
    if isinstance(value, Mapping):
        return {name: _chosen(each, place) for name, each in value.items()}
    return value[place] if isinstance(value, list) else value
