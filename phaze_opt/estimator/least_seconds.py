"""Least seconds of every operator on many chips at once, in both modes.

The estimate of an operator is exact for every chip, so it is its own lower bound. Tens of thousands
of chips are estimated in blocks: what depends only on the pool of tensor cores comes first, once
per distinct pool, and the rest in blocks that fit the caches of a core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.estimate import (
    ModeSeconds,
    communication_of,
    estimate_work,
    work_on_pools,
)
from phaze_opt.estimator.operator_table import operator_table
from phaze_opt.estimator.tensor_core import Pools, pools_of
from phaze_opt.network.cluster import Cluster
from phaze_opt.workload.graph import OperatorGraph

_BLOCK = 256
"""Chips that are estimated together."""
_COLUMNS = (
    "sustained_clock_hz",
    "array_clock_hz",
    "pe_vc",
    "l2_vc_bytes",
    "glb_bytes_per_cycle",
    "sustained_hbm_bytes_per_s",
    "vector_core_bytes_per_s",
    "scan_core_bytes_per_s",
    "calibration.operator_overhead_s",
    "calibration.attention_overlap",
    "attention_backward_overlap",
    "power_limited_clock_hz",
    "glb_bytes",
    "concurrent_operators",
    "pe_x",
    "pe_y",
    "exponentials_per_cycle",
    "array_rates",
)
"""What `estimate.estimate_work` asks of the chips."""


@dataclass(frozen=True, eq=False)
class LeastSeconds:
    """Some chips with the least seconds of all operators of a graph, in both modes.

    Attributes
    ----------
    chips
        The chips.
    where
        Their places among all chips.
    one_core, all_cores
        Arrays of shape (chips, operators).
    """

    chips: Chips
    where: slice
    one_core: ModeSeconds
    all_cores: ModeSeconds

    def part(self, operators: slice) -> LeastSeconds:
        """Return some operators."""
        some = slice(None), operators
        return LeastSeconds(
            self.chips, self.where, self.one_core.rows(some), self.all_cores.rows(some)
        )


def least_seconds(
    graph: OperatorGraph, chips: Chips, cluster: Cluster, tensor_parallel: int = 1
) -> Iterator[LeastSeconds]:
    """Yield the estimates of all operators, some chips after another.

    Parameters
    ----------
    graph, cluster, tensor_parallel
        As for `phaze_opt.estimator.estimate.estimate_table`, whose seconds these are.
    chips
        Those that share a pool of tensor cores are best given next to each other.

    Raises
    ------
    InputError
        As `phaze_opt.estimator.estimate.estimate_table`.
    """
    link_s, _ = communication_of(operator_table(graph), cluster, tensor_parallel)
    yield from least_seconds_beside(graph, chips, link_s)


def least_seconds_beside(
    graph: OperatorGraph, chips: Chips, link_s: FloatArray
) -> Iterator[LeastSeconds]:
    """Do as `least_seconds` beside the seconds of all operators on the network: (operators,)."""
    table = operator_table(graph)
    pools = _pools_of_both_modes(chips)
    on_pools = work_on_pools(table, pools)
    count = len(chips)
    single = np.ones(count, dtype=np.int64)
    tensor_cores, vector_cores = (
        chips.column(name)[:, 0].astype(np.int64) for name in ("num_tc", "num_vc")
    )
    for name in _COLUMNS:
        chips.column(name)  # once for all blocks
    for begin in range(0, count, _BLOCK):
        block = slice(begin, min(begin + _BLOCK, count))
        some = chips[block]
        one_core, all_cores = (
            estimate_work(
                table, some, link_s, on_pools.rows(which[block]), arrays[block], lanes[block]
            ).seconds
            for which, arrays, lanes in (
                (pools.which[:count], single, single),
                (pools.which[count:], tensor_cores, vector_cores),
            )
        )
        yield LeastSeconds(some, block, one_core, all_cores)


@lru_cache(maxsize=2)
def _pools_of_both_modes(chips: Chips) -> Pools:
    """Return the pools of one tensor core of every chip, then of all, cached."""
    all_cores = [chip.num_tc for chip in chips]
    return pools_of([*chips, *chips], [*[1] * len(chips), *all_cores])
