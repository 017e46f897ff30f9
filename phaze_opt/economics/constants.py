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
    """A wafer of 300 mm in one process; ``fab_kwh``, ``gas_g``, ``material_g`` are per cm²."""

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
    """What stands around the dies; see ``data/parts.toml``."""

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
    """Carbon of parts, in kilograms of CO2 equivalent."""

    fab_grid: str
    package_kg_per_die: float
    memory_kg_per_gb: float
    cooler_kg: float
    board_kg: float
    host_kg: float


@dataclass(frozen=True)
class System:
    """What a device takes beside itself, and what is lost on the way to it."""

    host_usd: float
    network_usd: float
    host_w: float
    network_w: float
    fan_share: float
    supply_efficiency: float
    board_efficiency: float
    joules: float


@dataclass(frozen=True)
class Operation:
    """What a user may state instead, see `phaze_opt.economics.choices.Economics`."""

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
