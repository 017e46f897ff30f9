"""The axes of a space: the values of one searched number or word, and how a sampler sees them.

A power of two is searched as its exponent, an ordered integer: a sampler then knows that 64 lies
between 32 and 128. (Measured: with categorical values the same sampler finds slower designs.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from phaze_opt.checked import shown
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.limits import is_finite
from phaze_opt.on_demand import cached_property

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Scalar = bool | int | float | str
"""A value of an axis."""

MOST_VALUES = 100_000
"""Largest number of values of an axis."""

RULE = "rule"
"""The size of a private buffer follows from the cores; see `Accelerator`."""

_LOG2 = "log2_"
_PRODUCT = re.compile(r"(?:\s*([0-9.eE+-]+)\s*\*)?\s*([a-z][a-z0-9_.]*)\s*")


@dataclass(frozen=True)
class PowerRange:
    """All powers of two from ``min`` to ``max``, both included."""

    min: int
    max: int

    def __post_init__(self) -> None:
        for name in ("min", "max"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 2**62 or value & (value - 1):
                raise InputError(
                    f"{name} is {value!r}, but without a step it must be a power of two, from 1 to "
                    "2^62."
                )
        _require_order(self.min, self.max)

    def __repr__(self) -> str:
        return f"({self.min}, {self.max})"

    @property
    def exponents(self) -> tuple[int, int]:
        """Smallest and largest binary logarithm."""
        return self.min.bit_length() - 1, self.max.bit_length() - 1

    @cached_property
    def values(self) -> tuple[int, ...]:
        """The powers of two themselves."""
        low, high = self.exponents
        return tuple(2**exponent for exponent in range(low, high + 1))

    def parameter(self, name: str) -> tuple[str, BaseDistribution]:
        """Return the name and the distribution under which Optuna sees the axis."""
        from optuna.distributions import IntDistribution

        return _LOG2 + name, IntDistribution(*self.exponents)

    def to_parameter(self, index: int) -> Any:
        """Return the value of Optuna's parameter for the value of this index."""
        return self.exponents[0] + index

    def to_index(self, parameter: object) -> int | None:
        """Reverse `to_parameter`; ``None`` if the axis has no such value."""
        low, high = self.exponents
        if type(parameter) is not int or not low <= parameter <= high:
            return None
        return parameter - low


@dataclass(frozen=True)
class StepRange:
    """The numbers ``min``, ``min + step``, … up to ``max``; integers if all three are integers.

    The decimal numbers as written are added exactly, and rounded once: the third value from 0.1 by
    0.1 is 0.3.
    """

    min: float
    max: float
    step: float

    def __post_init__(self) -> None:
        for name in ("min", "max", "step"):
            value = getattr(self, name)
            if not _is_number(value):
                raise InputError(f"{name} is {value!r}, but it must be a finite number.")
        if not self.step > 0:
            raise InputError(f"step is {self.step}, but it must be positive.")
        _require_order(self.min, self.max)
        steps = (_exact(self.max) - _exact(self.min)) / _exact(self.step)
        if steps.denominator != 1:
            raise InputError(
                f"max is {self.max}, but it must be min, {self.min}, plus a whole number of steps "
                f"of {self.step}."
            )
        if steps >= MOST_VALUES:
            raise InputError(f"step is {self.step}, which gives more than {MOST_VALUES:,} values.")

    def __repr__(self) -> str:
        return f"{{'min': {self.min!r}, 'max': {self.max!r}, 'step': {self.step!r}}}"

    @property
    def is_whole(self) -> bool:
        """Whether all values are written as integers."""
        return all(type(value) is int for value in (self.min, self.max, self.step))

    @cached_property
    def values(self) -> tuple[float, ...]:
        """All values, the smallest first."""
        low, step = _exact(self.min), _exact(self.step)
        number = int((_exact(self.max) - low) / step) + 1
        kind = int if self.is_whole else float
        return tuple(kind(low + index * step) for index in range(number))

    @cached_property
    def _indices(self) -> dict[float, int]:
        """Index of every value."""
        return {value: index for index, value in enumerate(self.values)}

    def parameter(self, name: str) -> tuple[str, BaseDistribution]:
        """Return the name and the distribution under which Optuna sees the axis."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.is_whole:
            return name, IntDistribution(int(self.min), int(self.max), step=int(self.step))
        return name, FloatDistribution(float(self.min), float(self.max), step=float(self.step))

    def to_parameter(self, index: int) -> Any:
        """Return the value of Optuna's parameter for the value of this index."""
        return self.values[index]

    def to_index(self, parameter: object) -> int | None:
        """Reverse `to_parameter`; ``None`` if the axis has no such value.

        Optuna's sums of steps differ from exact sums in the last bits.
        """
        if not _is_number(parameter) or (self.is_whole and type(parameter) is not int):
            return None
        if parameter in self._indices:
            return self._indices[parameter]
        steps = (_exact(parameter) - _exact(self.min)) / _exact(self.step)
        index = round(steps)
        near = abs(steps - index) < Fraction(1, 10**6)
        return index if near and 0 <= index < len(self.values) else None


@dataclass(frozen=True)
class Choices:
    """Values in the order in which they are listed."""

    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        for value in self.values:
            _require_scalar(value)
        different = {(type(value), value) for value in self.values}
        if not self.values or len(different) != len(self.values):
            raise InputError(f"is {list(self.values)}, but it must list different choices.")

    def __repr__(self) -> str:
        return repr(list(self.values))

    def parameter(self, name: str) -> tuple[str, BaseDistribution]:
        """Return the name and the distribution under which Optuna sees the axis."""
        from optuna.distributions import CategoricalDistribution

        return name, CategoricalDistribution(self.values)

    def to_parameter(self, index: int) -> Any:
        """Return the value of Optuna's parameter for the value of this index."""
        return self.values[index]

    def to_index(self, parameter: object) -> int | None:
        """Reverse `to_parameter`; ``None`` if the axis has no such value."""
        for index, value in enumerate(self.values):
            if value == parameter and type(value) is type(parameter):
                return index
        return None


@dataclass(frozen=True)
class Fixed:
    """A single value, which is not searched."""

    value: Scalar

    def __post_init__(self) -> None:
        _require_scalar(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class Derived:
    """A value that follows from another axis: ``factor`` times its value.

    ``"pe_x"`` makes the lanes as many as the columns of the array; ``"37.5 * hbm_gib"`` gives
    37.5 GB/s for every GiB, as a stack of 16 GiB with 600 GB/s has.
    """

    source: str
    factor: float = 1.0

    def __repr__(self) -> str:
        return repr(self.text)

    @property
    def text(self) -> str:
        """The product as a spec states it."""
        return self.source if self.factor == 1 else f"{self.factor:g} * {self.source}"

    def of(self, value: Scalar) -> Scalar:
        """Return the value of this axis for a value of the source."""
        if self.factor == 1:
            return value
        if not _is_number(value):
            raise InputError(f"is {self.text!r}, but {self.source} is {value!r}, not a number.")
        product = _exact(self.factor) * _exact(value)
        return int(product) if product.denominator == 1 else float(product)


@dataclass(frozen=True)
class SolvedChoices:
    """Values that every evaluation tries, keeping the best."""

    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        Choices(self.values)

    def __repr__(self) -> str:
        return f"{{'solve': {list(self.values)}}}"


Searched = PowerRange | StepRange | Choices
"""Axes that a sampler chooses from."""

Axis = Searched | Fixed | Derived | SolvedChoices
"""Every way to state an axis."""


def read_axis(stated: object) -> Axis:
    """Read an axis as a spec states it.

    Parameters
    ----------
    stated
        A table with ``min`` and ``max`` (powers of two), and ``step`` (numbers); a table with
        ``solve``; a list of choices; text with a product of a number and another axis, or with the
        name of that axis alone; any other single value. In Python also a pair (min, max) or an
        axis.

    Raises
    ------
    InputError
        If the axis is stated in another way; the sentence begins after the name of the axis.
    """
    if isinstance(stated, Axis):
        return stated
    if isinstance(stated, Mapping):
        return _read_table(stated)
    if isinstance(stated, tuple) and len(stated) == 2:
        return PowerRange(*stated)
    if isinstance(stated, tuple):
        raise InputError(f"is {shown(stated)}, but a tuple must be (min, max), of length 2.")
    if isinstance(stated, list):
        return Choices(tuple(stated))
    if isinstance(stated, bool | int | float | str):
        return Fixed(stated)
    raise InputError(
        f"is {shown(stated)}, but it must be a table with min and max, a list, or a single value."
    )


def read_derived(text: str) -> Derived | None:
    """Read text such as ``"pe_x"`` or ``"37.5 * hbm_gib"``; ``None`` for any other text."""
    match = _PRODUCT.fullmatch(text)
    if match is None:
        return None
    factor, source = match.groups()
    try:
        number = 1.0 if factor is None else float(factor)
    except ValueError:
        return None
    return Derived(source, number) if math.isfinite(number) and number > 0 else None


def plain_axis(axis: Axis) -> Any:
    """Write an axis as a spec states it; the inverse of `read_axis`."""
    if isinstance(axis, PowerRange):
        return {"min": axis.min, "max": axis.max}
    if isinstance(axis, StepRange):
        return {"min": axis.min, "max": axis.max, "step": axis.step}
    if isinstance(axis, Choices):
        return list(axis.values)
    if isinstance(axis, SolvedChoices):
        return {"solve": list(axis.values)}
    return axis.text if isinstance(axis, Derived) else axis.value


def axis_words(axis: Axis) -> str:
    """Describe an axis in a few words."""
    if isinstance(axis, PowerRange):
        return f"powers of two from {axis.min:,} to {axis.max:,}"
    if isinstance(axis, StepRange):
        return f"from {axis.min:,} to {axis.max:,} by {axis.step:,}"
    if isinstance(axis, Choices):
        return ", ".join(map(str, axis.values))
    if isinstance(axis, SolvedChoices):
        return f"the best of {', '.join(map(str, axis.values))}"
    return axis.text if isinstance(axis, Derived) else str(axis.value)


def _read_table(stated: Mapping[Any, Any]) -> Axis:
    """Read a table of an axis."""
    keys = ("min", "max", "step", "solve")
    for key in stated:
        if key not in keys:
            raise unknown_name("key of an axis:", key, keys)
    if "solve" in stated:
        if len(stated) > 1 or not isinstance(stated["solve"], list | tuple):
            raise InputError("must have a list under solve, and nothing beside it.")
        return SolvedChoices(tuple(stated["solve"]))
    if not {"min", "max"} <= stated.keys():
        raise InputError(f"is {shown(dict(stated))}, but a range must have min and max.")
    return StepRange(**stated) if "step" in stated else PowerRange(**stated)


def _is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)


def _exact(value: Any) -> Fraction:
    """Return the decimal number as written, without rounding."""
    return Fraction(repr(value))


def _require_order(low: float, high: float) -> None:
    """Refuse an empty range."""
    if low > high:
        raise InputError(f"min is {low}, but it must not be above max, {high}.")


def _require_scalar(value: object) -> None:
    """Refuse a value that is not a finite number, a boolean or text."""
    if not isinstance(value, bool | str) and not _is_number(value):
        raise InputError(
            f"holds {shown(value)}, but a value must be a finite number, a boolean or text."
        )
