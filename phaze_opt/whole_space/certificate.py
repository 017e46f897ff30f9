"""The certificate of an enumeration: its proof, in a file that everybody can check.

It holds the frozen study, every box of chips with its bounds, the opened cells, the last key of the
top, and the top. Closed cells have only points that come after that key;
`phaze_opt.whole_space.verifying` checks this claim and all others, and trusts no number of the
file. A certificate does not depend on the time, the machine, or on interruptions of the
enumeration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from phaze_opt.bounds.best_first import BestFirst
from phaze_opt.bounds.box_table import box_rates
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
    """A box: chips of equal peak rates; in large spaces also a region of boxes, none of them open.

    Attributes
    ----------
    rates
        The rates of its chips, of a region the best; see `phaze_opt.bounds.box_table.box_rates`.
    chips
        Number of its chips, each with every size of the HBM.
    least_mm2
        Smallest area of its chips.
    bounds
        Bounds of the values of its points, by combination of options and size of the HBM; 0 if no
        point is feasible.
    opened
        Combinations of options under which the box was opened: each chip was bounded, or in large
        spaces the box by its cores.
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
    """The proof of an enumeration.

    Attributes
    ----------
    format
        Version of the file format.
    study, study_hash
        The frozen study, with the hashes of its workloads and the version of the cost model, and
        its hash.
    options
        Every combination of options, by index on each axis.
    asked
        Asked size of the top.
    last
        First three keys of the last design of the top; ``None`` if fewer designs are feasible, so
        that no point is excluded.
    points, bounded, evaluated, feasible, infeasible_proven
        See `phaze_opt.whole_space.exhaustive.Enumeration`.
    boxes
        All boxes of the space.
    top
        The best designs.
    checksum
        SHA-256 of all other fields.
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
        """SHA-256 of all fields but the checksum."""
        return content_hash(replace(self, checksum=""))


def certify(order: BestFirst, enumeration: Enumeration, asked: int) -> Certificate:
    """Return the certificate of an enumeration.

    Parameters
    ----------
    order
        Points of the study in their order; it bounds the boxes, unless their bounds are stored.
    enumeration
        The enumeration.
    asked
        Asked size of its top.

    Raises
    ------
    InputError
        If the enumeration was not finished, or used no bounds.
    """
    if enumeration.status != "certified" or not enumeration.levels:
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
        last=last_of(study, enumeration, asked),
        points=enumeration.points,
        bounded=enumeration.bounded,
        evaluated=enumeration.evaluated,
        feasible=enumeration.feasible,
        infeasible_proven=enumeration.infeasible_proven,
        boxes=tuple(_boxes(order, enumeration.levels[1].points)),
        top=tuple(
            CertifiedDesign(design.point, design.metrics.values, design.metrics.area_mm2 or 0.0)
            for design in enumeration.top
        ),
    )
    return replace(made, checksum=made.content)


def last_of(study: ResolvedStudy, enumeration: Enumeration, asked: int) -> Head | None:
    """Return the head of the last design of the top; ``None`` if the top is shorter than asked."""
    if len(enumeration.top) < asked:
        return None
    last = enumeration.top[-1]
    key = last.metrics.rank(study, DesignPoint(last.point)).key
    return float(key[0]), int(key[1]), float(key[2])


def rates_of(study: ResolvedStudy, chip: Accelerator) -> dict[str, float]:
    """Return the rates that a chip shares with all chips of its box."""
    names = dict.fromkeys((*AREA_FIELDS, *study.spec.space.varying_fields))
    columns = {
        name: np.array([float(getattr(chip, name) or 0.0)]) for name in names if hasattr(chip, name)
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
        If it is no certificate, has another format, or was altered.
    """
    return parse_certificate(read_file(path, _WHAT), f"{_WHAT} {path}")


def parse_certificate(document: bytes | str, what: str) -> Certificate:
    """Read a certificate from JSON; see `read_certificate`. Errors name it ``what``."""
    certificate = from_json(document, Certificate, what)
    if certificate.format != FORMAT:
        raise InputError(f"The {what} has format {certificate.format}, but {FORMAT} is known.")
    if certificate.content != certificate.checksum:
        raise InputError(f"The {what} was altered: its checksum is not that of its content.")
    return certificate


def _boxes(order: BestFirst, opened_points: int) -> list[CertifiedBox]:
    """List all boxes of a space with their opened cells."""
    grid, boxes = order.grid, order.order
    batches = 0
    while order.rows_of(batches) * grid.shape[1] < opened_points:
        batches += 1
    cells = len(order.cells_of(batches))
    # The next cell comes after the top; all regions come after it.
    boxes.cell(cells)
    opened: dict[int | None, list[int]] = {}
    for option, box in sorted(boxes.looked_at(cells)):
        opened.setdefault(box, []).append(option)
    return [
        CertifiedBox(
            boxes.tree.corner(bounded.region),
            bounded.chips,
            bounded.least_mm2,
            tuple(map(tuple, bounded.bounds.tolist())),
            tuple(sorted(opened.get(bounded.box, ()))),
        )
        for bounded in boxes.frontier()
    ]
