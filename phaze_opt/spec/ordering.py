"""The order of designs in every table, plot and answer.

Designs are ordered by their value (throughput, or the first objective of the study) in logarithmic
bins of 0.1 %, then by the smaller HBM, the smaller area, the lower energy, the exact value, and the
configuration itself. Without bins the largest HBM would always win by a tiny margin, because the
area model does not charge for HBM.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from phaze_opt.errors import InputError

VALUE_BIN = 1e-3
"""Relative width of a bin of equal values."""


@dataclass(frozen=True)
class Rank:
    """The properties that order two feasible designs.

    Attributes
    ----------
    value
        Value of the first objective; positive.
    maximise
        Whether the larger value is better.
    energy_j
        Energy per batch of all workloads together; ``None``, if it was not computed, counts as 0.
    configuration
        The values of the design, so that no two different designs are equal.
    """

    value: float
    hbm_bytes: int
    area_mm2: float
    energy_j: float | None
    configuration: tuple[Any, ...]
    maximise: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise InputError(
                f"The value is {self.value}, but a design that is ranked must be feasible."
            )

    @property
    def key(self) -> tuple[Any, ...]:
        """Sort key; the best design has the smallest."""
        sign = -1 if self.maximise else 1
        return (
            sign * value_bin(self.value),
            self.hbm_bytes,
            self.area_mm2,
            self.energy_j or 0.0,
            sign * self.value,
            self.configuration,
        )


Ranked = TypeVar("Ranked")


def value_bin(value: float) -> int:
    """Return the logarithmic bin, of `VALUE_BIN` relative width, that holds a value."""
    return math.floor(math.log(value) / math.log1p(VALUE_BIN))


Head = tuple[float, int, float]
"""The first three parts of `Rank.key`, which follow from a bound."""


def head_of(merit: float, hbm_bytes: int, area_mm2: float, maximise: bool = True) -> Head:
    """Return the head of a design.

    Parameters
    ----------
    merit
        The value; its inverse if it is minimised.
    hbm_bytes, area_mm2, maximise
        As in `Rank`.
    """
    first = -value_bin(merit) if maximise else value_bin(1.0 / merit)
    return float(first), hbm_bytes, area_mm2


def least_merit(head: Head, maximise: bool = True) -> float:
    """Return the least merit of the bin of a head; the merits of better bins are larger."""
    return float((1.0 + VALUE_BIN) ** -(head[0] if maximise else head[0] + 1.0))


def best_of(ranked: Iterable[tuple[Rank, Ranked]]) -> Ranked | None:
    """Return the item with the best rank; ``None`` if there are no items."""
    first = min(ranked, key=lambda pair: pair[0].key, default=None)
    return None if first is None else first[1]
