"""Least seconds of every way to place a model, for all boxes of a space: which ways lose anyway.

A *way* is one tensor degree under one choice of the solved options, on the whole network or on a
slice of it. The bound of a chip is that of its best way, so that a way whose least time on the
chip's box is no less than what another way takes at least on the chip itself need not be looked at:
the bound stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.space_chips import SpaceChips
from phaze_opt.on_demand import cached_property

MOST_BOXES = 4096
"""Of a space; the boxes of larger ones are not all bounded."""

MOST_BYTES = 2**28
"""Of kept times; what there is no room for is looked at on every chip."""

_MARGIN = 1e-9
"""A way loses only if it is longer by this, so that no rounding decides."""


@dataclass(eq=False)
class BoxTimes:
    """Least seconds of ways, for all boxes of a space, each computed once.

    Parameters
    ----------
    space
        The chips.
    """

    space: SpaceChips
    _of_ways: dict[Hashable, FloatArray] = field(default_factory=dict)
    _kept_bytes: int = 0

    @cached_property
    def boxes(self) -> BoundedChips:
        """All boxes."""
        return BoundedChips.boxes(self.space)

    def of(
        self, way: Hashable, chips: BoundedChips, bound: Callable[[BoundedChips], FloatArray]
    ) -> FloatArray | None:
        """Return the least seconds of a way on the boxes of chips: (sizes, architectures).

        ``None`` where there is no room for them, or there are too many boxes.

        Parameters
        ----------
        way
            All that tells it from others.
        chips
            Of the space.
        bound
            Bounds boxes from below: (sizes, boxes).
        """
        if way not in self._of_ways:
            if self._kept_bytes > MOST_BYTES or len(self.space.table.chips) > MOST_BOXES:
                return None
            self._of_ways[way] = bound(self.boxes)
            self._kept_bytes += self._of_ways[way].nbytes
        return self._of_ways[way][:, self.space.boxes_of(chips.runs[:, 0])]


def loses(least_s: FloatArray | None, known_s: FloatArray) -> bool:
    """Whether a way surely takes every chip more than what is known of others."""
    return least_s is not None and bool((least_s >= known_s * (1.0 + _MARGIN)).all())
