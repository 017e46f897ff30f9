"""A number that sources give differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Ranged:
    """A figure with its low and its high value."""

    low: float
    central: float
    high: float

    def times(self, factor: float) -> Self:
        """Return all three numbers times a factor."""
        return type(self)(self.low * factor, self.central * factor, self.high * factor)

    def plus(self, other: Ranged) -> Self:
        """Return the sum, as if all were low, or high, at once."""
        return type(self)(
            self.low + other.low, self.central + other.central, self.high + other.high
        )
