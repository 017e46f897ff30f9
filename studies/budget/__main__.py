"""Enumerate the spaces of this folder and write what they prove: ``python -m studies.budget``.

Every study is enumerated once per database, and its certificate is checked. A table of the best
designs of all, the picture of throughput against cost, and the page ``RESULTS.md`` go into the
folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phaze_opt.codec import write_whole
from phaze_opt.evaluation import COST_MODEL_VERSION, Evaluation
from phaze_opt.report.figure_style import BLUE, DARK, GREY, ORANGE
from phaze_opt.report.words import placement_words, ranged_words
from phaze_opt.units import format_number
from studies.certified import Found, find_all, proof_lines
from studies.paper.figures import drawing, svg
from studies.paper.tables import Cell, csv_text
from studies.run_options import run_parser

FOLDER = Path(__file__).parent
PICTURE = "cost.svg"


def main() -> None:
    """Enumerate, check and write."""
    parser = run_parser("budget", __doc__, Path("build/budget"), FOLDER)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    found = find_all(FOLDER, options.work / "budget.db", options.workers)
    write_whole(options.output / "designs.csv", _table(found).encode())
    write_whole(options.output / PICTURE, _picture(found).encode())
    write_whole(options.output / "RESULTS.md", "\n".join(_page(found)).encode())


def _model(found: Found) -> str:
    """Return the model of a study."""
    return str(found.study.resolved.spec.model)


def _paid(evaluation: Evaluation) -> tuple[float, float]:
    """Return what a design costs, in millions of US dollars, and its samples per second."""
    assert evaluation.bill is not None
    return evaluation.bill.tco_usd.central / 1e6, evaluation.throughput_samples_per_s


def _baselines(found: Found) -> dict[str, Evaluation]:
    """Return the baselines that train the model within the limits, at their best."""
    runs = {each.name: each.runs[0] for each in found.study.baselines()}
    known = {name: run.evaluation for name, run in runs.items() if run is not None}
    return {name: own for name, own in known.items() if own.bill is not None}


def _table(found: list[Found]) -> str:
    """Return the best designs of all studies, and what they cost, take and emit."""
    figures = ["tco_usd", "cost_usd_per_million_samples", "carbon_kg_per_million_samples"]
    figures += ["wall_power_w_per_device"]
    axes = [name for name, _ in found[0].enumeration.top[0].point if name != "devices"]
    spans = [f"{name}{end}" for name in figures for end in ("", "_low", "_high")]
    before = ("study", "place", "samples_per_s", "devices")
    rows: list[list[Cell]] = []
    for each in found:
        for place, (design, own) in enumerate(
            zip(each.enumeration.top, each.placed, strict=True), 1
        ):
            assert own.placement is not None and own.bill is not None
            point = dict(design.point)
            ranges = [getattr(own.bill, name) for name in figures]
            rows.append(
                [
                    each.study.name.removeprefix("budget-"),
                    place,
                    f"{own.throughput_samples_per_s:.6g}",
                    own.bill.devices,
                    *(point.get(name, "") for name in axes),
                    f"{own.bill.silicon_mm2 / own.bill.dies_per_package:.1f}",
                    own.bill.dies_per_package,
                    own.placement.degrees_text,
                    *(f"{x:.6g}" for one in ranges for x in (one.central, one.low, one.high)),
                ]
            )
    return csv_text([*before, *axes, "die_mm2", "dies", "placement", *spans], rows)


def _picture(found: list[Found]) -> str:
    """Draw throughput against cost: the best designs at equal dollars and watts, baselines."""
    models = sorted({_model(each) for each in found})
    with drawing(9.0, 3.8) as figure:
        figure.suptitle("The ten best of each study, and baselines, by what they cost", fontsize=10)
        (row,) = figure.subplots(1, len(models), squeeze=False)
        for axes, model in zip(row, models, strict=True):
            own = [each for each in found if _model(each) == model]
            for each, colour, words in zip(
                own, (BLUE, ORANGE), ("equal dollars", "equal watts"), strict=True
            ):
                axes.plot(
                    *zip(*map(_paid, each.placed), strict=True), "o", color=colour, label=words
                )
                limit_usd = each.study.resolved.spec.constraints.max_cost_usd
                if limit_usd is not None:
                    axes.axvline(limit_usd / 1e6, color=DARK, linewidth=0.8, linestyle="--")
            for name, evaluation in _baselines(own[0]).items():
                cost, speed = _paid(evaluation)
                axes.plot([cost], [speed], "s", color=GREY)
                axes.annotate(name, (cost, speed), (4, 4), textcoords="offset points", size=7)
            axes.set_title(model, fontsize=9)
            axes.set_xlabel("million USD for the cluster and its electricity")
            axes.set_ylabel("samples/s")
            axes.set_ylim(bottom=0.0)
            axes.legend(frameon=False, fontsize=7)
        return svg(figure)


def _page(found: list[Found]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Chips at equal dollars and at equal watts"
    yield ""
    yield (
        "Which chips, and how many, train a model fastest for the price of 1,024 TPU v4 with their "
        "electricity (30 million USD at a margin of 7); and which chip within the watts of a rack "
        "of 32 TPU v4? Chips are made in 7 nm, in one die or several. Every space is enumerated to "
        "its end, for this model; central figures decide, and their ranges say how far "
        f"sources are apart. Cost model {COST_MODEL_VERSION}; written by "
        "`python -m studies.budget`."
    )
    yield ""
    yield f"![Throughput against cost]({PICTURE})"
    for each in found:
        yield from ("", *_section(each))
    yield ""


def _section(found: Found) -> Iterator[str]:
    """Yield the lines of a study."""
    best, placed, limits = found.enumeration.top[0], found.placed[0], found.study.resolved.spec
    bill = placed.bill
    assert placed.placement is not None and bill is not None
    values = ", ".join(f"{name} {value}" for name, value in best.point)
    cost_usd, rack_w = limits.constraints.max_cost_usd, limits.constraints.max_power_w_rack
    budget = (
        f"{rack_w or 0.0:,.0f} W per rack of 32" if cost_usd is None else f"{cost_usd:,.0f} USD"
    )
    yield f"## {limits.model}, {budget}"
    yield ""
    yield (
        f"- **Best: {format_number(best.metrics.value)} samples/s** on {bill.devices:,} devices of "
        f"{bill.dies_per_package} × {bill.silicon_mm2 / bill.dies_per_package:.0f} mm²: {values}"
    )
    yield f"- Placement: {placement_words(placed.placement)}"
    yield (
        f"- Costs {ranged_words(bill.tco_usd, 'USD')}, or "
        f"{ranged_words(bill.cost_usd_per_million_samples, 'USD')} per million samples; a device "
        f"takes {ranged_words(bill.wall_power_w_per_device, 'W')} at the wall; "
        f"{ranged_words(bill.carbon_kg_per_million_samples, 'kg CO2e')} per million samples"
    )
    own, fastest = _baselines(found), placed.throughput_samples_per_s
    for name in limits.baselines:
        if name not in own:
            yield f"- {name} on {limits.devices:,} devices is not within the limit"
            continue
        cost, speed = _paid(own[name])
        yield (
            f"- {fastest / speed:.3f} × as fast as {name} on {limits.devices:,} devices, at its "
            f"best, which trains {format_number(speed)} samples/s for {cost:.1f} million USD"
        )
    yield from proof_lines(found, "designs.csv")


if __name__ == "__main__":
    main()
