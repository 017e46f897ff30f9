"""Constants that are fitted to measured rows: what is stated of each before, and found after."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from phaze_opt.arrays import FloatArray

Scale = Literal["logarithm", "linear", "root"]

Origin = Literal["fitted", "limited", "kept"]
"""Where a value comes from: ``fitted`` to the rows; ``kept`` as stated, which the rows accept or
say nothing about; or ``limited``, where they reject it but bound the constant on one side only:
then it is the value nearest to the stated one that they accept."""


@dataclass(frozen=True)
class Constant:
    """A constant to fit, and what physics allows it.

    Attributes
    ----------
    name
        Under which the prediction knows it.
    stated
        The value that it keeps where the rows do not determine it.
    lower, upper
        Bounds.
    prior
        Whether the stated value is a finding of its own, which only rows that reject it may change;
        otherwise it is a default, which any rows that determine the constant replace.
    scale
        In what the prediction is about linear: the constant's logarithm (then the bounds are
        positive), the constant itself, or its root.
    unit
        Of the value, for a person.
    """

    name: str
    stated: float
    lower: float
    upper: float
    prior: bool = True
    scale: Scale = "logarithm"
    unit: str = ""

    def coordinate(self, value: float) -> float:
        """Return what is searched: a logarithm above the lower bound, or a share of the range."""
        if self.scale == "logarithm":
            return math.log(value / self.lower)
        share = max(value - self.lower, 0.0) / (self.upper - self.lower)
        return math.sqrt(share) if self.scale == "root" else share

    def value(self, coordinate: float) -> float:
        """Return the value at a coordinate: the inverse of `coordinate`."""
        if self.scale == "logarithm":
            value = self.lower * math.exp(coordinate)
        else:
            share = max(coordinate, 0.0) ** 2 if self.scale == "root" else coordinate
            value = self.lower + share * (self.upper - self.lower)
        # Rounding must not take an end beyond what physics allows.
        return min(self.upper, max(self.lower, value))

    @property
    def ends(self) -> tuple[float, float]:
        """Coordinates of the bounds."""
        return self.coordinate(self.lower), self.coordinate(self.upper)


@dataclass(frozen=True)
class FittedConstant:
    """What the rows say about a constant.

    Attributes
    ----------
    name, unit
        See `Constant`.
    value, origin
        See `Origin`.
    standard_error
        In the unit of the value; ``None`` where the rows say nothing about the constant.
    determined
        Whether the rows alone determine it: whether that error is small.
    at_bound
        Whether the rows would rather have it beyond one of its bounds.
    """

    name: str
    unit: str
    value: float
    origin: Origin
    standard_error: float | None
    determined: bool
    at_bound: bool


@dataclass(frozen=True, eq=False)
class Fit:
    """Fitted constants and how well the rows are predicted with them.

    Attributes
    ----------
    constants
        In the order in which they were given.
    errors : (rows,)
        predicted / measured - 1.
    """

    constants: tuple[FittedConstant, ...]
    errors: FloatArray

    @property
    def values(self) -> dict[str, float]:
        """All constants by name."""
        return {constant.name: constant.value for constant in self.constants}

    @property
    def moved(self) -> dict[str, float]:
        """The constants that do not keep their stated value, by name."""
        return {c.name: c.value for c in self.constants if c.origin != "kept"}

    @property
    def mean_absolute_error(self) -> float:
        """Mean over the rows of the absolute relative error."""
        return float(np.abs(self.errors).mean())

    @property
    def bias(self) -> float:
        """Mean over the rows of the signed relative error."""
        return float(self.errors.mean())

    @property
    def worst_error(self) -> float:
        """The relative error that is largest in absolute value."""
        return float(self.errors[np.abs(self.errors).argmax()])
