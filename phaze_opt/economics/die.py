"""Dies on a wafer, and the share of them that is sold.

Every function takes numbers or arrays.
"""

from __future__ import annotations

import math
from typing import TypeVar

from phaze_opt.arrays import FloatArray
from phaze_opt.economics.constants import Package, Wafer

Number = TypeVar("Number", float, FloatArray)

WAFER_MM = 300.0
"""Diameter of a wafer."""


def dies_per_wafer(die_mm2: Number) -> Number:
    """Return how many square dies a wafer holds, less those that its edge cuts.

    π (d/2)² / A − π d / √(2 A) for a diameter d and an area A (Hennessy and Patterson).
    """
    cut: Number = math.pi * WAFER_MM / (2.0 * die_mm2) ** 0.5
    return math.pi * (WAFER_MM / 2.0) ** 2 / die_mm2 - cut


def sold_share(
    die_mm2: Number, defects_per_cm2: float, clustering: float, harvested_share: float = 0.0
) -> Number:
    """Return the share of dies that is sold.

    (1 + D A / α)^(−α) of defects per area D that cluster by α (negative binomial), where those in
    the harvested share of the area cost nothing: the unit that they hit is left out.
    """
    critical = die_mm2 / 100.0 * (1.0 - harvested_share) * defects_per_cm2
    share: Number = (1.0 + critical / clustering) ** -clustering
    return share


def die_usd(die_mm2: Number, wafer: Wafer, package: Package) -> Number:
    """Return what a die that is sold costs, in US dollars."""
    sold = dies_per_wafer(die_mm2) * sold_share_of(die_mm2, wafer, package)
    return wafer.usd / sold


def sold_share_of(die_mm2: Number, wafer: Wafer, package: Package) -> Number:
    """Return `sold_share` with the constants of a process."""
    return sold_share(
        die_mm2, wafer.defects_per_cm2, package.defect_clustering, package.harvested_share
    )
