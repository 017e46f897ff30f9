"""Least dynamic energy of a batch on many chips at once, whatever the placement is.

The bound of what `phaze_opt.evaluation` sums: all replicas together run every microbatch of the
global batch, every parameter is updated at least once per tensor-parallel group, and the traffic
between stages and replicas is left out, since a placement may have none.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import FusionMode
from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.least_energy import least_energy_j
from phaze_opt.hardware.energy import energy_constants
from phaze_opt.network.cluster import Cluster
from phaze_opt.passes.bare_layers import bare_chain
from phaze_opt.passes.graphs import fuse_once, graphs_of
from phaze_opt.passes.handled import check_handled
from phaze_opt.passes.layer_cost import local_parameters
from phaze_opt.training import Training
from phaze_opt.units import J_PER_PJ
from phaze_opt.workload.graph import WorkloadVariant


def least_batch_energy_j(
    variant: WorkloadVariant,
    chips: Chips,
    cluster: Cluster,
    training: Training,
    fusion: FusionMode,
) -> FloatArray:
    """Bound the dynamic energy of one batch on all devices from below, at one tensor degree.

    Parameters
    ----------
    variant
        The model at one tensor degree and microbatch.
    chips
        Of one kind: all run operators side by side, or none does.
    cluster
        The network of the tensor-parallel group.
    training
        How the model is trained, as `phaze_opt.point.training_as_fused` gives it.
    fusion
        How operators are fused.

    Returns
    -------
    energy_j : (chips,)

    Raises
    ------
    InputError
        For an option that the bounds do not declare.
    """
    check_handled(training, chips)
    tensor = variant.tensor_parallel
    microbatch_j = np.zeros(len(chips))
    for layer, count in zip(variant.layers, variant.counts, strict=True):
        graphs = graphs_of(layer, training)
        runs = [*graphs.values(), *([layer.forward] if training.recompute == "full" else [])]
        for graph in runs:
            fused = fuse_once(graph, fusion)
            microbatch_j += count * least_energy_j(
                fused, chips, cluster, tensor, residency=training.residency
            )
    microbatches = training.global_batch / training.microbatch
    parameters = local_parameters(bare_chain(variant, training, fusion))
    state_bytes = parameters * (training.step_bytes + microbatches * sum(training.copy_bytes))
    hbm_j = state_bytes * energy_constants().hbm_pj_per_byte * J_PER_PJ
    return tensor * (microbatches * microbatch_j + hbm_j)
