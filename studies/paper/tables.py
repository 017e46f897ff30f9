"""Tables of the results: as CSV, with every digit, and as Markdown, as people read them."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.units import MIB
from studies.paper.ablations import ABLATIONS, AS_PUBLISHED
from studies.paper.comparison import Comparison, PlacedBy, Trained
from studies.paper.experiments import ALONE, COMMON, OURS, Changed, Results
from studies.paper.searches import ProvenFront, Winner
from studies.paper.settings import BASELINES

CHIPS = (*BASELINES, ALONE, OURS)
"""In the order of tables."""

FRONT_AXES = (
    *("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc"),
    *("glb_mib", "hbm_gib", "microbatch", "recompute"),
)
"""Columns of the designs of a front."""

Cell = str | int | float | None
Rows = Sequence[Sequence[Cell]]


def relative(results: Comparison, model: str, chip: str, placed_by: PlacedBy) -> float:
    """Return the throughput relative to the first baseline under the expert placement."""
    reference = results.run(model, BASELINES[0], "expert").throughput_samples_per_s
    return results.run(model, chip, placed_by).throughput_samples_per_s / reference


def mean_relative(results: Comparison, chip: str, placed_by: PlacedBy) -> float:
    """Return the geometric mean of the same over the models; 0 where one does not fit."""
    values = [relative(results, model, chip, placed_by) for model in results.scope.models]
    return statistics.geometric_mean(values) if min(values) > 0.0 else 0.0


def chip_words(chip: Accelerator) -> str:
    """Write the cores and the global buffer of a chip."""
    return (
        f"{chip.num_tc} × {chip.pe_x}×{chip.pe_y}, {chip.num_vc} × {chip.pe_vc}, "
        f"{chip.glb_bytes // MIB} MiB"
    )


def markdown(headers: Sequence[str], rows: Rows) -> str:
    """Return a table; numbers stand to the right."""
    numeric = [
        all(_is_number(row[column]) for row in rows) and bool(rows)
        for column in range(len(headers))
    ]
    rule = ["---:" if is_number else "---" for is_number in numeric]
    lines = [list(headers), rule, *([("–" if c is None else str(c)) for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _is_number(cell: Cell) -> bool:
    text = str(cell).replace(",", "").rstrip("×%").strip()
    return cell is None or text == "–" or text.replace(".", "", 1).lstrip("+-−").isdigit()


def csv_text(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table with every digit."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(headers)
    writer.writerows(rows)
    return stream.getvalue()


def csv_files(results: Results) -> dict[str, str]:
    """Return every table of numbers by the name of its file; none holds a time of the run."""
    return {
        "comparison.csv": csv_text(_RUN_HEADERS, map(_run_row, results.runs)),
        "designs.csv": csv_text(
            _DESIGN_HEADERS, [_design_row(*winner) for winner in _named_winners(results)]
        ),
        "ablations.csv": csv_text(
            ("ablation", *_RUN_HEADERS),
            [
                (ablation, *_run_row(run))
                for by_name in (results.ablations, results.published)
                for ablation, models in by_name.items()
                for comparison in models.values()
                for run in comparison.runs
            ],
        ),
        "schedules.csv": csv_text(
            ("schedules", *_RUN_HEADERS),
            [(way, *_run_row(run)) for way, runs in results.schedules.items() for run in runs],
        ),
        "placements.csv": csv_text(
            (
                "model",
                "chip",
                "throughput_samples_per_s",
                "promised_samples_per_s",
                "pipeline",
                "data",
                "tensor",
                "microbatch",
                "recompute",
            ),
            [
                (
                    placed.model,
                    placed.chip,
                    placed.throughput_samples_per_s,
                    placed.promised_samples_per_s,
                    *placed.degrees,
                    placed.microbatch,
                    placed.recompute,
                )
                for placed in results.placed
            ],
        ),
        "fronts.csv": fronts_csv(results.fronts),
        "today.csv": csv_text(_RUN_HEADERS, _runs_of(results.today)),
        "chip_area.csv": csv_text(_RUN_HEADERS, _runs_of(results.built)),
        "robustness.csv": csv_text(
            ("model", "factor", "scale", "winner_stays", "loss", "other_values"),
            [
                (
                    robust.model,
                    each.factor,
                    each.scale,
                    str(each.stays).lower(),
                    each.loss,
                    " ".join(f"{name}={value}" for name, value in each.changes.items()),
                )
                for robust in results.robust
                for each in robust.variants
            ],
        ),
    }


def fronts_csv(fronts: Mapping[str, ProvenFront]) -> str:
    """Return every design of some fronts, by model."""
    rows = [
        (
            model,
            front.points,
            front.evaluated,
            design.throughput_samples_per_s,
            design.area_mm2,
            *(design.values[name] for name in FRONT_AXES),
        )
        for model, front in fronts.items()
        for design in front.designs
    ]
    headers = ("model", "points", "evaluated", "throughput_samples_per_s", "area_mm2", *FRONT_AXES)
    return csv_text(headers, rows)


def _runs_of(changed: Mapping[str, Changed]) -> list[tuple[Cell, ...]]:
    return [_run_row(run) for comparison in changed.values() for run in comparison.runs]


_RUN_HEADERS = (
    "model",
    "chip",
    "placement",
    "throughput_samples_per_s",
    "time_per_batch_s",
    "roofline_time_s",
    "pipeline",
    "data",
    "tensor",
    "unused_devices",
    "hbm_gib",
    "microbatch",
    "recompute",
    "area_mm2",
    "mfu",
    "power_w_per_device",
)


def _run_row(run: Trained) -> tuple[Cell, ...]:
    """Return one run as a row."""
    return (
        run.model,
        run.chip,
        run.placed_by,
        run.throughput_samples_per_s,
        run.time_per_batch_s,
        run.least_time_s,
        *run.degrees,
        run.unused_devices,
        run.hbm_gib,
        run.microbatch,
        run.recompute,
        run.area_mm2,
        run.mfu,
        run.power_w,
    )


_DESIGN_HEADERS = (
    "study",
    "value",
    "num_tc",
    "pe_x",
    "pe_y",
    "num_vc",
    "pe_vc",
    "glb_mib",
    "hbm_gib",
    "hbm_gb_per_s",
    "microbatch",
    "recompute",
    "area_mm2",
    "area_limit_mm2",
    "points",
    "evaluated",
    "status",
    "gap",
)


def _named_winners(results: Results) -> list[tuple[str, Winner]]:
    """Return every searched chip by the name of its study."""
    changed = [
        comparison
        for by_name in (results.ablations, results.published)
        for models in by_name.values()
        for comparison in models.values()
    ]
    changed += [*results.built.values(), *results.today.values()]
    winners = [
        *results.ours.values(),
        *results.alone.values(),
        results.common,
        *results.expert.values(),
        *(comparison.winner for comparison in changed),
    ]
    return [(winner.study, winner) for winner in winners]


def _design_row(study: str, winner: Winner) -> tuple[Cell, ...]:
    """Return one searched chip as a row."""
    chip, values = winner.accelerator, winner.values
    return (
        study,
        winner.value,
        chip.num_tc,
        chip.pe_x,
        chip.pe_y,
        chip.num_vc,
        chip.pe_vc,
        chip.glb_bytes // MIB,
        values.get("hbm_gib"),
        chip.hbm_bytes_per_s / 1e9,
        values.get("microbatch"),
        values.get("recompute"),
        winner.area_mm2,
        winner.limit_mm2,
        winner.points,
        winner.evaluated,
        winner.status,
        winner.gap,
    )


def main_table(results: Comparison, placed_by: PlacedBy) -> str:
    """Return the throughput of every chip relative to the reference, one placement."""
    rows: list[list[Cell]] = [
        [model, *(_times(relative(results, model, chip, placed_by)) for chip in CHIPS)]
        for model in results.scope.models
    ]
    rows.append(
        ["geometric mean", *(_times(mean_relative(results, chip, placed_by)) for chip in CHIPS)]
    )
    return markdown(["", *(f"`{chip}`" if chip in BASELINES else chip for chip in CHIPS)], rows)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.4g}"


def _times(value: float) -> str:
    return f"{value:.2f}" if value > 0.0 else "–"


def design_table(results: Results) -> str:
    """Return the chips that are searched with their placements."""
    rows: list[list[Cell]] = []
    for model, winner in results.ours.items():
        run = results.run(model, OURS, "solve")
        rows.append([model, *_design_cells(winner, run, _cpu_s(results, winner))])
    run = results.run(results.scope.models[0], COMMON, "solve")
    cells = _design_cells(results.common, run, _cpu_s(results, results.common))
    cells[2:4] = _common_options(results)
    rows.append(["common, all models", *cells])
    return markdown(
        [
            "",
            "tensor cores, vector cores, GLB",
            "HBM",
            "placement",
            "microbatch, recompute",
            "area",
            "evaluated",
            "certified",
            "CPU s",
        ],
        rows,
    )


def _common_options(results: Comparison) -> list[Cell]:
    """Return placements, microbatches and recompute of the common chip, by model where others."""
    runs = [
        (results.run(model, COMMON, "solve"), results.run(model, OURS, "solve"))
        for model in results.scope.models
    ]
    placements = [
        f"{run.model} {run.degrees_text}" for run, ours in runs if run.degrees != ours.degrees
    ]
    options = [
        f"{run.model} {run.microbatch}, {run.recompute}"
        for run, ours in runs
        if (run.microbatch, run.recompute) != (ours.microbatch, ours.recompute)
    ]
    return [
        f"as above{''.join(f'; {rows_of_kind}' for rows_of_kind in several)}"
        for several in (placements, options)
    ]


def _design_cells(winner: Winner, run: Trained, cpu_s: float | None) -> list[Cell]:
    return [
        chip_words(winner.accelerator),
        f"{run.hbm_gib:g} GiB",
        run.degrees_text,
        f"{run.microbatch}, {run.recompute}",
        f"{winner.area_mm2 / winner.limit_mm2:.0%}",
        f"{winner.evaluated:,} of {winner.points:,}",
        "yes" if winner.status == "certified" else f"gap {winner.gap:.1%}",
        None if cpu_s is None else f"{cpu_s:.0f}",
    ]


def _cpu_s(results: Results, winner: Winner) -> float:
    return results.cpu_s[f"search-{winner.study}"]


def alone_table(results: Results) -> str:
    """Return what each half of the search brings, for the models that are ablated."""
    rows: list[list[Cell]] = []
    for model in results.scope.ablated:
        reference = results.run(model, BASELINES[0], "expert").throughput_samples_per_s
        rows.append(
            [
                model,
                _times(relative(results, model, BASELINES[0], "solve")),
                _times(results.expert[model].value / reference),
                _times(relative(results, model, ALONE, "solve")),
                _times(results.ours[model].value / reference),
                chip_words(results.expert[model].accelerator),
            ]
        )
    return markdown(
        [
            "",
            "placement alone",
            "architecture alone",
            "architecture alone, then placement",
            "both",
            "architecture alone is",
        ],
        rows,
    )


def changed_table(
    results: Results, by_name: Mapping[str, Mapping[str, Changed]], words: Mapping[str, str]
) -> str:
    """Return how ablations change what the searched chip brings, and which one it is."""
    rows: list[list[Cell]] = []
    names = {"": "the setting of the paper", **{name: words[name] for name in by_name}}
    for name, text in names.items():
        for model in results.scope.ablated:
            runs = _runs_by_key(results, by_name[name][model].runs if name else results.runs, model)
            winner = by_name[name][model].winner if name else results.ours[model]
            ours = runs[OURS, "solve"]
            first = model == results.scope.ablated[0]
            rows.append(
                [
                    text if first else "",
                    model,
                    _rate(ours.throughput_samples_per_s),
                    *(_ratio(ours, runs.get(key)) for key in _BESIDE),
                    chip_words(winner.accelerator),
                    f"{ours.degrees_text}, {ours.microbatch}, {ours.recompute}",
                ]
            )
    headers = [
        "",
        "model",
        "samples/s",
        "over phaze, expert",
        "over phaze, solved",
        "over lanes, solved",
        "chip",
        "placement, microbatch, recompute",
    ]
    return markdown(headers, rows)


_BESIDE: tuple[tuple[str, PlacedBy], ...] = (
    (BASELINES[0], "expert"),
    (BASELINES[0], "solve"),
    (BASELINES[1], "solve"),
)


def _runs_by_key(
    results: Results, runs: Iterable[Trained], model: str
) -> dict[tuple[str, PlacedBy], Trained]:
    return {(run.chip, run.placed_by): run for run in runs if run.model == model}


def _ratio(run: Trained, other: Trained | None) -> Cell:
    if other is None or other.throughput_samples_per_s == 0.0:
        return None
    return _times(run.throughput_samples_per_s / other.throughput_samples_per_s)


def ablation_words() -> dict[str, str]:
    """Return the words of every ablation by its name."""
    return {change.name: change.words for change in (*ABLATIONS, *AS_PUBLISHED)}


def schedules_table(results: Results) -> str:
    """Return the throughput under every way to schedule, relative to exact schedules."""
    exact = results.schedules["exact schedules"]
    rows: list[list[Cell]] = []
    for place, run in enumerate(exact):
        ratios = [
            runs[place].throughput_samples_per_s / run.throughput_samples_per_s
            for runs in results.schedules.values()
        ]
        rows.append([run.model, run.chip, *(f"{ratio:.3f}" for ratio in ratios)])
    return markdown(["model", "chip", *results.schedules], rows)


def placed_table(results: Results) -> str:
    """Return what placements of the published cost are worth, beside the solved ones."""
    rows: list[list[Cell]] = []
    for placed in results.placed:
        solved = results.run(placed.model, placed.chip, "solve")
        fits = placed.throughput_samples_per_s > 0.0
        rows.append(
            [
                placed.model,
                placed.chip,
                f"{solved.throughput_samples_per_s:,.4g}",
                f"{solved.degrees_text}, {solved.microbatch}, {solved.recompute}",
                "x".join(map(str, placed.degrees)) + f", {placed.microbatch}, {placed.recompute}"
                if fits
                else "nothing fits",
                f"{placed.promised_samples_per_s:,.4g}" if fits else None,
                f"{placed.throughput_samples_per_s:,.4g}" if fits else None,
                f"{placed.throughput_samples_per_s / solved.throughput_samples_per_s:.3f}",
            ]
        )
    headers = ["", "chip", "solved, samples/s", "placement", "by the published cost"]
    return markdown([*headers, "promised", "true", "relative"], rows)


def built_table(results: Results) -> str:
    """Return the winners under both area models, with the power of a device in use."""
    rows: list[list[Cell]] = []
    for model, built in results.built.items():
        winner, own = results.ours[model], results.run(model, OURS, "solve")
        (run,) = built.runs
        rows.append(
            [
                model,
                chip_words(winner.accelerator),
                f"{own.power_w:.0f}",
                chip_words(built.winner.accelerator),
                f"{run.power_w:.0f}",
                f"{run.throughput_samples_per_s / own.throughput_samples_per_s:.2f}",
            ]
        )
    headers = ["", "`phaze-22nm`", "W", "`chip`", "W", "throughput, `chip` / `phaze-22nm`"]
    return markdown(headers, rows)


def robust_table(results: Results) -> str:
    """Return how the winners do under other constants of the cost model."""
    rows: list[list[Cell]] = []
    for robust in results.robust:
        stays = sum(each.stays for each in robust.variants)
        losses = [each.loss for each in robust.variants if each.loss is not None]
        worst = max(robust.variants, key=lambda each: math.inf if each.loss is None else each.loss)
        changes = ", ".join(f"{name} {value}" for name, value in worst.changes.items())
        rows.append(
            [
                robust.model,
                f"{stays} of {len(robust.variants)}",
                f"{max([*losses, 0.0]):.1%}",
                f"{worst.factor.replace('_', ' ')} × {worst.scale:g}",
                changes or None,
            ]
        )
    return markdown(["", "stays the best", "loses at most", "under", "where the best has"], rows)


def today_table(results: Results) -> str:
    """Return the chips of today's setting, and known ones beside them."""
    rows: list[list[Cell]] = []
    for model, comparison in results.today.items():
        runs = _runs_by_key(results, comparison.runs, model)
        ours = runs[OURS, "solve"]
        rows.append(
            [
                model,
                _rate(ours.throughput_samples_per_s),
                _ratio(ours, runs[BASELINES[1], "expert"]),
                _ratio(ours, runs[BASELINES[1], "solve"]),
                chip_words(comparison.winner.accelerator),
                f"{comparison.winner.accelerator.hbm_bytes_per_s / 1e9:g}",
                f"{ours.hbm_gib:g}",
                f"{ours.degrees_text}, {ours.microbatch}, {ours.recompute}",
                f"{ours.mfu:.0%}",
                f"{comparison.winner.evaluated:,} of {comparison.winner.points:,}",
                f"{results.cpu_s[f'search-{comparison.winner.study}']:.0f}",
            ]
        )
    headers = [
        "",
        "samples/s",
        "over `tpuv4-lanes`, expert",
        "over it, solved",
        "chip",
        "HBM GB/s",
        "HBM GiB",
        "placement, microbatch, recompute",
        "MFU",
        "evaluated",
        "CPU s",
    ]
    return markdown(headers, rows)
