"""The groups of measured tables, and the functions that predict them.

A module with tables of its own is plugged in by adding its function to the tuple of its group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from phaze_opt.choices import ValidationGroup
from phaze_opt.errors import InputError
from phaze_opt.passes.launches import launch_seconds
from phaze_opt.validation.attention import validate_attention
from phaze_opt.validation.attention_training import validate_training_attention
from phaze_opt.validation.collectives import validate_collectives
from phaze_opt.validation.expert_exchanges import validate_expert_exchanges
from phaze_opt.validation.expert_layers import validate_expert_layers
from phaze_opt.validation.kineto import validate_kineto_trace
from phaze_opt.validation.measured import (
    UnexpressedRow,
    ValidationRow,
    ValidationTable,
    unexpressed_rows,
)
from phaze_opt.validation.memory import validate_block_memory
from phaze_opt.validation.narrow import (
    validate_casts,
    validate_narrow_attention,
    validate_narrow_gradients,
    validate_narrow_products,
)
from phaze_opt.validation.norms import validate_norms
from phaze_opt.validation.operators import validate_single_operators
from phaze_opt.validation.own_operators import validate_own_operators
from phaze_opt.validation.own_runs import validate_own_runs
from phaze_opt.validation.products import validate_best_products, validate_products
from phaze_opt.validation.runs import validate_run_memory, validate_run_times
from phaze_opt.validation.scans import validate_scans
from phaze_opt.validation.sustained_products import validate_sustained_products
from phaze_opt.validation.trace import validate_trace
from phaze_opt.validation.zero_bubble import (
    validate_zero_bubble_memory,
    validate_zero_bubble_times,
)

GROUPS: tuple[ValidationGroup, ...] = get_args(ValidationGroup)

PREDICTORS: Mapping[ValidationGroup, tuple[Callable[[], list[ValidationTable]], ...]] = {
    "operators": (
        validate_products,
        validate_sustained_products,
        validate_best_products,
        validate_narrow_products,
        validate_narrow_gradients,
        validate_casts,
        validate_single_operators,
        validate_norms,
        validate_scans,
        validate_expert_layers,
        validate_trace,
    ),
    "attention": (validate_attention, validate_training_attention, validate_narrow_attention),
    "collectives": (validate_collectives, validate_expert_exchanges),
    "training": (validate_run_times, validate_zero_bubble_times),
    "memory": (validate_block_memory, validate_run_memory, validate_zero_bubble_memory),
}
"""What predicts the tables of each group, in the order in which they are shown."""

_OF_OPERATORS: tuple[ValidationGroup, ...] = ("operators", "attention", "collectives")
_LEAST_ROWS = 3


@dataclass(frozen=True)
class Validation:
    """One group: what could be predicted, and which rows could not."""

    group: ValidationGroup
    tables: tuple[ValidationTable, ...]
    unexpressed: tuple[UnexpressedRow, ...]


def validate(group: ValidationGroup) -> Validation:
    """Predict every measured row of a group."""
    tables = [table for predict in PREDICTORS[group] for table in predict()]
    if group in _OF_OPERATORS:
        # A run is a table of its own; one or two operators are chance.
        few = [len(table.rows) < _LEAST_ROWS for table in tables]
        pairs = zip(tables, few, strict=True)
        tables = [
            replace(
                table, minor=table.minor or small, rows=tuple(map(_labelled(table), table.rows))
            )
            for table, small in pairs
        ]
    return Validation(group, tuple(tables), tuple(unexpressed_rows(group)))


OWN: Mapping[ValidationGroup, Callable[[Path], list[ValidationTable]]] = {
    "operators": validate_own_operators,
    "training": validate_own_runs,
}
"""What predicts a user's own rows of a group."""


def validate_own(group: ValidationGroup | None, path: Path) -> Validation:
    """Predict the rows of a user's CSV file.

    Parameters
    ----------
    group
        Of `OWN`.
    path
        The file.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If the group has no such files, or as `OWN`.
    """
    if group is None or group not in OWN:
        raise InputError(
            f"The group of a CSV file is {group or 'missing'}, but it must be "
            f"{' or '.join(OWN)}: say which, for example phaze-opt validate training --csv {path}."
        )
    return Validation(group, tuple(OWN[group](path)), ())


def validate_own_trace(path: Path, accelerator: str) -> Validation:
    """Predict the kernels of a user's trace; see `validate_kineto_trace`."""
    table, unexpressed = validate_kineto_trace(path, accelerator)
    return Validation("operators", () if table is None else (table,), unexpressed)


def _labelled(table: ValidationTable) -> Callable[[ValidationRow], ValidationRow]:
    """Return what says of a row with one kernel whether its launch takes longer."""

    def label(row: ValidationRow) -> ValidationRow:
        kernel_s = row.predicted - table.call_overhead_s
        return replace(row, bound="host" if kernel_s < launch_seconds().central_s else "device")

    return label
