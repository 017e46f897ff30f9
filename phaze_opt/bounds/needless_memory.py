"""Points with more HBM than any placement can fill: a smaller HBM gives an equally fast point."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from phaze_opt.bounds.space_chips import SpaceChips
from phaze_opt.bounds.study_bounds import StudyBounds
from phaze_opt.spec.axis_names import kind_of
from phaze_opt.spec.constraints import with_memory_margin
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.space import DesignPoint


@dataclass(eq=False)
class NeedlessMemory:
    """Finds the points of a study that are as fast with a smaller HBM.

    Parameters
    ----------
    study, study_bounds, chips
        The study, the bounds of its points, and its chips.
    """

    study: ResolvedStudy
    study_bounds: StudyBounds
    chips: SpaceChips
    _most_bytes: dict[Hashable, float] = field(default_factory=dict)

    def has(self, point: DesignPoint) -> bool:
        """Whether a smaller searched size of the HBM holds all that any placement needs."""
        if len(self.chips.hbm_sizes) < 2:
            return False
        design = self.study.design(point)
        chip = with_memory_margin(design.accelerator, self.study.spec.constraints)
        smaller = self.chips.hbm_sizes[self.chips.hbm_sizes < chip.hbm_bytes]
        if len(smaller) == 0:
            return False
        # The memory that a placement needs depends on the axes that do not belong to the chip.
        key = tuple((name, value) for name, value in point.values if kind_of(name) != "chip")
        if key not in self._most_bytes:
            self._most_bytes[key] = self.study_bounds.most_held_bytes(design)
        usable_bytes = replace(chip, hbm_bytes=int(smaller.max())).usable_memory_bytes
        return usable_bytes >= self._most_bytes[key]
