"""The certificate of an enumeration: what was proven, in a file that anyone can check.

It holds the frozen study, every box of chips with its bounds, the cells that were opened, the last
key of the top, and the top itself. Cells that stayed closed have only points that come after that
key; `phaze_opt.whole_space.verifying` checks this, and the rest, without believing a number of the
file.
Nothing in it depends on the time, the machine, or how often the enumeration was stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.best_first import BestFirst
from phaze_opt.bounds.space_chips import box_rates
from phaze_opt.codec import from_json, read_file, to_json
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.area import AREA_FIELDS
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.frozen import ResolvedStudy, content_hash
from phaze_opt.spec.ordering import Head
from phaze_opt.spec.space import DesignPoint
from phaze_opt.user_files import write_file
from phaze_opt.whole_space.exhaustive import Enumeration

FORMAT = 1

_WHAT = "certificate"


@dataclass(frozen=True)
class CertifiedBox:
    """Chips of equal peak rates.

    Attributes
    ----------
    rates
        What they have in common; see `phaze_opt.bounds.space_chips.box_rates`.
    chips
        Their number, each with every size of the HBM.
    least_mm2
        The smallest area of them.
    bounds
        Of their values, by combination of options and size of the HBM; 0 where nothing fits.
    opened
        Combinations of options under which each chip was looked at.
    """

    rates: Mapping[str, float]
    chips: int
    least_mm2: float
    bounds: tuple[tuple[float, ...], ...]
    opened: tuple[int, ...]


@dataclass(frozen=True)
class CertifiedDesign:
    """A design of the top: its point, and the exact values of the objectives."""

    point: tuple[tuple[str, Scalar], ...]
    values: tuple[float, ...]
    area_mm2: float


@dataclass(frozen=True)
class Certificate:
    """What an enumeration proved.

    Attributes
    ----------
    format
        Version of the file.
    study, study_hash
        Frozen, with the hashes of its workloads and the version of the cost model.
    options
        Every combination of what is searched beside the chip, by index on each axis.
    asked
        How many designs the top was asked to have.
    last
        First three keys of the last design of the top; ``None`` if fewer are feasible, and then
        nothing was left out for it.
    points, bounded, evaluated, feasible, infeasible_proven
        As in `phaze_opt.whole_space.exhaustive.Enumeration`.
    boxes
        All of them.
    top
        The best designs.
    checksum
        SHA-256 of everything else.
    """

    format: int
    study: ResolvedStudy
    study_hash: str
    options: tuple[Mapping[str, int], ...]
    asked: int
    last: Head | None
    points: int
    bounded: int
    evaluated: int
    feasible: int
    infeasible_proven: int
    boxes: tuple[CertifiedBox, ...]
    top: tuple[CertifiedDesign, ...]
    checksum: str = ""

    @property
    def content(self) -> str:
        """SHA-256 of everything but the checksum."""
        return content_hash(replace(self, checksum=""))


def certify(order: BestFirst, found: Enumeration, asked: int) -> Certificate:
    """Return the certificate of an enumeration.

    Parameters
    ----------
    order
        Of the study's points; boxes are bounded, unless their bounds are stored.
    found
        The answer.
    asked
        How many designs it was asked for.

    Raises
    ------
    InputError
        If the enumeration was not finished, or used no bounds.
    """
    if found.status != "certified" or not found.levels:
        raise InputError(
            "Only a finished enumeration with bounds has a certificate; run it without "
            "--time-limit and --no-bounds."
        )
    grid = order.grid
    study = grid.study
    made = Certificate(
        format=FORMAT,
        study=study,
        study_hash=study.hash,
        options=tuple(grid.options),
        asked=asked,
        last=last_of(study, found, asked),
        points=found.points,
        bounded=found.bounded,
        evaluated=found.evaluated,
        feasible=found.feasible,
        infeasible_proven=found.infeasible_proven,
        boxes=tuple(_boxes(order, found.levels[1].points)),
        top=tuple(
            CertifiedDesign(one.point, one.metrics.values, one.metrics.area_mm2 or 0.0)
            for one in found.top
        ),
    )
    return replace(made, checksum=made.content)


def last_of(study: ResolvedStudy, found: Enumeration, asked: int) -> Head | None:
    """Return what a point must not come after to enter the top; ``None`` while every one does."""
    if len(found.top) < asked:
        return None
    last = found.top[-1]
    key = last.metrics.rank(study, DesignPoint(last.point)).key
    return float(key[0]), int(key[1]), float(key[2])


def rates_of(study: ResolvedStudy, chip: Accelerator) -> dict[str, float]:
    """Return what a chip has in common with the others of its box."""
    names = dict.fromkeys((*AREA_FIELDS, *study.spec.space.varying_fields))
    columns = {
        name: np.array([float(getattr(chip, name))]) for name in names if hasattr(chip, name)
    }
    return {name: float(column[0]) for name, column in box_rates(study, columns).items()}


def write_certificate(path: Path, certificate: Certificate) -> None:
    """Write a certificate; see `phaze_opt.user_files.write_file`."""
    write_file(path, certificate_document(certificate))


def certificate_document(certificate: Certificate) -> bytes:
    """Return a certificate as the bytes of its file."""
    return to_json(certificate) + b"\n"


def read_certificate(path: Path) -> Certificate:
    """Read a certificate.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it is no certificate, of another format, or not as it was written.
    """
    return parse_certificate(read_file(path, _WHAT), f"{_WHAT} {path}")


def parse_certificate(document: bytes | str, what: str) -> Certificate:
    """Read a certificate from JSON, as `read_certificate` does; ``what`` names it in errors."""
    certificate = from_json(document, Certificate, what)
    if certificate.format != FORMAT:
        raise InputError(f"The {what} has format {certificate.format}, but {FORMAT} is known.")
    if certificate.content != certificate.checksum:
        raise InputError(f"The {what} was altered: its checksum is not that of its content.")
    return certificate


def _boxes(order: BestFirst, opened_points: int) -> list[CertifiedBox]:
    """List all boxes of a space with the cells that were opened."""
    grid, bounds = order.grid, order.box_bounds
    chips, cells = grid.chips, order.cells
    opened: list[list[int]] = [[] for _ in range(len(chips.first) - 1)]
    left = opened_points
    for option, box, rows in zip(
        cells.option.tolist(), cells.box.tolist(), cells.rows.tolist(), strict=True
    ):
        if left <= 0:
            break
        left -= rows * grid.shape[1]
        opened[box].append(option)
    return [
        CertifiedBox(
            rates_of(grid.study, chips.architecture(begin)),
            end - begin,
            float(chips.area_mm2[begin:end].min()),
            _plain(bounds[:, :, box]),
            tuple(sorted(opened[box])),
        )
        for box, (begin, end) in enumerate(
            zip(chips.first[:-1].tolist(), chips.first[1:].tolist(), strict=True)
        )
    ]


def _plain(bounds: FloatArray) -> tuple[tuple[float, ...], ...]:
    """Return the bounds of a box as plain data."""
    rows: Sequence[Sequence[float]] = bounds.tolist()
    return tuple(tuple(row) for row in rows)
