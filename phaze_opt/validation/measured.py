"""What a measured table is: its rows, their predictions and errors, and rows left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from phaze_opt.codec import data_rows

TRAINING_FILES = (
    *("training.csv", "training_experts.csv", "training_context.csv"),
    *("training_kept.csv", "training_adapters.csv", "training_recipes.csv"),
)
"""Published training runs, in the order in which their tables are shown."""
OPEN_COLUMNS: Mapping[str, str] = {
    **{"microbatch": "microbatches", "interleave": "interleave"},
    **{"recompute": "recompute", "dispatcher": "dispatcher"},
}
"""Options that a run may leave open, and the column that lists their values."""
NOTES = ("case", "source", "trust", "repeats", "note")
"""Columns of a file of a user that say something for a person."""


@dataclass(frozen=True)
class ValidationRow:
    """One measured row.

    Attributes
    ----------
    case
        What was measured, for a person.
    measured, predicted
        In the table's unit; a time includes the constant per call of the measurement.
    assumed
        Options that the source does not state, as they were chosen.
    trust
        How far the measurement is to be trusted: ``high``, ``medium`` or ``low``; empty where the
        table as a whole says it.
    source
        Of this row, where it has one of its own.
    repeats
        The case that the row measures once more (a neighbouring release of the same set-up, for
        example); empty for an independent row.
    parts_s
        Predicted seconds by kind, adding up to the prediction; empty where there is one kind only.
    bound
        Whether the host would take longer to launch the kernels than the device to run them, as
        predicted, with central seconds per launch; empty where nothing is timed.
    predicted_range
        Of all that the row leaves open, on the fastest and the slowest chips of the name; ``None``
        where neither was looked for.
    precision
        Of the products of a run, as its source states it; else the table says it.
    closest
        The choice of what the row leaves open that comes nearest to what was measured; empty where
        nothing is open.
    """

    case: str
    measured: float
    predicted: float
    assumed: str = ""
    trust: str = ""
    source: str = ""
    repeats: str = ""
    parts_s: Mapping[str, float] = field(default_factory=dict)
    bound: Literal["host", "device", ""] = ""
    predicted_range: tuple[float, float] | None = None
    closest: str = ""
    precision: str = ""

    def factor_of(self, part_s: float) -> float | None:
        """By what factor a part alone would have to change to give what was measured.

        ``None`` where the part cannot: it would have to take less than no time.
        """
        missing_s = self.measured - self.predicted
        return 1.0 + missing_s / part_s if part_s > max(0.0, -missing_s) else None

    @property
    def error(self) -> float:
        """Signed relative error of the prediction."""
        return self.predicted / self.measured - 1.0

    @property
    def independent(self) -> bool:
        """Whether no other row measures the same set-up."""
        return not self.repeats


@dataclass(frozen=True)
class ValidationTable:
    """All rows of one kind on one accelerator; ``unit`` is ``s``, ``B`` or ``ratio``.

    ``minor`` tables say little: of one or two rows, of operators too small to show a chip, or of a
    measurement that a better one contradicts.
    """

    name: str
    accelerator: str
    call_overhead_s: float
    source: str
    rows: tuple[ValidationRow, ...]
    unit: Literal["s", "B", "ratio"] = "s"
    minor: bool = False

    @property
    def mean_absolute_error(self) -> float:
        """Mean of the absolute relative errors."""
        return fmean(abs(row.error) for row in self.rows)

    @property
    def bias(self) -> float:
        """Mean of the signed relative errors: negative where predictions are too fast or small."""
        return fmean(row.error for row in self.rows)

    @property
    def worst_error(self) -> float:
        """The relative error that is largest in absolute value."""
        return max((row.error for row in self.rows), key=abs)

    @property
    def independent_rows(self) -> int:
        """How many rows measure a set-up of their own."""
        return sum(row.independent for row in self.rows)


@dataclass(frozen=True)
class UnexpressedRow:
    """One measured row that the model cannot express, and why.

    Attributes
    ----------
    table, case
        Where it is published, and what was measured.
    reason
        What the model lacks, or what the source does not say; several reasons are separated by
        semicolons.
    """

    table: str
    case: str
    reason: str


def unexpressed_rows(group: str) -> list[UnexpressedRow]:
    """Return the rows of a group that the model cannot express, in the order of the data."""
    return [
        UnexpressedRow(row["table"], row["case"], row["reason"])
        for row in data_rows("validation", "unexpressed.csv")
        if row["group"] == group
    ]
