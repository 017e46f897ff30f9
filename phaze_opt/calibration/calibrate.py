"""A chip and its network with the constants that somebody's measurements give them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from phaze_opt.calibration.attention import MeasuredAttention, fit_attention
from phaze_opt.calibration.collectives import (
    CollectiveRow,
    constants_of_unknown_level,
    fit_collectives,
    level_constants,
    level_of_rows,
    with_level_constants,
)
from phaze_opt.calibration.constants import Constant, Fit, FittedConstant
from phaze_opt.calibration.products import (
    MeasuredProduct,
    fit_products,
    with_product_constants,
)
from phaze_opt.calibration.vector import MeasuredVector, fit_vector
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.buildable import check_chip
from phaze_opt.hardware.chip_file import AcceleratorPreset, Provenance
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.network.cluster import Cluster, NetworkLevel

TableName = Literal["vector", "gemm", "attention", "collectives"]

_OF_CHIP = frozenset(field.name for field in fields(Accelerator))
_OF_CALIBRATION = frozenset(field.name for field in fields(Calibration))


@dataclass(frozen=True)
class Measurements:
    """Measured rows of one chip; a table without rows is left out.

    Attributes
    ----------
    files
        Names of the files, by table, for the sources of constants.
    sustained
        Whether products and attention are of long runs, and not bursts.
    """

    files: Mapping[TableName, str] = field(default_factory=dict)
    gemm: Sequence[MeasuredProduct] = ()
    attention: Sequence[MeasuredAttention] = ()
    collectives: Sequence[CollectiveRow] = ()
    vector: Sequence[MeasuredVector] = ()
    sustained: bool = False


@dataclass(frozen=True, eq=False)
class CalibratedTable:
    """What one table says.

    Attributes
    ----------
    file
        Its name.
    rows
        How many it has. `Fit.errors` is of those that constants are fitted to; the others are too
        small to show the chip.
    """

    name: TableName
    file: str
    rows: int
    fit: Fit

    @property
    def rows_used(self) -> int:
        """How many rows the constants are fitted to."""
        return len(self.fit.errors)

    @property
    def summary(self) -> str:
        """What was fitted, for the source of a constant."""
        file = f" of {self.file}" if self.file else ""
        return (
            f"fitted by phaze-opt calibrate to {self.rows_used} {self.name} rows{file}, which it "
            f"meets within {self.fit.mean_absolute_error:.1%} on average"
        )


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A chip and a network with fitted constants.

    Attributes
    ----------
    chip
        With a source for every constant that moved.
    cluster
        Its innermost level is that of the measured collectives; ``None`` where there were none.
    tables
        In the order in which they were fitted.
    """

    chip: AcceleratorPreset
    cluster: Cluster | None
    tables: tuple[CalibratedTable, ...]


def calibrate(
    chip: AcceleratorPreset, measured: Measurements, cluster: Cluster | None = None
) -> Calibrated:
    """Fit the constants of a chip, and of the innermost level of its network.

    One table after the other, each with the constants that the tables before it gave: vector
    operators (HBM), products (arrays, clocks, global buffer, or the rate of long runs), fused
    attention (arrays and overlap, forward and backward).

    Parameters
    ----------
    chip
        With the stated values.
    measured
        At least one table.
    cluster
        Nominal bandwidth and topology of the network. Without it the bandwidth is fitted, too.

    Raises
    ------
    InputError
        If there is no table, or a table has fewer rows than constants.
    """
    check_chip(chip.accelerator)
    tables: list[CalibratedTable] = []

    def add(name: TableName, rows: Sequence[object], fit: Fit) -> CalibratedTable:
        tables.append(CalibratedTable(name, measured.files.get(name, ""), len(rows), fit))
        return tables[-1]

    if measured.vector:
        fit = fit_vector(measured.vector, chip.accelerator)
        chip = _with_fit(chip, add("vector", measured.vector, fit))
    if measured.gemm:
        fit = fit_products(measured.gemm, chip.accelerator, sustained=measured.sustained)
        chip = _with_fit(chip, add("gemm", measured.gemm, fit))
    if measured.attention:
        fit = fit_attention(measured.attention, chip.accelerator, sustained=measured.sustained)
        chip = _with_fit(chip, add("attention", measured.attention, fit))
    network = None
    if measured.collectives:
        level, constants = _stated_level(measured.collectives, cluster)
        fit = fit_collectives(measured.collectives, level, constants)
        table = add("collectives", measured.collectives, fit)
        network = _with_level(cluster, with_level_constants(level, fit.values), table)
    if not tables:
        raise InputError("There are no measured rows; give at least one table that has some.")
    return Calibrated(chip, network, tuple(tables))


def _with_fit(chip: AcceleratorPreset, table: CalibratedTable) -> AcceleratorPreset:
    """Return the chip with those fitted constants that are its own, and their sources."""
    moved = dict(_own(table.fit))
    values = {name: constant.value for name, constant in moved.items()}
    sources = {
        _path(name): Provenance(
            f"{table.summary}{_error_words(constant)}",
            "high" if constant.origin == "fitted" else "medium",
        )
        for name, constant in moved.items()
    }
    accelerator = with_product_constants(chip.accelerator, values)
    return replace(chip, accelerator=accelerator, provenance={**chip.provenance, **sources})


def _own(fit: Fit) -> Iterator[tuple[str, FittedConstant]]:
    """Yield the constants of a chip that moved; others belong to a table of measurements."""
    for constant in fit.constants:
        if constant.name in fit.moved and constant.name in _OF_CHIP | _OF_CALIBRATION:
            yield constant.name, constant


def _path(name: str) -> str:
    """Return the name under which a constant has its source."""
    return name if name in _OF_CHIP else f"calibration.{name}"


def _error_words(constant: FittedConstant) -> str:
    """Say how well a constant is determined."""
    if constant.origin == "limited":
        return "; of the values that they accept it is the one nearest to what was stated before"
    return f"; standard error {constant.standard_error:.2g} {constant.unit}".rstrip()


def _stated_level(
    rows: Sequence[CollectiveRow], cluster: Cluster | None
) -> tuple[NetworkLevel, Sequence[Constant]]:
    """Return the level that rows were measured on, as it is stated, and what to fit of it."""
    if cluster is not None:
        return cluster.levels[0], level_constants(cluster.levels[0])
    level = level_of_rows(rows)
    return level, constants_of_unknown_level(level)


def _with_level(cluster: Cluster | None, level: NetworkLevel, table: CalibratedTable) -> Cluster:
    """Return a network with a fitted innermost level, and what it was fitted to."""
    if cluster is None:
        return Cluster("measured", (level,), source=table.summary)
    source = "; innermost level ".join(part for part in (cluster.source, table.summary) if part)
    return replace(cluster, levels=(level, *cluster.levels[1:]), source=source)
