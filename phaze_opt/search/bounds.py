"""Upper bounds of what points can reach, composed of the least times that the rooms export.

`phaze_opt.least_layers` bounds the passes of the layers, `phaze_opt.placement.least` the time of a
batch from them; here they become values of a study's objective, for all architectures at once. An
option or objective that no bound knows is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.costed_point import (
    bare_problem,
    chip_rates,
    training_as_fused,
    variants_within,
)
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.layer_passes import Chip, default_fusion
from phaze_opt.least_layers import least_layers
from phaze_opt.network.cluster import Cluster
from phaze_opt.placement.least import LeastLayers, LeastPlacement
from phaze_opt.search.chips import Chips
from phaze_opt.search.constraints import with_memory_margin
from phaze_opt.search.designs import Design
from phaze_opt.search.frozen import ResolvedStudy
from phaze_opt.search.objective import run_inputs
from phaze_opt.search.objectives import Measured, joined
from phaze_opt.search.spec import StudySpec
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload

BOUNDED_OBJECTIVES = ("throughput", "tokens", "throughput_per_area")
"""Objectives that grow with the throughput, and with nothing else that is not known exactly."""

ROUNDING = 1e-9
"""Relative excess of a bound, so that sums in another order never take it below the truth."""


def check_bounded(spec: StudySpec) -> None:
    """Refuse an objective for which no bound is known.

    Raises
    ------
    InputError
        Naming those that have one.
    """
    for name in spec.objectives:
        if name not in BOUNDED_OBJECTIVES:
            raise InputError(
                f"No bound is known for the objective {name}; --no-bounds evaluates every point. "
                f"Bounded: {', '.join(BOUNDED_OBJECTIVES)}."
            )
    if len(spec.objectives) > 1:
        raise InputError(
            "An enumeration finds the best designs of one objective, but the study has "
            f"{len(spec.objectives)}."
        )


def value_bounds(
    study: ResolvedStudy,
    workloads: Sequence[Workload],
    design: Design,
    chips: Chips,
    rows: slice,
    reference: Sequence[Measured],
) -> FloatArray:
    """Bound the objective from above, for some architectures with every size of the HBM.

    Parameters
    ----------
    study, workloads
        The study with its captured workloads.
    design
        Network and options, with any chip.
    chips
        All chips of the space.
    rows
        Of the architectures that are bounded.
    reference
        Every workload on the reference, as in `objective_values`.

    Returns
    -------
    bounds : (sizes, architectures)
        0 where no placement fits for sure.
    """
    architectures = [
        with_memory_margin(chip, study.spec.constraints) for chip in chips.architectures[rows]
    ]
    fastest = [
        _throughput_bounds(study, workloads, run, design, architectures, chips.hbm_bytes[:, rows])
        for run in range(len(study.spec.runs))
    ]
    # What one sample per second is worth: the bounded objectives are proportional to the rate.
    kind = study.spec.objective_kinds[0]
    areas_mm2 = chips.area_mm2[rows].tolist()
    worth = np.array(
        [
            [kind.of(_one_sample_per_s(workload, area_mm2, design)) for area_mm2 in areas_mm2]
            for workload in _of_runs(study, workloads)
        ]
    )
    values = np.stack(fastest) * worth[:, np.newaxis]
    if len(fastest) == 1:
        only: FloatArray = values[0]
        return only
    scale = np.array([kind.of(other) for other in reference]).reshape(-1, 1, 1)
    weights = [run.weight for run in study.spec.runs]
    return joined(kind, study.spec.aggregate, values / scale, weights) * (1.0 + ROUNDING)


def _of_runs(study: ResolvedStudy, workloads: Sequence[Workload]) -> list[Workload]:
    """Return one captured workload of every run; all of one run have the same tokens."""
    per_run = len(workloads) // len(study.spec.runs)
    return list(workloads[::per_run])


def _one_sample_per_s(workload: Workload, area_mm2: float, design: Design) -> Measured:
    """Return what the bounded objectives take; energy and power are none of theirs."""
    devices = design.cluster.devices
    return Measured(1.0, float(workload.sequence), np.nan, np.nan, area_mm2, devices)


def _throughput_bounds(
    study: ResolvedStudy,
    workloads: Sequence[Workload],
    run: int,
    design: Design,
    architectures: Sequence[Accelerator],
    hbm_bytes: IntArray,
) -> FloatArray:
    """Bound the throughput of one workload: the best over the options that are solved."""
    best = np.zeros((len(hbm_bytes), len(architectures)))
    for inputs in run_inputs(study, run, replace(design, accelerator=architectures[0])):
        least_s = least_batch_s(
            workloads[inputs.capture], architectures, hbm_bytes, inputs.cluster, inputs.training
        )
        samples = inputs.training.global_batch
        best = np.maximum(best, np.where(np.isfinite(least_s), samples / least_s, 0.0))
    return best * (1.0 + ROUNDING)


def least_batch_s(
    workload: Workload,
    architectures: Sequence[Accelerator],
    hbm_bytes: IntArray,
    cluster: Cluster,
    training: Training,
) -> FloatArray:
    """Bound the time of a batch from below over all placements.

    Parameters
    ----------
    workload
        Captured at every width that may be chosen.
    architectures
        Chips of one kind.
    hbm_bytes : (sizes, architectures)
        Sizes of the HBM, whatever the architectures have.
    cluster, training
        Network and training run.

    Returns
    -------
    least_s : (sizes, architectures)
        Infinite where no placement fits for sure.
    """
    accelerator = architectures[0]
    fusion = default_fusion(accelerator)
    as_fused = training_as_fused(training, fusion)
    rates = chip_rates([Chip(chip, cluster, fusion) for chip in architectures], as_fused)
    shares = np.array([chip.calibration.usable_hbm_share for chip in architectures])
    best = np.full((len(hbm_bytes), len(architectures)), np.inf)
    for variant in variants_within(workload, cluster, training):
        width = variant.tensor_parallel
        problem = bare_problem(variant, cluster, as_fused, fusion)
        placement = LeastPlacement(problem, width, [index for _, index in variant.nodes])
        layers = least_layers(variant, architectures, cluster, training, fusion)
        seconds = LeastLayers(layers.forward_s, layers.backward_s, layers.recompute_s)
        for size, capacities in enumerate(hbm_bytes):
            of_size = replace(rates, hbm_usable_bytes=capacities * shares)
            best[size] = placement.least_s(seconds, of_size, best[size])
    return best
