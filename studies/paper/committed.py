"""The results as their files have them: what is drawn from these needs no run."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phaze_opt.codec import write_whole
from studies.paper.comparison import Comparison, Trained
from studies.paper.figures import area_figure, throughput_figure
from studies.paper.searches import FrontChip, ProvenFront
from studies.paper.settings import Scope
from studies.paper.tables import FRONT_AXES


def read_comparison(folder: Path) -> Comparison:
    """Read ``comparison.csv``, without what it does not hold: shares of the time, and the HFU."""
    runs = tuple(map(_run, _rows(folder / "comparison.csv")))
    return Comparison(Scope(models=tuple(dict.fromkeys(run.model for run in runs))), runs)


def read_fronts(folder: Path) -> dict[str, ProvenFront]:
    """Read ``fronts.csv`` by model."""
    fronts: dict[str, ProvenFront] = {}
    for row in _rows(folder / "fronts.csv"):
        values = {name: row[name] for name in FRONT_AXES}
        throughput_samples_per_s = float(row["throughput_samples_per_s"])
        design = FrontChip(throughput_samples_per_s, float(row["area_mm2"]), values)
        before = fronts[row["model"]].designs if row["model"] in fronts else ()
        points, evaluated = int(row["points"]), int(row["evaluated"])
        fronts[row["model"]] = ProvenFront(points, evaluated, (*before, design))
    return fronts


def redraw(folder: Path) -> None:
    """Draw the figures again that need no other files."""
    compared = read_comparison(folder)
    drawn = {
        "throughput.svg": throughput_figure(compared),
        "area.svg": area_figure(compared, read_fronts(folder)),
    }
    for name, text in drawn.items():
        write_whole(folder / name, text.encode())


def _rows(path: Path) -> list[dict[str, Any]]:
    """Read a table."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _run(row: Mapping[str, Any]) -> Trained:
    """Read one run; the inverse of how tables write it."""
    time_s, area_mm2 = row["time_per_batch_s"], row["area_mm2"]
    return Trained(
        model=row["model"],
        chip=row["chip"],
        placed_by=row["placement"],
        throughput_samples_per_s=float(row["throughput_samples_per_s"]),
        least_time_s=float(row["roofline_time_s"]),
        time_per_batch_s=float(time_s) if time_s else None,
        area_mm2=float(area_mm2) if area_mm2 else None,
        hbm_gib=float(row["hbm_gib"]),
        microbatch=int(row["microbatch"]),
        recompute=row["recompute"],
        degrees=(int(row["pipeline"]), int(row["data"]), int(row["tensor"])),
        unused_devices=int(row["unused_devices"]),
        mfu=float(row["mfu"]),
        power_w=float(row["power_w_per_device"]),
    )
