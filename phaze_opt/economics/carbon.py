"""What making a chip emits, in kilograms of CO2 equivalent."""

from __future__ import annotations

from collections.abc import Mapping

from phaze_opt.economics.constants import Case, Wafer, carbon, grids, package, wafer
from phaze_opt.economics.die import Number, sold_share_of
from phaze_opt.economics.package import Parts, die_area_mm2


def die_kg_per_cm2(of_wafer: Wafer, grid_g_per_kwh: float, sold: Number) -> Number:
    """Return the carbon of a die by its area.

    The electricity of the fab, its gases and its materials, over the share of dies that is sold
    (ACT, Gupta et al., ISCA 2022).
    """
    grams = grid_g_per_kwh * of_wafer.fab_kwh + of_wafer.gas_g + of_wafer.material_g
    return grams / 1000.0 / sold


def embodied_kg(parts: Parts[Number], dies: Number, case: Case) -> Mapping[str, Number]:
    """Return the carbon of a device on its board, and of its share of a host, by part."""
    own, of_wafer = carbon(case), wafer(parts.node, case)
    die_mm2 = die_area_mm2(parts, dies)
    sold = sold_share_of(die_mm2, of_wafer, package(case))
    per_cm2 = die_kg_per_cm2(of_wafer, grids()[own.fab_grid], sold)
    same = 0.0 * die_mm2
    return {
        "silicon": dies * die_mm2 / 100.0 * per_cm2,
        "memory": parts.memory_gib * own.memory_kg_per_gb,
        "packaging": dies * own.package_kg_per_die,
        "cooler": own.cooler_kg + same,
        "board": own.board_kg + same,
        "host": own.host_kg + same,
    }
