"""Lane cycles that vector operators take per element."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

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
