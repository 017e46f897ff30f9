"""How many published training runs can be expressed, and why the others cannot.

A run that `phaze_opt.validation.runs` compares is expressed; where its source leaves options
open (`OPEN_COLUMNS`), the fastest of their values is compared. A run of ``unexpressed.csv`` is
*undetermined* where only its publication is why: the program can express every value of what is
left open, but which one ran is not known. It is *inexpressible* where the program lacks something,
whatever else is open. Nothing is predicted here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from phaze_opt.codec import data_rows, data_table
from phaze_opt.validation.measured import (
    OPEN_COLUMNS,
    TRAINING_FILES,
    UnexpressedRow,
    unexpressed_rows,
)

ReasonKind = Literal["program", "publication"]
"""Whether the program lacks something, or the publication leaves something open."""


@dataclass(frozen=True)
class PublicationCount:
    """The runs of one table.

    Attributes
    ----------
    table
        Its name.
    compared
        Predicted as they ran.
    compared_over_options
        Predicted at the fastest of the options that the source leaves open.
    undetermined, inexpressible
        Not predicted, see the module.
    """

    table: str
    compared: int = 0
    compared_over_options: int = 0
    undetermined: int = 0
    inexpressible: int = 0

    @property
    def rows(self) -> int:
        """All of them."""
        return self.expressible + self.inexpressible

    @property
    def expressible(self) -> int:
        """Those that the program can express."""
        return self.compared + self.compared_over_options + self.undetermined


@dataclass(frozen=True)
class ReasonCount:
    """Why runs are not compared; one with several reasons counts with each."""

    reason: str
    kind: ReasonKind
    rows: int


@dataclass(frozen=True)
class Expressible:
    """The published runs since a year.

    Attributes
    ----------
    first_year
        When the first of them was published.
    publications
        In the order of the data.
    reasons
        Those of the program first, then by their rows.
    """

    first_year: int
    publications: tuple[PublicationCount, ...]
    reasons: tuple[ReasonCount, ...]

    def total(self) -> PublicationCount:
        """Return the counts of all publications together."""
        counts = {
            name: sum(getattr(each, name) for each in self.publications)
            for name in ("compared", "compared_over_options", "undetermined", "inexpressible")
        }
        return PublicationCount("all", **counts)


def count_expressible() -> Expressible:
    """Count the published training runs by whether, and why not, they are compared."""
    stated = data_table("validation", "expressible.toml")
    earlier, open_reasons = stated["earlier"], frozenset(stated["open"]["reasons"])
    counts: dict[str, Counter[str]] = {}
    # By their names: so are the publications shown.
    for row in chain.from_iterable(
        data_rows("validation", name) for name in sorted(TRAINING_FILES)
    ):
        several = any(len(row.get(column, "").split()) > 1 for column in OPEN_COLUMNS.values())
        kind = "compared_over_options" if several else "compared"
        counts.setdefault(row["table"], Counter())[kind] += 1
    reasons: Counter[str] = Counter()
    for left_out in unexpressed_rows("training"):
        if left_out.table in earlier:
            continue
        own = reasons_of(left_out)
        kind = "undetermined" if open_reasons.issuperset(own) else "inexpressible"
        counts.setdefault(left_out.table, Counter())[kind] += 1
        reasons.update(own)
    named = [
        ReasonCount(reason, "publication" if reason in open_reasons else "program", rows)
        for reason, rows in reasons.items()
    ]
    return Expressible(
        first_year=int(stated["first_year"]),
        publications=tuple(
            PublicationCount(table, **own) for table, own in counts.items() if table not in earlier
        ),
        reasons=tuple(sorted(named, key=lambda each: (each.kind != "program", -each.rows))),
    )


def reasons_of(row: UnexpressedRow) -> tuple[str, ...]:
    """Return the reasons of a row that is not compared."""
    return tuple([reason.strip() for reason in row.reason.split(";")])
