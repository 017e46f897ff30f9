"""Lane cycles that vector operators take per element."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.codec import data_table
from phaze_opt.errors import look_up
from phaze_opt.optimizers import OPTIMIZERS

ROWS_IN_FLIGHT = 8
"""Rows that a core of a GPU works on at a time: 2,048 threads in blocks of 256, one for a row."""
KEPT_SHARE = 0.75
"""Share of a cache that keeps rows until they are read again; results pass through the rest."""


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
    cached_reads
        Times that it is then read once more, soon after, from a cache that keeps the rows which all
        cores work on; from memory where there are more of these than `KEPT_SHARE` of it.
    exponential_cycles
        The part of ``cycles`` that is an exponential, for which some chips have a unit.
    """

    cycles: float
    derivation: str
    reads: int = 1
    cached_reads: int = 0
    exponential_cycles: float = 0.0


@cache
def vector_operators() -> dict[str, VectorOperator]:
    """Return the table ``estimator/data/vector_operators.toml`` by operator kind.

    What an optimizer does to a parameter is of the kind ``<optimizer>_update``.
    """
    sections = data_table("estimator", "vector_operators.toml")
    counted = {
        kind: VectorOperator(**row)
        for section in sections.values()
        for kind, row in section.items()
    }
    steps = {
        f"{name}_update": VectorOperator(each.step_cycles, "see OPTIMIZERS")
        for name, each in OPTIMIZERS.items()
    }
    return counted | steps


def vector_operator(kind: str) -> VectorOperator:
    """Return the row of one operator kind.

    Raises
    ------
    InputError
        If the kind is not in the table.
    """
    return look_up(vector_operators(), kind, "vector operator")


def kept_row_bytes(
    glb_bytes: FloatArray, vector_cores: IntArray, *, is_managed: FloatArray
) -> FloatArray:
    """Return the size of a row up to which a second read hits the global buffer.

    More vector cores work on more rows at a time: on the same cache they may take longer.

    Parameters
    ----------
    glb_bytes, vector_cores
        The buffer, and the cores that work on rows.
    is_managed
        1 where the buffer holds what it is told to, and has no such limit; 0 where it is a cache,
        as on a GPU.
    """
    cached = KEPT_SHARE * glb_bytes / (ROWS_IN_FLIGHT * vector_cores)
    return np.where(is_managed > 0.0, np.inf, cached)
