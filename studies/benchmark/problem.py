"""A black-box problem whose optimum is proven: axes, the value of every point, the certificate.

It needs numpy alone, and nothing of the cost model: the folder of this file can be copied.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

VERSION = "1"
"""Of the benchmark. Its values never change: other values are another version."""

DATA = Path(__file__).parent / "data"

Scalar = bool | int | float | str
_ARRAYS = ("values", "codes", "violations")
Condition = tuple[str, tuple[Scalar, ...]]


@dataclass(frozen=True)
class Axis:
    """An axis of a problem.

    Attributes
    ----------
    kind
        ``ordered``: numbers, the smallest first; ``categorical``: words without an order.
    choices
        All its values.
    counts_where
        Another axis and those of its values under which this one counts; under the others it
        changes nothing. ``None`` if it always counts.
    """

    name: str
    kind: Literal["ordered", "categorical"]
    choices: tuple[Scalar, ...]
    counts_where: Condition | None = None


@dataclass(frozen=True)
class Certificate:
    """What was proven of a problem by bounds, apart from its table.

    Attributes
    ----------
    status, gap
        ``certified`` and 0: no point is better.
    points, evaluated
        Points whose chip is within the limits, and those of them that the proof evaluated.
    checks
        Statements of the certificate that ``phaze-opt study verify`` computed again.
    cost_model_version, spec_hash
        Whose values these are, and the hash of the frozen study.
    file
        The whole certificate, compressed, in the folder of the data.
    """

    status: str
    gap: float
    points: int
    evaluated: int
    checks: int
    cost_model_version: str
    spec_hash: str
    file: str


@dataclass(frozen=True, eq=False)
class Problem:
    """A black-box problem: find the point with the largest value.

    Attributes
    ----------
    version
        Of the benchmark.
    about, unit
        What is searched, in a sentence, and the unit of the values.
    optimum, best
        The proven largest value, and a point that has it.
    bound_order
        Numbers of the points that the sampler ``bound`` of phaze-opt tries, in its order, up to its
        proof; its bounds need the cost model.
    limits
        Names of the limits that points violate, by their codes from 1.
    values
        Of all points, by index on each axis; NaN if infeasible.
    codes
        The violated limit of each point; 0 if feasible.
    violations
        The relative excess over the limit (1 where there is no distance); 0 if feasible.
    """

    name: str
    version: str
    about: str
    unit: str
    axes: tuple[Axis, ...]
    certificate: Certificate
    optimum: float
    best: Mapping[str, Scalar]
    bound_order: tuple[int, ...]
    limits: tuple[str, ...]
    values: NDArray[np.float64]
    codes: NDArray[np.uint8]
    violations: NDArray[np.float32]

    @property
    def size(self) -> int:
        """Number of points."""
        return self.values.size

    def point(self, number: int) -> dict[str, Scalar]:
        """Return a point by its number, from 0 to ``size`` - 1; the last axis varies first."""
        indices = np.unravel_index(number, self.values.shape)
        return {a.name: a.choices[i] for a, i in zip(self.axes, indices, strict=True)}

    def index(self, point: Mapping[str, Scalar]) -> tuple[int, ...]:
        """Return the index of a point on each axis; an axis that does not count may be left out.

        Raises
        ------
        ValueError
            If an axis is unknown or missing, or has no such value.
        """
        unknown = sorted(point.keys() - {axis.name for axis in self.axes})
        if unknown:
            known = ", ".join(axis.name for axis in self.axes)
            raise ValueError(f"{self.name} has no axis {unknown[0]!r}, but {known}.")
        return tuple(self._index(axis, point) for axis in self.axes)

    def _index(self, axis: Axis, point: Mapping[str, Scalar]) -> int:
        """Return the index of a point on an axis."""
        if axis.name not in point and axis.counts_where is not None:
            other, where = axis.counts_where
            if point.get(other, where[0]) not in where:
                return 0
        if axis.name not in point:
            raise ValueError(f"The point has no value of {axis.name}.")
        if point[axis.name] not in axis.choices:
            allowed = ", ".join(map(repr, axis.choices))
            raise ValueError(f"{axis.name} is {point[axis.name]!r}, but it must be of {allowed}.")
        return axis.choices.index(point[axis.name])

    def random_point(self, generator: np.random.Generator) -> dict[str, Scalar]:
        """Ask for a point: all are as likely, infeasible ones too."""
        return self.point(int(generator.integers(self.size)))

    def suggest(self, trial: Any) -> dict[str, Scalar]:
        """Ask a trial of Optuna for a point: the index on ordered axes, the value on others."""
        return {
            axis.name: axis.choices[trial.suggest_int(axis.name, 0, len(axis.choices) - 1)]
            if axis.kind == "ordered"
            else trial.suggest_categorical(axis.name, axis.choices)
            for axis in self.axes
        }

    def evaluate(self, point: Mapping[str, Scalar]) -> float:
        """Return the value of a point, which is to be maximised; NaN if it is infeasible."""
        return float(self.values[self.index(point)])

    def violation(self, point: Mapping[str, Scalar]) -> float:
        """Return the relative excess of a point over the limit that it violates; 0 if feasible."""
        return float(self.violations[self.index(point)])

    def limit(self, point: Mapping[str, Scalar]) -> str | None:
        """Return the name of the limit that a point violates; ``None`` if it is feasible."""
        code = int(self.codes[self.index(point)])
        return self.limits[code - 1] if code else None

    def regret(self, values: ArrayLike) -> NDArray[np.float64]:
        """Return the relative distance of the best value so far from the optimum, by trial.

        Parameters
        ----------
        values
            In the order of the trials, along the last axis; NaN or at most 0 if infeasible.

        Returns
        -------
        regret
            Of the same shape: 1 before the first feasible trial, 0 at the optimum.
        """
        found = np.nan_to_num(np.asarray(values, np.float64), nan=0.0)
        best = np.maximum.accumulate(np.maximum(found, 0.0), axis=-1)
        return np.asarray(1.0 - best / self.optimum)


def names(folder: Path = DATA) -> tuple[str, ...]:
    """Return the names of all problems."""
    return tuple(sorted(path.stem for path in folder.glob("*.json")))


def load(name: str, folder: Path = DATA) -> Problem:
    """Read a problem.

    Raises
    ------
    ValueError
        If there is no such problem, or its values are others than those of its version.
    """
    if name not in names(folder):
        raise ValueError(f"There is no problem {name!r}, but {', '.join(names(folder))}.")
    plain = json.loads((folder / f"{name}.json").read_bytes())
    with np.load(folder / f"{name}.npz") as stored:
        arrays = {key: stored[key] for key in _ARRAYS}
    if plain.pop("checksum") != checksum(arrays["values"]):
        raise ValueError(f"The values of {name} are not those of version {plain['version']}.")
    for array in arrays.values():
        array.flags.writeable = False
    plain["axes"] = tuple(map(_axis, plain["axes"]))
    plain["certificate"] = Certificate(**plain["certificate"])
    for key in ("bound_order", "limits"):
        plain[key] = tuple(plain[key])
    return Problem(**plain, **arrays)


def _axis(plain: Mapping[str, Any]) -> Axis:
    """Read an axis."""
    where = plain["counts_where"]
    condition = None if where is None else (where[0], tuple(where[1]))
    return Axis(plain["name"], plain["kind"], tuple(plain["choices"]), condition)


def documents(problem: Problem) -> dict[str, bytes]:
    """Return the files of a problem, by name, that `load` reads; without the whole certificate."""
    plain = {**asdict(problem), "checksum": checksum(problem.values)}
    stream = io.BytesIO()
    np.savez_compressed(stream, **{key: plain.pop(key) for key in _ARRAYS})
    text = json.dumps(plain, indent=1).encode() + b"\n"
    return {f"{problem.name}.json": text, f"{problem.name}.npz": stream.getvalue()}


def checksum(values: NDArray[np.float64]) -> str:
    """Return the SHA-256 of all values of a problem, by which a version can be told."""
    return hashlib.sha256(np.ascontiguousarray(values, "<f8").tobytes()).hexdigest()
