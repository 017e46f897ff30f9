"""Enumerates the spaces of a folder and writes what they prove.

Every study is enumerated once per database, and its certificate is checked. A table of the best
designs of each, with their placements, and the page ``RESULTS.md`` go into the folder.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phaze_opt.codec import write_whole
from phaze_opt.evaluation import COST_MODEL_VERSION, Evaluation
from phaze_opt.network.bill import NetworkBill, network_bill
from phaze_opt.report.words import kind_words, placement_words
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import read_spec
from phaze_opt.study.study import Study, create_study
from phaze_opt.units import format_number, format_seconds
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import certificate_of, enumerate_study, verify_certificate
from phaze_opt.whole_space.exhaustive import Enumeration

TOP = 10
_LEAST_PART = 0.01


@dataclass(frozen=True)
class Folder:
    """A folder of studies.

    Attributes
    ----------
    path
        Of the folder; the names of its studies begin with its own.
    title, introduction
        Of the page.
    shows_network
        Whether the network is searched, and its price and power are shown.
    """

    path: Path
    title: str
    introduction: str
    shows_network: bool = False

    @property
    def command(self) -> str:
        """What writes the results."""
        return f"python -m studies.{self.path.name}"


@dataclass(frozen=True)
class Found:
    """What is proven of a space.

    Attributes
    ----------
    study, enumeration
        The space, and its best designs.
    placed
        These, each at the best of the options that are tried in every evaluation.
    checked
        What the check of the certificate looked at.
    """

    folder: Folder
    study: Study
    enumeration: Enumeration
    placed: tuple[Evaluation, ...]
    checked: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the files."""
        return self.study.name.removeprefix(f"{self.folder.path.name}-")

    def bill(self, place: int) -> NetworkBill:
        """Return what the network of a design of the top costs and draws."""
        cluster = self.study.resolved.design(DesignPoint(self.enumeration.top[place].point)).cluster
        return network_bill(cluster, cluster.devices)


def enumerate_folder(folder: Folder) -> None:
    """Enumerate, check and write, with the options of the command line."""
    parser = argparse.ArgumentParser(prog=folder.command, description=__doc__)
    name = folder.path.name
    parser.add_argument("--workers", type=int, default=2, help="processes that search a space")
    parser.add_argument("--work", type=Path, default=Path("build") / name, help="the database")
    parser.add_argument("--output", type=Path, default=folder.path, help="folder of the results")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{(options.work / f'{name}.db').resolve()}"
    paths = sorted(folder.path.glob("*.toml"))
    found = [find(folder, path, storage, options.workers) for path in paths]
    for each in found:
        write_whole(options.output / f"{each.name}.csv", _table(each).encode())
    write_whole(options.output / "RESULTS.md", "\n".join(_page(folder, found)).encode())


def find(folder: Folder, path: Path, storage: str, workers: int) -> Found:
    """Enumerate the space of a spec, and check what that proves."""
    study = create_study(read_spec(path), storage, exist_ok=True)
    enumeration = enumerate_study(study, top=TOP, workers=workers)
    checks = verify_certificate(certificate_of(study, enumeration, TOP))
    objective = Engine(study, study.evaluator).objective
    placed = [
        objective.best_run(0, study.resolved.design(DesignPoint(design.point))).evaluation
        for design in enumeration.top
    ]
    checked = [f"{check.what}: {check.checked:,} of {check.of:,}" for check in checks]
    return Found(folder, study, enumeration, tuple(placed), tuple(checked))


def _table(found: Found) -> str:
    """Return the best designs, their values on the axes, and how they are placed."""
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    axes = [name for name, _ in found.enumeration.top[0].point]
    costs = ["network_usd", "network_w"] if found.folder.shows_network else []
    table.writerow(["place", "samples_per_s", "area_mm2", *axes, "placement", "mfu", *costs])
    for place, (design, evaluation) in enumerate(
        zip(found.enumeration.top, found.placed, strict=True), 1
    ):
        assert evaluation.placement is not None
        bill = found.bill(place - 1)
        costs = [f"{bill.usd.central:.3g}", f"{bill.power_w.central:.3g}"] if costs else []
        table.writerow(
            [
                place,
                f"{design.metrics.value:.6g}",
                f"{design.metrics.area_mm2:.2f}",
                *(value for _, value in design.point),
                evaluation.placement.degrees_text,
                f"{evaluation.mfu:.4f}",
                *costs,
            ]
        )
    return lines.getvalue()


def _page(folder: Folder, found: list[Found]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield f"# {folder.title}"
    yield ""
    yield (
        f"{folder.introduction} Every space is enumerated to its end, and its certificate is "
        f"checked. Cost model {COST_MODEL_VERSION}; written by `{folder.command}`."
    )
    for each in found:
        yield from ("", *_section(each))
    yield ""


def _section(found: Found) -> Iterator[str]:
    """Yield the lines of a study."""
    spec, best, placed = found.study.resolved.spec, found.enumeration.top[0], found.placed[0]
    assert placed.placement is not None and placed.time_per_batch_s is not None
    values = ", ".join(f"{name} {value}" for name, value in best.point)
    area_mm2, limit_mm2 = best.metrics.area_mm2 or 0.0, found.study.resolved.area_limit_mm2
    yield f"## {spec.model} on {spec.devices:,} devices"
    yield ""
    yield (
        f"- **Best: {format_number(best.metrics.value)} samples/s**, MFU {placed.mfu:.1%}, "
        f"{area_mm2:.1f} of {limit_mm2:.1f} mm² ({spec.area.model}): {values}"
    )
    yield f"- Placement: {placement_words(placed.placement)}"
    shares = sorted(placed.time_breakdown_s.items(), key=lambda part: -part[1])
    parts = [
        f"{kind_words(kind)} {seconds / placed.time_per_batch_s:.0%}"
        for kind, seconds in shares
        if seconds >= _LEAST_PART * placed.time_per_batch_s
    ]
    yield f"- Time per batch: {format_seconds(placed.time_per_batch_s)}: {', '.join(parts)}"
    for baseline in found.study.baselines():
        if baseline.values is not None:
            times = best.metrics.value / baseline.values[0]
            yield f"- Against {baseline.name}, at its best: {times:.3f} ×"
    if found.folder.shows_network:
        yield f"- Network: {_bill_words(found, 0)}"
    enumeration = found.enumeration
    yield (
        f"- {enumeration.status}: {enumeration.points:,} designs, "
        f"{enumeration.evaluated:,} evaluated; the others are bounded below the {TOP} best "
        f"(`{found.name}.csv`)"
    )
    yield f"- Certificate checked: {'; '.join(found.checked)}"


def _bill_words(found: Found, place: int) -> str:
    """Say what the network of a design costs and draws for every device."""
    bill, devices = found.bill(place), found.study.resolved.spec.devices
    usd, power_w = bill.usd.times(1.0 / devices), bill.power_w.times(1.0 / devices)
    return (
        f"{usd.central:,.0f} USD ({usd.low:,.0f} to {usd.high:,.0f}) and {power_w.central:.0f} W "
        f"({power_w.low:.0f} to {power_w.high:.0f}) per device, without adapters"
    )
