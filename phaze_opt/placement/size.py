"""How much memory a placement takes at most, found before any of it is taken.

What grows: tables of all possible stages, with the square of the number of layers; arrays of all
classes of degrees (see `phaze_opt.placement.candidates`); what different numbers of replicas
exchange, each by the number of layers. Where a switch is the outermost level there are few classes
and few such numbers; on a torus, with ZeRO 2 and 3 and with interleaving every number of replicas
is one (with ZeRO 1 too, unless there are very many).

The numbers of bytes are measured, of the largest that were found, and rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_PLACEMENT_BYTES

TABLES_OF_DEGREE = 24
"""Tables of all possible stages at one tensor degree, eight bytes an entry."""

TABLES_OF_CANDIDATE = 8
"""That single degrees of parallelism have for themselves, at most."""

MOST_KEPT_BYTES = 512 * 2**20
"""Of the tables of single candidates, which are kept for when they are asked for again."""

_CLASS_BYTES = 120
_REPLICAS_BYTES = 400
_KEPT_ARRAYS, _OTHER_ARRAYS = 3, 4
"""Of a number for every number of replicas and every layer, eight bytes each: those that are kept
of every tensor degree, and those that there are besides while they are found."""


@dataclass(frozen=True)
class DegreeSize:
    """How many candidates one tensor degree has.

    Attributes
    ----------
    classes
        Classes of candidates, in all orders of ranks.
    replicas
        Different numbers of replicas among them.
    """

    classes: int
    replicas: int


ONE_CANDIDATE = DegreeSize(1, 1)


def table_bytes(layers: int) -> int:
    """Return the bytes of one table of all possible stages."""
    return 8 * layers * (layers + 1)


def placement_bytes(layers: int, degrees: Sequence[DegreeSize]) -> int:
    """Bound the memory of a placement from above: every tensor degree may have to be looked at."""
    tables = len(degrees) * TABLES_OF_DEGREE * table_bytes(layers)
    classes = _CLASS_BYTES * sum(degree.classes for degree in degrees)
    replicas = [degree.replicas for degree in degrees]
    each = _REPLICAS_BYTES + 8 * _KEPT_ARRAYS * layers
    besides = 8 * _OTHER_ARRAYS * layers * max(replicas, default=0)
    # Of single candidates a few tables, and hardly more than there are candidates.
    kept = min(MOST_KEPT_BYTES, TABLES_OF_CANDIDATE * table_bytes(layers) * sum(replicas))
    return tables + classes + each * sum(replicas) + besides + kept


def tables_fit(layers: int, degrees: int) -> bool:
    """Say whether the tables of so many tensor degrees may be taken, however few candidates."""
    return placement_bytes(layers, [ONE_CANDIDATE] * degrees) <= MOST_PLACEMENT_BYTES


def check_memory(layers: int, devices: int, degrees: Sequence[DegreeSize]) -> None:
    """Refuse a placement that may take more memory than `MOST_PLACEMENT_BYTES`.

    Raises
    ------
    InputError
        Says what would be needed, and what makes it less.
    """
    needed, most = placement_bytes(layers, degrees), MOST_PLACEMENT_BYTES
    if needed <= most:
        return
    tables = len(degrees) * TABLES_OF_DEGREE * table_bytes(layers)
    for_tables = 2 * tables > needed
    what = "tables of its stages" if for_tables else "numbers of replicas that its network has"
    less = ["fewer layers"] if for_tables else ["fewer devices", "a smaller global batch"]
    if placement_bytes(layers, [ONE_CANDIDATE]) <= most:
        less.append("--placement PPxDPxTP")
    raise InputError(
        f"Placing {layers:,} layers on {devices:,} devices may need {needed / 1e9:,.1f} GB of "
        f"memory for the {what}, but at most {most / 1e9:,.1f} GB are taken; less is needed with "
        f"{' or '.join(less)}."
    )
