"""Enumerate the spaces of a folder, write what they prove: ``python -m studies.certified FOLDER``.

Every study is enumerated once per database, and its certificate is checked, so that a run that is
broken off goes on where it was. Into the folder (or that of ``--output``) go a table of the best
designs of each study, with their placements, and the page ``RESULTS.md``, which begins with the
folder's ``ABOUT.md``. The database is in ``build`` (or in ``--work``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from phaze_opt.codec import write_whole
from phaze_opt.evaluation import COST_MODEL_VERSION, Evaluation
from phaze_opt.network.bill import network_bill
from phaze_opt.placement.placement_problem import Placement
from phaze_opt.report.words import kind_words, placement_words
from phaze_opt.spec.axis_names import kind_of
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import read_spec
from phaze_opt.study.study import Study, create_study
from phaze_opt.units import format_number, format_seconds
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import certificate_of, enumerate_study, verify_certificate
from phaze_opt.whole_space.exhaustive import Enumeration
from studies.paper.tables import Cell, csv_text
from studies.run_options import run_parser

TOP = 10
_LEAST_PART = 0.01
"""Of the time per batch; what takes less is not named."""


@dataclass(frozen=True)
class Found:
    """What is proven of a space.

    Attributes
    ----------
    name
        Of the study's file, and of its table.
    study, enumeration
        The space, and its best designs.
    placed
        These, each at the best of the options that are tried in every evaluation.
    checked
        What the check of the certificate looked at.
    """

    name: str
    study: Study
    enumeration: Enumeration
    placed: tuple[Evaluation, ...]
    checked: tuple[str, ...]

    @property
    def samples_per_s(self) -> float:
        """Of the best design."""
        return self.placed[0].throughput_samples_per_s

    @property
    def placement(self) -> Placement:
        """Of the best design."""
        placement = self.placed[0].placement
        assert placement is not None
        return placement


def main() -> None:
    """Enumerate, check and write."""
    parser = run_parser("certified", __doc__, None, None)
    parser.add_argument("folder", type=Path, help="of the studies: studies/experts")
    options = parser.parse_args()
    folder: Path = options.folder
    work: Path = options.work or Path("build") / folder.name
    output: Path = options.output or folder
    output.mkdir(parents=True, exist_ok=True)
    found = find_all(folder, work / "studies.db", options.workers)
    for each in found:
        write_whole(output / f"{each.name}.csv", _table(each).encode())
    write_whole(output / "RESULTS.md", "\n".join(_page(folder, found)).encode())


def find_all(folder: Path, database: Path, workers: int) -> list[Found]:
    """Do as `find` for every spec of a folder.

    Parameters
    ----------
    folder
        Of the specs.
    database
        A file of SQLite; its folder is made if it is not there.
    workers
        As for `find`.
    """
    database.parent.mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{database.resolve()}"
    return [find(path, storage, workers) for path in sorted(folder.glob("*.toml"))]


def find(path: Path, storage: str, workers: int) -> Found:
    """Enumerate the space of a spec, and check what that proves.

    Parameters
    ----------
    path
        The spec.
    storage
        URL of the database, which keeps what was found.
    workers
        Processes that search.
    """
    study = create_study(read_spec(path), storage, exist_ok=True)
    enumeration = enumerate_study(study, top=TOP, workers=workers)
    checks = verify_certificate(certificate_of(study, enumeration, TOP))
    objective = Engine(study, study.evaluator).objective
    placed = [
        objective.best_run(0, study.resolved.design(DesignPoint(design.point))).evaluation
        for design in enumeration.top
    ]
    checked = [f"{check.what}: {check.checked:,} of {check.of:,}" for check in checks]
    return Found(path.stem, study, enumeration, tuple(placed), tuple(checked))


def _table(found: Found) -> str:
    """Return the best designs, their values on the axes, and how they are placed."""
    axes = list(dict.fromkeys(name for each in found.enumeration.top for name, _ in each.point))
    rows: list[list[Cell]] = []
    for place, (design, evaluation) in enumerate(
        zip(found.enumeration.top, found.placed, strict=True), 1
    ):
        assert evaluation.placement is not None
        values = dict(design.point)
        rows.append(
            [
                place,
                f"{evaluation.throughput_samples_per_s:.6g}",
                f"{design.metrics.area_mm2:.2f}",
                *(values.get(name, "") for name in axes),
                evaluation.placement.degrees_text,
                f"{evaluation.mfu:.4f}",
            ]
        )
    headers = ["place", "samples_per_s", "area_mm2", *axes, "placement", "mfu"]
    return csv_text(headers, rows)


def _page(folder: Path, found: Sequence[Found]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield (folder / "ABOUT.md").read_text(encoding="utf-8").rstrip()
    yield ""
    yield (
        "Every space is enumerated to its end, and its certificate is checked: no other design of "
        f"it is better, for this model. Cost model {COST_MODEL_VERSION}; written by "
        f"`python -m studies.certified studies/{folder.name}`."
    )
    yield ""
    yield from _summary(found)
    for each in found:
        yield from ("", *_section(each))
    yield ""


def _summary(found: Sequence[Found]) -> Iterator[str]:
    """Yield a table of all studies; one named after another, with a suffix, is set against it."""
    by_name = {each.name: each for each in found}
    yield "| study | designs | evaluated | samples/s | against | MFU | J per sample | placement |"
    yield "| --- | ---: | ---: | ---: | --- | ---: | ---: | --- |"
    for each in found:
        others = [name for name in by_name if each.name.startswith(f"{name}-")]
        against = ""
        if others:
            times = each.samples_per_s / by_name[others[0]].samples_per_s
            against = f"{times:.3f} × {others[0]}"
        best, batch = each.placed[0], each.study.resolved.spec.global_batch
        yield (
            f"| {each.name} | {each.enumeration.points:,} | {each.enumeration.evaluated:,} "
            f"| {format_number(each.samples_per_s)} | {against} | {best.mfu:.1%} "
            f"| {format_number(best.energy_j_per_batch / batch)} | {each.placement.degrees_text} |"
        )


def _section(found: Found) -> Iterator[str]:
    """Yield the lines of a study."""
    spec, best, placed = found.study.resolved.spec, found.enumeration.top[0], found.placed[0]
    assert placed.time_per_batch_s is not None
    values = ", ".join(f"{name} {value}" for name, value in best.point)
    area_mm2, limit_mm2 = best.metrics.area_mm2 or 0.0, found.study.resolved.area_limit_mm2
    yield f"## {found.name}: {spec.model} on {spec.devices:,} devices"
    yield ""
    yield (
        f"- **Best: {format_number(found.samples_per_s)} samples/s**, MFU {placed.mfu:.1%}, "
        f"{area_mm2:.1f} of {limit_mm2:.1f} mm² ({spec.area.model}): {values}"
    )
    yield f"- Placement: {placement_words(found.placement)}"
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
    if any(name == "cluster" or kind_of(name) == "network" for name, _ in best.point):
        yield f"- Network: {_network_words(found)}"
    yield from proof_lines(found, f"{found.name}.csv")


def proof_lines(found: Found, table: str) -> Iterator[str]:
    """Yield the lines of a page that say what is proven of a study.

    Parameters
    ----------
    found
        The study.
    table
        File that holds its best designs.
    """
    enumeration = found.enumeration
    yield (
        f"- {enumeration.status}: {enumeration.points:,} designs, "
        f"{enumeration.evaluated:,} evaluated; the others are bounded below the {TOP} best "
        f"(`{table}`)"
    )
    yield f"- Certificate checked: {'; '.join(found.checked)}"


def _network_words(found: Found) -> str:
    """Say what the network of the best design costs and draws for every device."""
    best = found.study.resolved.design(DesignPoint(found.enumeration.top[0].point))
    bill = network_bill(best.cluster, best.cluster.devices)
    each = 1.0 / best.cluster.devices
    usd, power_w = bill.usd.times(each), bill.power_w.times(each)
    return (
        f"{usd.central:,.0f} USD ({usd.low:,.0f} to {usd.high:,.0f}) and {power_w.central:.0f} W "
        f"({power_w.low:.0f} to {power_w.high:.0f}) per device, without adapters"
    )


if __name__ == "__main__":
    main()
