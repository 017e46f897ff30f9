"""Cycles of vector operators: elements times cycles per element, divided by the lanes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from phaze_opt.arrays import FloatArray
from phaze_opt.codec import data_table
from phaze_opt.errors import look_up


@dataclass(frozen=True)
class VectorOperator:
    """One row of the vector operator table.

    Attributes
    ----------
    cycles
        Lane cycles per element.
    derivation
        The operations that take these cycles.
    reads
        Times that a row is read from memory where it does not fit the private buffer of the core.
    exponential_cycles
        The part of ``cycles`` that is an exponential, for which some chips have a unit.
    """

    cycles: float
    derivation: str
    reads: int = 1
    exponential_cycles: float = 0.0


@cache
def vector_operators() -> dict[str, VectorOperator]:
    """Return the table ``estimator/data/vector_operators.toml`` by operator kind."""
    sections = data_table("estimator", "vector_operators.toml")
    return {
        kind: VectorOperator(**row)
        for section in sections.values()
        for kind, row in section.items()
    }


def vector_operator(kind: str) -> VectorOperator:
    """Return the row of one operator kind.

    Raises
    ------
    InputError
        If the kind is not in the table.
    """
    return look_up(vector_operators(), kind, "vector operator")


def vector_cycles(
    elements: npt.ArrayLike, cycles: npt.ArrayLike, lanes: npt.ArrayLike
) -> FloatArray:
    """Cycles of vector work that is spread over the lanes of some cores.

    Each round takes one element per lane; the last round takes as long as a full one.

    Parameters
    ----------
    elements, cycles
        Elements, and lane cycles per element.
    lanes
        Lanes of all cores that take part.

    Returns
    -------
    cycles
        In the shape that the parameters broadcast to.
    """
    rounds = np.ceil(np.asarray(elements, dtype=np.float64) / np.asarray(lanes))
    return np.asarray(rounds * np.asarray(cycles, dtype=np.float64))
