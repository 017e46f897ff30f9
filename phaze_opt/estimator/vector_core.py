"""Cycles of vector operators: elements times cycles per element, over the lanes."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt

from phaze_opt.errors import unknown_name

FloatArray = npt.NDArray[np.float64]


@cache
def lane_cycles_per_element() -> dict[str, float]:
    """Return the table ``hardware/data/vector_operators.toml``: operator kind to lane cycles."""
    path = resources.files("phaze_opt.hardware").joinpath("data/vector_operators.toml")
    sections = tomllib.loads(path.read_text("utf-8"))
    return {
        kind: float(row["cycles"]) for section in sections.values() for kind, row in section.items()
    }


def cycles_per_element(kind: str) -> float:
    """Return the lane cycles that one element of an operator takes.

    Raises
    ------
    InputError
        If the kind is not in the table.
    """
    table = lane_cycles_per_element()
    if kind not in table:
        raise unknown_name("vector operator", kind, table)
    return table[kind]


def vector_cycles(
    elements: npt.ArrayLike, cycles: npt.ArrayLike, cores: npt.ArrayLike, lanes: npt.ArrayLike
) -> FloatArray:
    """Cycles of vector work spread over the lanes of some cores.

    Parameters
    ----------
    elements, cycles
        Elements, and lane cycles per element.
    cores, lanes
        Cores that take part, and lanes of each; the last round of lanes may be partly empty.
    """
    rounds = np.ceil(np.asarray(elements, dtype=np.float64) / (np.multiply(cores, lanes)))
    return np.asarray(rounds * np.asarray(cycles, dtype=np.float64))
