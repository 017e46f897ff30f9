"""The grid of a space: a point as one index per axis, counted from the axis's lower end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from phaze_opt.errors import InputError

Coordinates = tuple[int, ...]
"""A point as one index per axis; the choices of a category are counted as they are listed."""

_NEAR = 1e-6
"""Largest distance of a stored value from its place, in steps: floats are rounded."""


@dataclass(frozen=True)
class Grid:
    """The axes of a space by name, and the number of values of each.

    Raises
    ------
    InputError
        If an axis is continuous.
    """

    axes: Mapping[str, BaseDistribution]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, space: Mapping[str, BaseDistribution]) -> Grid:
        """Sort the axes by name, whatever their order in the spec."""
        axes = dict(sorted(space.items()))
        return cls(axes, tuple(_size(name, axis) for name, axis in axes.items()))

    @property
    def points(self) -> int:
        """Number of points."""
        return math.prod(self.sizes)

    def coordinates(self, params: Mapping[str, Any]) -> Coordinates | None:
        """Turn parameters into indices; ``None`` if they are not a point of the grid."""
        indices = [
            _index(axis, size, params[name]) if name in params else None
            for (name, axis), size in zip(self.axes.items(), self.sizes, strict=True)
        ]
        known = tuple(index for index in indices if index is not None)
        return known if len(known) == len(indices) else None

    def params(self, point: Coordinates) -> dict[str, Any]:
        """Turn indices into parameters; the inverse of `coordinates`."""
        pairs = zip(self.axes.items(), point, strict=True)
        return {name: _value(axis, index) for (name, axis), index in pairs}

    def point(self, rank: int) -> Coordinates:
        """Return the point of a rank, 0 to ``points`` - 1: its digits, one base per axis."""
        digits = []
        for size in reversed(self.sizes):
            rank, digit = divmod(rank, size)
            digits.append(digit)
        return tuple(reversed(digits))

    def jumped(self, point: Coordinates, draws: np.random.Generator) -> Coordinates:
        """Draw half of the axes of a point anew."""
        moved = set(draws.permutation(len(point))[: len(point) // 2].tolist())
        return tuple(
            int(draws.integers(size)) if axis in moved else index
            for axis, (index, size) in enumerate(zip(point, self.sizes, strict=True))
        )


def _size(name: str, axis: BaseDistribution) -> int:
    """Count the values of an axis."""
    if isinstance(axis, CategoricalDistribution):
        return len(axis.choices)
    assert isinstance(axis, IntDistribution | FloatDistribution)
    if axis.step is None:
        raise InputError(f"The axis {name} has no step, but this sampler needs one on every axis.")
    # The upper end is a whole number of steps away; the division of floats is rounded.
    return round((axis.high - axis.low) / axis.step) + 1


def _index(axis: BaseDistribution, size: int, value: Any) -> int | None:
    """Return the index of a value on its axis; ``None`` if it is not there."""
    if isinstance(axis, CategoricalDistribution):
        return axis.choices.index(value) if value in axis.choices else None
    assert isinstance(axis, IntDistribution | FloatDistribution) and axis.step is not None
    steps = (value - axis.low) / axis.step
    index = round(steps)
    return index if 0 <= index < size and abs(steps - index) < _NEAR else None


def _value(axis: BaseDistribution, index: int) -> Any:
    """Return the value at an index of an axis."""
    if isinstance(axis, CategoricalDistribution):
        return axis.choices[index]
    if isinstance(axis, IntDistribution):
        return axis.low + index * axis.step
    assert isinstance(axis, FloatDistribution) and axis.step is not None
    return min(axis.low + index * axis.step, axis.high)
