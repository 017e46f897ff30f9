"""The space of a study: its axes, its points, and the parameters that a sampler sees."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from phaze_opt.checked import Named, checked
from phaze_opt.codec import from_builtins
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.on_demand import cached_property
from phaze_opt.spec.axes import (
    RULE,
    Axis,
    Derived,
    Fixed,
    Scalar,
    Searched,
    SolvedChoices,
    axis_words,
    plain_axis,
    read_axis,
    read_derived,
)
from phaze_opt.spec.axis_names import (
    PRIVATE_BUFFERS,
    check_value,
    field_of,
    is_of_words,
    kind_of,
    place_of,
)

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Value = TypeVar("Value")

DEFAULT_BASE = "tpuv4-phaze"

MOST_CHIPS = 20_000_000_000
"""Most chips of a space that are checked against the limits of a study: 10^9 take about 10 s."""

PHAZE = "phaze"
"""Name of the space of the paper."""

_PHAZE_AXES: dict[str, object] = {
    "num_tc": (1, 4096),
    "num_vc": (1, 4096),
    "pe_x": (2, 256),
    "pe_y": (2, 256),
    "pe_vc": "pe_x",
    "glb_mib": (2, 128),
    "hbm_gib": [32, 64, 80],
    "microbatch": (1, 8),
    "recompute": ["none", "full"],
}
"""The architecture space of Phaze (ICML 2024) with its training options."""


class Space:
    """The searched axes; an axis that is not named has the value of the base, or of the spec.

    ``Space(num_tc=(1, 64), hbm_gib=[32, 80], pe_vc="pe_x", zero={"solve": [0, 1]})``

    Parameters
    ----------
    base
        Preset, or TOML file, of the base chip: its values hold for fields without an axis.
    preset
        ``"phaze"`` for all axes of the paper's space; named axes replace them.
    **axes
        By the names of `phaze_opt.spec.axis_names`, each as `phaze_opt.spec.axes.read_axis` reads
        it.

    Raises
    ------
    InputError
        If an axis is unknown or refused, or a value is not allowed.
    """

    @checked
    def __init__(
        self,
        base: Annotated[Named, "the name or the path of an accelerator"] = DEFAULT_BASE,
        *,
        preset: str | None = None,
        **axes: object,
    ) -> None:
        if preset not in (None, PHAZE):
            raise unknown_name("preset of the space:", preset, (PHAZE,))
        stated = _flattened(axes)
        if preset == PHAZE:
            stated = {**_PHAZE_AXES, **stated}
        read = {name: _read(name, value) for name, value in stated.items()}
        self.base = os.fspath(base)
        self.axes: Mapping[str, Axis] = {name: read[name] for name in sorted(read, key=place_of)}
        _refuse_doubles(self.axes)
        _refuse_unresolved(self.axes)

    @classmethod
    def phaze(cls, **changes: object) -> Space:
        """Return the paper's space, with some axes changed."""
        named: dict[str, Any] = {**changes}
        return cls(preset=PHAZE, **named)

    @classmethod
    def from_plain(cls, plain: object) -> Space:
        """Read a space as a spec or a database states it; the inverse of `to_plain`."""
        if isinstance(plain, str):
            return cls(preset=plain)
        return cls(**from_builtins(plain, dict[str, Any], "space"))

    def to_plain(self) -> dict[str, Any]:
        """Write every axis as a spec states it, in one order."""
        return {"base": self.base} | {name: plain_axis(axis) for name, axis in self.axes.items()}

    def __repr__(self) -> str:
        base = {} if self.base == DEFAULT_BASE else {"base": self.base}
        return f"Space({_arguments({**base, **self.axes})})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Space):
            return NotImplemented
        return (self.base, dict(self.axes)) == (other.base, dict(other.axes))

    def __hash__(self) -> int:
        return hash((self.base, tuple(self.axes.items())))

    @cached_property
    def searched(self) -> dict[str, Searched]:
        """The axes that a sampler chooses from, by name."""
        return {name: axis for name, axis in self.axes.items() if isinstance(axis, Searched)}

    @cached_property
    def parameters(self) -> dict[str, tuple[str, BaseDistribution]]:
        """Name and distribution under which Optuna sees every searched axis, by its name."""
        return {name: axis.parameter(name) for name, axis in self.searched.items()}

    @cached_property
    def solved(self) -> dict[str, SolvedChoices]:
        """The axes whose best value every evaluation solves, by name."""
        return {name: axis for name, axis in self.axes.items() if isinstance(axis, SolvedChoices)}

    @cached_property
    def derived(self) -> dict[str, Derived]:
        """The axes that follow from others, by name."""
        return {name: axis for name, axis in self.axes.items() if isinstance(axis, Derived)}

    @property
    def points(self) -> int:
        """Number of points, including points above the area limit."""
        return math.prod(len(axis.values) for axis in self.searched.values())

    @cached_property
    def varying_fields(self) -> tuple[str, ...]:
        """The fields, in SI units, that have several values among the points."""
        several = {name for name, axis in self.searched.items() if len(axis.values) > 1}
        several |= {name for name, axis in self.solved.items() if len(axis.values) > 1}
        for _ in self.derived:
            several |= {name for name, axis in self.derived.items() if axis.source in several}
        return tuple(field_of(name) for name in self.axes if name in several)

    def values_of(self, name: str) -> tuple[Scalar, ...]:
        """Return all values of an axis; none if it is not named."""
        axis = self.axes.get(name)
        if axis is None:
            return ()
        if isinstance(axis, Derived):
            return tuple(map(axis.of, self.values_of(axis.source)))
        return (axis.value,) if isinstance(axis, Fixed) else axis.values

    def solved_options(self) -> list[dict[str, Scalar]]:
        """Return every combination of the options that each evaluation tries."""
        return combinations({name: axis.values for name, axis in self.solved.items()})

    def training_options(self) -> list[dict[str, Scalar]]:
        """Return every combination of all values of the named training options.

        Those that follow from another one have the value that it gives them.
        """
        named = [name for name in self.axes if kind_of(name) == "training"]
        follow = {
            name: axis for name, axis in self.derived.items() if {name, axis.source} <= {*named}
        }
        free = {name: self.values_of(name) for name in named if name not in follow}
        return [_with_derived(chosen, follow) for chosen in combinations(free)]


@dataclass(frozen=True, repr=False)
class DesignPoint:
    """The value of every axis of a space except the solved axes, in the order of the space."""

    values: tuple[tuple[str, Scalar], ...]

    @classmethod
    def of(cls, **values: Scalar) -> DesignPoint:
        """Return the point with these values, in the order of a space."""
        return cls(tuple(sorted(values.items(), key=lambda pair: place_of(pair[0]))))

    def __repr__(self) -> str:
        return f"DesignPoint.of({_arguments(self.by_name)})"

    def __getitem__(self, name: str) -> Scalar:
        return self.by_name[name]

    @cached_property
    def by_name(self) -> dict[str, Scalar]:
        """Values by the names of the axes."""
        return dict(self.values)

    @property
    def configuration(self) -> tuple[Scalar, ...]:
        """All values in order, to order designs that are equal in everything else."""
        return tuple(value for _, value in self.values)


def combinations(values: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """Return every combination of values by name; the last name varies first."""
    chosen = itertools.product(*values.values())
    return [dict(zip(values, combination, strict=True)) for combination in chosen]


def point_at(space: Space, indices: Mapping[str, int]) -> DesignPoint:
    """Return a point by the index of its value on every searched axis."""
    values: dict[str, Scalar] = {
        name: axis.values[indices[name]] for name, axis in space.searched.items()
    }
    values |= {name: axis.value for name, axis in space.axes.items() if isinstance(axis, Fixed)}
    values = _with_derived(values, space.derived)
    return DesignPoint(tuple((name, values[name]) for name in space.axes if name in values))


def _with_derived(
    values: Mapping[str, Scalar], derived: Mapping[str, Derived]
) -> dict[str, Scalar]:
    """Return values with those that follow from them, or from one another."""
    known, waiting = dict(values), dict(derived)
    while waiting:
        for name, axis in list(waiting.items()):
            if axis.source in known:
                known[name] = waiting.pop(name).of(known[axis.source])
    return known


def numbered_point(space: Space, number: int) -> DesignPoint:
    """Return a point by its number, from 0 to ``space.points`` − 1; the last axis varies first."""
    indices = {}
    for name, axis in reversed(space.searched.items()):
        number, indices[name] = divmod(number, len(axis.values))
    return point_at(space, indices)


def all_points(space: Space) -> Iterator[DesignPoint]:
    """Yield every point of a space in the order of the numbers."""
    for number in range(space.points):
        yield numbered_point(space, number)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return the space in the form of Optuna: a distribution per parameter of a trial."""
    return dict(space.parameters.values())


def point_of(space: Space, params: Mapping[str, Any]) -> DesignPoint:
    """Turn a sampler's parameters into a point.

    Raises
    ------
    InputError
        If a parameter is missing or lies outside the space, as in a row that another program wrote.
    """
    indices = _indices(space, params)
    for name, (parameter, distribution) in space.parameters.items():
        if name not in indices:
            raise InputError(
                f"{parameter} is {params.get(parameter)!r}, but it must be in {distribution}."
            )
    return point_at(space, indices)


def known_values(space: Space, params: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the values that a sampler has chosen so far, by the names of the axes."""
    indices = _indices(space, params)
    if len(indices) == len(space.searched):
        return point_at(space, indices).by_name
    return {name: space.searched[name].values[index] for name, index in indices.items()}


def _indices(space: Space, params: Mapping[str, Any]) -> dict[str, int]:
    """Return the index on every searched axis that has a valid value among the parameters."""
    indices = {}
    for name, axis in space.searched.items():
        index = axis.to_index(params.get(space.parameters[name][0]))
        if index is not None:
            indices[name] = index
    return indices


def params_of(space: Space, point: DesignPoint) -> dict[str, Any]:
    """Turn a point into the parameters of a sampler; the inverse of `point_of`."""
    return {
        space.parameters[name][0]: axis.to_parameter(axis.values.index(point[name]))
        for name, axis in space.searched.items()
    }


def why_outside(space: Space, values: Mapping[str, Scalar]) -> str | None:
    """Return a sentence about a value of a design outside the space; ``None`` if all are inside.

    Parameters
    ----------
    space
        The space.
    values
        Values of the design by the names of the axes; other names are ignored.
    """
    for name, axis in space.axes.items():
        if isinstance(axis, Derived):
            if values[axis.source] is None:
                continue  # a baseline may not state it, which is said of that axis
            expected = axis.of(values[axis.source])
            if values[name] != expected:
                return f"{name} is {values[name]}, but in the space it is {axis.text}, {expected}"
        elif values[name] not in space.values_of(name):
            return f"{name} is {values[name]}, but the space has {axis_words(axis)}"
    return None


def _arguments(values: Mapping[str, object]) -> str:
    """Write keyword arguments; names with dots go into a dict."""
    plain = [f"{name}={value!r}" for name, value in values.items() if "." not in name]
    dotted = {name: value for name, value in values.items() if "." in name}
    return ", ".join([*plain, *([f"**{dotted!r}"] if dotted else [])])


def _flattened(axes: Mapping[str, object]) -> dict[str, object]:
    """Join the names of the nested tables that TOML makes of ``network.0.latency_us``."""
    flat: dict[str, object] = {}
    for name, value in axes.items():
        if name == "network" and isinstance(value, Mapping):
            for level, fields in value.items():
                if not isinstance(fields, Mapping):
                    raise InputError(
                        f"network.{level} of the space is {fields!r}, but it must be a table of "
                        "the numbers of a level."
                    )
                flat |= {f"network.{level}.{field}": stated for field, stated in fields.items()}
        else:
            flat[name] = value
    return flat


def _read(name: str, stated: object) -> Axis:
    """Read one axis, and check its values."""
    kind = kind_of(name)
    try:
        axis = read_axis(stated)
        if isinstance(axis, Fixed) and isinstance(axis.value, str) and not is_of_words(name):
            axis = _read_text(name, axis.value)
        if isinstance(axis, SolvedChoices) and kind != "training":
            raise InputError(
                "cannot be solved in every evaluation; only options of the training run can."
            )
        if not isinstance(axis, Derived):
            for value in (axis.value,) if isinstance(axis, Fixed) else axis.values:
                check_value(name, value)
    except InputError as error:
        raise InputError(_named(name, str(error))) from None
    return axis


def _named(name: str, sentence: str) -> str:
    """Put the name of an axis before a sentence, unless the sentence begins with it."""
    if sentence.startswith(("Unknown", name)):
        return sentence
    verb = sentence.startswith(("is ", "holds ", "must ", "cannot "))
    return f"{name} of the space{' ' if verb else ': '}{sentence}"


def _read_text(name: str, text: str) -> Axis:
    """Read text on an axis of numbers."""
    if text == RULE and name in PRIVATE_BUFFERS:
        return Fixed(RULE)
    derived = read_derived(text)
    if derived is None:
        raise InputError(
            f'is {text!r}, but text must name another axis, as in "pe_x" or "37.5 * hbm_gib".'
        )
    return derived


def _refuse_doubles(axes: Mapping[str, Axis]) -> None:
    """Refuse two names of one number."""
    stated: dict[str, str] = {}
    for name in axes:
        other = stated.setdefault(field_of(name), name)
        if other != name:
            raise InputError(f"{other} and {name} of the space state the same number; give one.")


def _refuse_unresolved(axes: Mapping[str, Axis]) -> None:
    """Refuse an axis that follows from an unnamed axis, from a solved axis, or from itself."""
    known = {name for name, axis in axes.items() if not isinstance(axis, Derived | SolvedChoices)}
    waiting = {name: axis for name, axis in axes.items() if isinstance(axis, Derived)}
    while waiting:
        ready = [name for name, axis in waiting.items() if axis.source in known]
        if not ready:
            name, axis = next(iter(waiting.items()))
            raise InputError(
                f"{name} of the space follows {axis.source!r}, but it must follow one of its other "
                f"axes: {', '.join(sorted(known, key=place_of)) or 'there is none'}."
            )
        known |= set(ready)
        for name in ready:
            del waiting[name]
