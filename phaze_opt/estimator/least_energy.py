"""Least dynamic energy of the operators of a graph, on many chips at once.

The energy of an operator is known exactly in each of its modes (`phaze_opt.estimator.traffic`), so
that a schedule without residency takes no less than the sum over the better modes. Tensors that
stay in the global buffer save traffic of operators that run one after another, on all cores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import ResidencyChoice
from phaze_opt.estimator.chips import Chips, hbm_flow_bytes
from phaze_opt.estimator.estimate import ModeEstimate, estimate_jointly
from phaze_opt.estimator.least_traffic import cached_bytes, most_kept_bytes
from phaze_opt.hardware.energy import energy_per_event
from phaze_opt.network.cluster import Cluster
from phaze_opt.workload.graph import OperatorGraph

_BLOCK = 256
"""Chips that are estimated together."""


def least_energies_j(
    graphs: Sequence[OperatorGraph],
    chips: Chips,
    cluster: Cluster,
    tensor_parallel: int = 1,
    *,
    residency: ResidencyChoice,
) -> FloatArray:
    """Bound the dynamic energy of one execution of every graph from below.

    Parameters
    ----------
    graphs, cluster, tensor_parallel
        As for `phaze_opt.estimator.estimate.estimate_jointly`.
    chips
        All run operators side by side, or none does.
    residency
        Whether tensors may stay in the global buffer between operators, as in
        `phaze_opt.training.Training`.

    Returns
    -------
    energy_j : (2, graphs, chips)
        The bound, and what it would be if no tensor stayed in a buffer that the program manages.

    Raises
    ------
    InputError
        As `phaze_opt.estimator.estimate.estimate_jointly`.
    """
    energy_j = np.empty((2, len(graphs), len(chips)))
    for begin in range(0, len(chips), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        some = chips[block]
        joint = estimate_jointly(graphs, some, cluster, tensor_parallel)
        for row, (graph, part) in enumerate(zip(graphs, joint.parts, strict=True)):
            which = slice(None), part
            one_core, all_cores = joint.both.one_core.rows(which), joint.both.all_cores.rows(which)
            in_turn_j = all_cores.energy_j
            if residency:
                in_turn_j = in_turn_j - _saved_j(graph, some, all_cores, residency == "tiles")
            least_j = nothing_stays_j = in_turn_j.sum(axis=1)
            if some[0].concurrent_operators:
                beside_j = np.minimum(one_core.energy_j, all_cores.energy_j)
                nothing_stays_j = beside_j.sum(axis=1)
            energy_j[0, row, block] = np.minimum(least_j, nothing_stays_j)
            energy_j[1, row, block] = nothing_stays_j
    return energy_j


def _saved_j(
    graph: OperatorGraph, chips: Chips, all_cores: ModeEstimate, tiles: bool
) -> FloatArray:
    """Return the most energy that each operator saves while tensors stay: (chips, operators).

    Bytes that do not flow are neither moved by the HBM nor written to the global buffer by it.
    """
    joules = energy_per_event(chips)
    if chips[0].concurrent_operators:
        kept_bytes = most_kept_bytes(graph, chips, tiles=tiles)
    else:
        kept_bytes = cached_bytes(graph, chips)
    flow_bytes = hbm_flow_bytes(all_cores.hbm_s, chips.column("sustained_hbm_bytes_per_s"))
    saved_bytes = np.minimum(kept_bytes, flow_bytes)
    return np.asarray(saved_bytes * (joules.hbm_j_per_byte + joules.glb_write_j_per_byte))
