"""The order of designs, which decides in every table, plot and answer.

Designs are ordered by throughput in logarithmic bins of 0.1 %, then by the smaller HBM, the smaller
area, the lower energy, the exact throughput, and the configuration itself. Without the bins the
largest HBM would always win by a tiny margin, because HBM costs no area in the area model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from phaze_opt.errors import InputError

THROUGHPUT_BIN = 1e-3
"""Relative width of a bin of equal throughput."""


@dataclass(frozen=True)
class Rank:
    """The properties that decide between two feasible designs.

    Attributes
    ----------
    energy_j
        Per batch; ``None`` where it was not computed, which counts as zero.
    configuration
        The design itself, so that no two different designs are equal.
    """

    throughput_samples_per_s: float
    hbm_bytes: int
    area_mm2: float
    energy_j: float | None
    configuration: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not (math.isfinite(self.throughput_samples_per_s) and self.throughput_samples_per_s > 0):
            raise InputError(
                f"The throughput is {self.throughput_samples_per_s}, but a design that is ranked "
                "must be feasible."
            )

    @property
    def key(self) -> tuple[Any, ...]:
        """Sort key; the best design has the smallest."""
        return (
            -throughput_bin(self.throughput_samples_per_s),
            self.hbm_bytes,
            self.area_mm2,
            self.energy_j or 0.0,
            -self.throughput_samples_per_s,
            self.configuration,
        )


Ranked = TypeVar("Ranked")


def throughput_bin(throughput_samples_per_s: float) -> int:
    """Return the logarithmic bin, of `THROUGHPUT_BIN` relative width, that holds a throughput."""
    return math.floor(math.log(throughput_samples_per_s) / math.log1p(THROUGHPUT_BIN))


def best_of(ranked: Iterable[tuple[Rank, Ranked]]) -> Ranked | None:
    """Return the item with the best rank, or ``None`` where there are no items."""
    first = min(ranked, key=lambda pair: pair[0].key, default=None)
    return None if first is None else first[1]
