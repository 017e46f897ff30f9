"""Least dynamic energy of a batch on many chips at once, whatever the placement is.

The bound of what `phaze_opt.evaluation` sums: all replicas together run every microbatch of the
global batch, every parameter is updated at least once per tensor-parallel group, and the traffic
between stages and replicas is left out, since a placement may have none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import FusionMode
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import energy_per_event
from phaze_opt.passes.bare_layers import bare_chain
from phaze_opt.passes.graphs import again_in, fuse_once, graphs_of
from phaze_opt.passes.handled import check_handled
from phaze_opt.passes.layer_cost import local_parameters
from phaze_opt.training import Training
from phaze_opt.workload.graph import OperatorGraph, WorkloadVariant


def fused_passes(
    variant: WorkloadVariant, training: Training, fusion: FusionMode
) -> tuple[tuple[OperatorGraph, ...], tuple[int, ...]]:
    """Return the graphs that run in a microbatch.

    Parameters
    ----------
    variant, training, fusion
        As for `least_batch_energy_j`.

    Returns
    -------
    graphs, runs
        The fused passes of all distinct layers, and how often each of them runs.
    """
    graphs, runs = [], []
    for layer, count in zip(variant.layers, variant.counts, strict=True):
        for name, graph in graphs_of(layer, training).items():
            again = again_in(layer, training) == name and name == "forward"
            graphs.append(fuse_once(graph, fusion))
            runs.append(2 * count if again else count)
    return tuple(graphs), tuple(runs)


def least_batch_energy_j(
    variant: WorkloadVariant,
    training: Training,
    fusion: FusionMode,
    passes_j: FloatArray,
    chips: Sequence[Accelerator],
) -> FloatArray:
    """Bound the dynamic energy of one batch on all devices from below, at one tensor degree.

    Parameters
    ----------
    variant
        The model at one tensor degree and microbatch.
    training
        How the model is trained, as `phaze_opt.point.training_as_fused` gives it.
    fusion
        How operators are fused.
    passes_j : (graphs, chips)
        Least energy of one execution of each of the `fused_passes`.
    chips
        The chips.

    Returns
    -------
    energy_j : (chips,)

    Raises
    ------
    InputError
        For an option that the bounds do not declare.
    """
    check_handled(training)
    _, runs = fused_passes(variant, training, fusion)
    microbatch_j = np.array(runs, dtype=np.float64) @ passes_j
    # Every device of a sequence runs its share of each.
    microbatches = training.global_batch / training.microbatch * training.context_parallel
    parameters = local_parameters(bare_chain(variant, training, fusion))
    once_bytes = training.step_bytes + training.cast_bytes
    state_bytes = parameters * (once_bytes + microbatches * sum(training.copy_bytes))
    hbm_j = state_bytes * np.ravel(energy_per_event(chips).hbm_j_per_byte)
    return np.asarray(variant.tensor_parallel * (microbatches * microbatch_j + hbm_j))
