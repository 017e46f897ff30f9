"""What the slides of the paper claim, beside what is found here, and why the two differ."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from studies.paper.ablations import BOTH, MEMORY, NETWORK
from studies.paper.comparison import PLACEMENTS, Comparison, PlacedBy, Trained
from studies.paper.experiments import COMMON, OURS, Changed, Results
from studies.paper.settings import BASELINES
from studies.paper.tables import Cell, markdown, mean_relative

CLAIMED = {OURS: 3.6, COMMON: 2.9}
"""Geometric means of throughput relative to the TPUv4 architecture (slides of the paper)."""
CLAIMED_AREA = 0.91
"""Share of the area that the chips take."""
LARGE_ARRAY = 128 * 128
"""Processing elements of an array that is called large: that of a TPUv4."""
MANY_VECTOR_CORES = 8
SMALL_HBM_GIB = 64


def claims_table(results: Comparison) -> str:
    """Return the speed-ups that are claimed beside those that are found."""
    others: list[tuple[str, PlacedBy]] = [
        (chip, placed_by) for chip in BASELINES[:2] for placed_by in ("expert", "solve")
    ]
    rows: list[list[Cell]] = []
    for name, words in ((OURS, "one chip per model"), (COMMON, "one chip for all")):
        mine = mean_relative(results, name, "solve")
        ratios = [mine / mean_relative(results, *other) for other in others]
        rows.append([words, f"{CLAIMED[name]:g}", *(f"{ratio:.2f}" for ratio in ratios)])
    headers = [f"over `{chip}`, {placed_by}" for chip, placed_by in others]
    return markdown(["", "claimed", *headers], rows)


def shape_table(results: Results) -> str:
    """Return what is claimed of the chips beside what they are."""
    winners = list(results.ours.values())
    runs = [results.run(model, OURS, "solve") for model in results.scope.models]
    chips = [winner.accelerator for winner in winners]
    shares = [winner.area_mm2 / winner.limit_mm2 for winner in winners]
    large = sum(chip.pe_x * chip.pe_y >= LARGE_ARRAY for chip in chips)
    many = sum(chip.num_vc >= MANY_VECTOR_CORES for chip in chips)
    small = sum(run.hbm_gib < SMALL_HBM_GIB for run in runs)
    rows: list[list[Cell]] = [
        [
            "area used",
            f"{CLAIMED_AREA:.0%}",
            f"{statistics.mean(shares):.0%} ({min(shares):.0%} to {max(shares):.0%})",
        ],
        [
            "large tensor cores",
            "yes",
            f"{large} of {len(chips)} chips have arrays of at least 128×128",
        ],
        [
            "many vector cores",
            "yes",
            f"{many} of {len(chips)} chips have at least {MANY_VECTOR_CORES}; all together "
            f"{min(c.num_vc * c.pe_vc for c in chips):,} to "
            f"{max(c.num_vc * c.pe_vc for c in chips):,} lanes",
        ],
        [f"HBM under {SMALL_HBM_GIB} GiB", "yes", f"{small} of {len(runs)} chips"],
    ]
    return markdown(["", "claimed", "found"], rows)


def causes_table(results: Results) -> str:
    """Return the speed-up with each error of the published code put back, one model each row."""
    rows: list[list[Cell]] = []
    for model in results.scope.ablated:
        rows.append([model, *_speed_ups(results.runs, model)])
        for ablation in (NETWORK, MEMORY, BOTH):
            changed: Changed = results.published[ablation.name][model]
            rows.append([f"{model}, {ablation.words}", *_speed_ups(changed.runs, model)])
    headers = [f"over `{chip}`, {how}" for chip in BASELINES[:2] for how in ("expert", "solve")]
    return markdown(["ours", *headers], rows)


def experts_sentence(results: Results) -> str:
    """Say what the placement alone brings, by whether the experts split layers over devices."""
    gains: dict[bool, list[float]] = {False: [], True: []}
    for model in results.scope.models:
        expert, solved = (results.run(model, BASELINES[0], how) for how in PLACEMENTS)
        if expert.throughput_samples_per_s > 0.0:
            gain = solved.throughput_samples_per_s / expert.throughput_samples_per_s
            gains[expert.degrees[2] > 1].append(gain)
    words = {False: "keep every layer on one device", True: "split layers over several"}
    parts = [
        f"{statistics.geometric_mean(gain):.2f} on the {len(gain)} models whose experts "
        f"{words[split]}"
        for split, gain in gains.items()
        if gain
    ]
    return f"On `{BASELINES[0]}` the solved placement is worth {' and '.join(parts)}."


def _speed_ups(runs: Sequence[Trained], model: str) -> list[Cell]:
    """Return the speed-ups of the searched chip over the first two baselines."""
    by_key = {(run.chip, run.placed_by): run for run in runs if run.model == model}
    mine = by_key[OURS, "solve"].throughput_samples_per_s
    cells: list[Cell] = []
    for chip in BASELINES[:2]:
        for placed_by in PLACEMENTS:
            other = by_key[chip, placed_by].throughput_samples_per_s
            cells.append(f"{mine / other:.2f}" if other > 0.0 else None)
    return cells
