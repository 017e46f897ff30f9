"""What a limit of the power excludes: many chips at once, under one combination of options.

A batch that keeps the limit takes at least its energy over the power of all devices. The fastest
placement is evaluated, whether it keeps the limit or not; so a chip is infeasible where even the
slowest placement that may be the fastest takes too much.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray


def seconds_within_w(joules: FloatArray, limit_w: FloatArray) -> FloatArray:
    """Return the time in which energies keep a limit of the power; infinite where that is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(limit_w > 0.0, joules / limit_w, np.inf)


@dataclass(eq=False)
class PowerLimit:
    """Seconds in which batches keep a limit of the power, collected over all placements.

    Parameters
    ----------
    shape
        Sizes of the HBM, and architectures.
    likely
        See `phaze_opt.bounds.study_bounds.StudyBounds`.

    Attributes
    ----------
    cooled_s : (architectures,)
        The least time in which any placement keeps the limit.
    most_s : (sizes, architectures)
        The fastest placement takes no longer.
    fastest_s : (sizes, architectures)
        The time in which the placement of the least time keeps the limit.
    """

    shape: tuple[int, ...]
    likely: float | None
    cooled_s: FloatArray = field(init=False)
    most_s: FloatArray = field(init=False)
    fastest_s: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.cooled_s = np.full(self.shape[1], np.inf)
        self.most_s, self.fastest_s = np.full(self.shape, np.inf), np.zeros(self.shape)

    def slowed_s(
        self, size: int, least_s: FloatArray, own_s: FloatArray, best_s: FloatArray
    ) -> FloatArray:
        """Return the least times of placements of one tensor degree that keep the limit.

        Parameters
        ----------
        size
            Size of the HBM.
        least_s, own_s : (architectures,)
            Least time of these placements, and the time in which they keep the limit.
        best_s : (architectures,)
            Least time of the placements before.
        """
        self.cooled_s = np.minimum(self.cooled_s, own_s)
        if self.likely is None:
            return np.maximum(least_s, own_s)
        self.fastest_s[size] = np.where(least_s < best_s, own_s, self.fastest_s[size])
        return least_s

    def fastest(self, size: int, most_s: FloatArray) -> None:
        """Take in the time that the fastest of some placements takes at most."""
        self.most_s[size] = np.minimum(self.most_s[size], most_s)

    def excluded(self, least_s: FloatArray) -> BoolArray:
        """Return whether chips surely take too much power; with ``likely``, whether they may."""
        hot = self.cooled_s > self.most_s
        if self.likely is not None:
            hot |= self.fastest_s * self.likely > least_s
        return np.asarray(hot)
