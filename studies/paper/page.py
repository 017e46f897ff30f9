"""The page of the results; every number on it comes from them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from studies.paper import claims, tables
from studies.paper.ablations import FREE
from studies.paper.comparison import Comparison
from studies.paper.experiments import ALONE, COMMON, OURS, Results
from studies.paper.searches import ProvenFront
from studies.paper.settings import BASELINES

_PAGE = """\
# The experiments of Phaze, again

{answer}

Written by `make paper`; every number on this page is generated. Cost-model version {version},
{seconds:,.0f} s of a processor in all, {checked:,} statements checked: no run is faster than the
rooflines of its chip, no expert placement is faster than the solved one, and no chip of the same
space is faster than the one that is searched together with its placement.

## The setting of the paper

1,024 accelerators, global batch 4,096, 4 GiB/s between any two of them, SGD, eager attention,
nothing stays on the chip, communication and compute take turns; HBM of 32, 64 or 80 GiB, recompute
none or full, microbatch 1 to 8; chips within the area of `tpuv4-phaze` under `phaze-22nm`.
Throughput is relative to `tpuv4-phaze` under the expert placement; every cell is at its best over
microbatch and recompute.

- `tpuv4-phaze` is the paper's chip; `tpuv4-lanes` has 2 × 1,024 vector lanes, as the real one has;
  `tpuv4` is the real one, with what was measured of it.
- *alone*: the chip that runs the layers of the model fastest by itself, searched without network,
  memory limit or placement (the way of Spotlight); afterwards with the best of the HBM's sizes.
- *ours*: searched together with the placement, one chip per model.

Expert placement:

{expert}

Solved placement:

{solved}

![Throughput relative to tpuv4-phaze placed by experts, on a logarithmic axis](throughput.svg)

### The chips

All of the space, {points:,} points per model, is bounded or evaluated: *certified* means that no
other design is better, for this cost model. {common}

{designs}

### What binds

Before: `tpuv4-phaze` under the expert placement. After: ours, solved.

![Share of a batch by what binds it](binding.svg)

### Throughput against area

The proven fronts: {fronts}. No design of the space is both smaller and faster than one of them
(`phaze-opt study pareto`; `fronts.csv`).

![Throughput of the designs of the proven fronts against their area](area.svg)

## What the slides claim

Speed-ups over a TPUv4 architecture, geometric means over the models:

{claims}

{shapes}

{experts} Tensor parallelism sends every activation over 4 GiB/s, in turns with the arrays.

Why the two differ, by putting errors of the published code back one by one (the chip is searched
again each time). Its clock is a thousand times too slow, so that the network weighs a thousandth:
*network a thousand times as fast*. Its times do not see the bandwidths of the memories: *memory
traffic is free* ({free:g} times the bandwidths of the HBM and of the global buffer).

{causes}

The columns show the third cause: against `tpuv4-phaze`, whose two vector cores have 128 lanes each,
a chip wins by adding lanes; against `tpuv4-lanes` what remains is what the search is worth.

## Ablations

### Architecture, placement, both

Relative to `tpuv4-phaze` under the expert placement. *Architecture alone* is searched under the
expert placement; *architecture alone, then placement* is the chip of Spotlight's way, solved.

{alone}

### Options of the setting

The chip is searched again under each.

{ablations}

Free traffic of the global buffer is an upper bound of multicast: no tile that several cores read
costs more than one read of it.

### Schedules

Throughput relative to exact schedules; placements are solved under each.

{schedules}

### The cost of a placement

What the published cost prefers (a batch takes `(m + p − 1)` times the largest load of a stage and
the synchronisation of the first stage alone), at the microbatch and recompute where that turns out
best, timed as everything else here: splits and degrees are those that it finds.

{placed}

## A setting of today

`tpuv4-torus`, Adam in mixed precision, fused attention, residency, sequence parallelism, gradients
that go out during the backward, recompute none, selective or full; the area of `tpuv4-lanes` under
`chip`, which charges for the HBM's bandwidth, and that bandwidth searched. The space is that of the
paper, with five bandwidths of the HBM and vector cores of three lengths
(`studies/paper/settings.py`). All of it is bounded or evaluated: the best designs are certified.

{today}

## Both area models, and power

The winners under `phaze-22nm` and under `chip`, each within the area of `tpuv4-phaze` under the
same model, with the average dynamic power of a device in use.

{built}

## How robust the winners are

Lane cycles, PE area, HBM efficiency and network bandwidth, each 20 % smaller and larger; the whole
space is searched again under each (`phaze-opt study robust`).

{robust}

## Files

`comparison.csv`, `designs.csv`, `fronts.csv`, `ablations.csv`, `schedules.csv`, `placements.csv`,
`today.csv`, `chip_area.csv` and `robustness.csv` hold every number with all its digits.
`python -m studies.paper --redraw` draws `throughput.svg` and `area.svg` from them. `make paper`
writes all of it again, and a bundle of the study of {bundled} that
`phaze-opt study import build/paper/{bundled}.zip` loads.
"""


def page(results: Results, version: str, checked: int, bundled: str) -> str:
    """Return the page.

    Parameters
    ----------
    results
        Of a whole run.
    version
        Of the cost model.
    checked
        Number of statements that hold.
    bundled
        Model whose study is written as a bundle.
    """
    words = tables.ablation_words()
    return _PAGE.format(
        version=version,
        seconds=sum(results.cpu_s.values()),
        checked=checked,
        answer=answer(results),
        common=common_sentence(results),
        fronts=front_words(results.fronts),
        expert=tables.main_table(results, "expert"),
        solved=tables.main_table(results, "solve"),
        points=max(ours.points for ours in results.ours.values()),
        designs=tables.design_table(results),
        claims=claims.claims_table(results),
        shapes=claims.shape_table(results),
        experts=claims.experts_sentence(results),
        free=FREE,
        causes=claims.causes_table(results),
        alone=tables.alone_table(results),
        ablations=tables.changed_table(results, results.ablations, words),
        schedules=tables.schedules_table(results),
        placed=tables.placed_table(results),
        today=tables.today_table(results),
        built=tables.built_table(results),
        robust=tables.robust_table(results),
        bundled=bundled,
    )


def answer(results: Comparison) -> str:
    """Say what co-optimisation is worth: first over the better of the known chips."""
    ours = tables.mean_relative(results, OURS, "solve")
    solved = {chip: tables.mean_relative(results, chip, "solve") for chip in BASELINES}
    better = max(solved, key=lambda chip: solved[chip])
    alone = tables.mean_relative(results, ALONE, "solve")
    return (
        "**What it comes to:** chips that are searched together with their placement train "
        f"**{ours / solved[better]:.2f}** times as fast as the best known chip, `{better}`, where "
        "that one is placed as well as they are (geometric mean). Searching the chip without "
        f"looking at the placement, and placing afterwards, reaches **{alone / ours:.1%}** of that."
        f"\n\nOver `{BASELINES[0]}` placed by experts they are {ours:.2f} times as fast: the "
        f"placement alone brings {solved[BASELINES[0]]:.2f}, and with the vector lanes of the real "
        f"chip {solved[BASELINES[1]]:.2f}."
    )


def common_sentence(results: Comparison) -> str:
    """Say what one chip for all models reaches."""
    shares = {
        model: tables.relative(results, model, COMMON, "solve")
        / tables.relative(results, model, OURS, "solve")
        for model in results.scope.models
    }
    least = min(shares, key=lambda model: shares[model])
    return (
        "*Common* is one chip for all models, the one with the best geometric mean; it reaches "
        f"{statistics.geometric_mean(shares.values()):.1%} of *ours*, and at least "
        f"{shares[least]:.1%} ({least})."
    )


def front_words(fronts: Mapping[str, ProvenFront]) -> str:
    """Count the designs of every front."""
    return ", ".join(
        f"{len(front.designs)} of {front.points:,} designs for {model}"
        for model, front in fronts.items()
    )
