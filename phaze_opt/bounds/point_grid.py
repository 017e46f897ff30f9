"""All points of a space with allowed chips: options, sizes of the HBM, architectures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phaze_opt.bounds.space_chips import SpaceChips, allowed_chips, option_indices
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.space import DesignPoint, point_at

Place = tuple[int, int, int]
"""Option, size of the HBM and architecture of a point."""


@dataclass(frozen=True, eq=False)
class PointGrid:
    """All points of a space: combinations of options, sizes of the HBM, architectures.

    Attributes
    ----------
    options
        Combinations of the axes that do not belong to the chip: the index of the value by axis.
    """

    study: ResolvedStudy
    chips: SpaceChips
    options: Sequence[dict[str, int]]

    @classmethod
    def of(cls, study: ResolvedStudy) -> PointGrid:
        """Return the points of a study whose chip is buildable and within the limits."""
        return cls(study, allowed_chips(study), option_indices(study.spec.space))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of options, sizes and architectures."""
        return len(self.options), len(self.chips.hbm_sizes), len(self.chips)

    @property
    def points(self) -> int:
        """Number of points."""
        options, sizes, architectures = self.shape
        return options * sizes * architectures

    def point(self, option: int, size: int, architecture: int) -> DesignPoint:
        """Return the point of an option, a size of the HBM and an architecture."""
        indices = {**self.options[option], **self.chips.point_indices(architecture, size)}
        return point_at(self.study.spec.space, indices)
