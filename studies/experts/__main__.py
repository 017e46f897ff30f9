"""Enumerate the spaces of this folder and write what they prove: ``python -m studies.experts``.

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
from phaze_opt.report.words import kind_words, placement_words
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import read_spec
from phaze_opt.study.study import Study, create_study
from phaze_opt.units import format_number, format_seconds
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import certificate_of, enumerate_study, verify_certificate
from phaze_opt.whole_space.exhaustive import Enumeration

FOLDER = Path(__file__).parent
TOP = 10
_LEAST_PART = 0.01


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

    study: Study
    enumeration: Enumeration
    placed: tuple[Evaluation, ...]
    checked: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the files."""
        return self.study.name.removeprefix("experts-")


def main() -> None:
    """Enumerate, check and write."""
    parser = argparse.ArgumentParser(prog="python -m studies.experts", description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="processes that search a space")
    parser.add_argument("--work", type=Path, default=Path("build/experts"), help="the database")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{(options.work / 'experts.db').resolve()}"
    found = [find(path, storage, options.workers) for path in sorted(FOLDER.glob("*.toml"))]
    for each in found:
        write_whole(options.output / f"{each.name}.csv", _table(each).encode())
    write_whole(options.output / "RESULTS.md", "\n".join(_page(found)).encode())


def find(path: Path, storage: str, workers: int, *, check: bool = True) -> Found:
    """Enumerate the space of a spec, and check what that proves, unless nobody asks for it."""
    study = create_study(read_spec(path), storage, exist_ok=True)
    enumeration = enumerate_study(study, top=TOP, workers=workers)
    checks = verify_certificate(certificate_of(study, enumeration, TOP)) if check else ()
    objective = Engine(study, study.evaluator).objective
    placed = [
        objective.best_run(0, study.resolved.design(DesignPoint(design.point))).evaluation
        for design in enumeration.top
    ]
    checked = [f"{check.what}: {check.checked:,} of {check.of:,}" for check in checks]
    return Found(study, enumeration, tuple(placed), tuple(checked))


def _table(found: Found) -> str:
    """Return the best designs, their values on the axes, and how they are placed."""
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    axes = [name for name, _ in found.enumeration.top[0].point]
    table.writerow(["place", "samples_per_s", "area_mm2", *axes, "placement", "mfu"])
    for place, (design, evaluation) in enumerate(
        zip(found.enumeration.top, found.placed, strict=True), 1
    ):
        assert evaluation.placement is not None
        table.writerow(
            [
                place,
                f"{design.metrics.value:.6g}",
                f"{design.metrics.area_mm2:.2f}",
                *(value for _, value in design.point),
                evaluation.placement.degrees_text,
                f"{evaluation.mfu:.4f}",
            ]
        )
    return lines.getvalue()


def _page(found: list[Found]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Chips for mixtures of experts"
    yield ""
    yield (
        "Chip and placement together: which accelerator, and among how many devices its experts "
        "are shared out. Every space is enumerated to its end, and its certificate is checked. "
        f"Cost model {COST_MODEL_VERSION}; written by `python -m studies.experts`."
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
    enumeration = found.enumeration
    yield (
        f"- {enumeration.status}: {enumeration.points:,} designs, "
        f"{enumeration.evaluated:,} evaluated; the others are bounded below the {TOP} best "
        f"(`{found.name}.csv`)"
    )
    yield f"- Certificate checked: {'; '.join(found.checked)}"


if __name__ == "__main__":
    main()
