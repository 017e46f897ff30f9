"""The placement problem as Phaze (ICML 2024) states it, solved exactly for any layer graph.

The rules for a stage that is the s-th from the end: the forward of a layer starts when its
predecessors in the stage have finished and the tensors from other stages have arrived, and the
forward of the stage ends with its last layer; the backward mirrors the forward. Under recompute
every stage but the last runs its forward again before its backward. A stage holds ``s − 1`` stashes
and one set of activations. A batch takes ``(m + p − 1) · largest load`` plus the synchronisation of
the first stage's parameters. A stage without tensor-parallel layers takes a single device.

The published program refuses graphs with branches. Here stages are differences of downsets; in a
chain these are its intervals.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.codec import data_table, from_builtins
from phaze_opt.errors import InfeasibleError
from phaze_opt.partitioning.downsets import Downsets, TooManyDownsetsError, enumerate_downsets
from phaze_opt.partitioning.phaze_format import PhazeProblem
from phaze_opt.partitioning.published_kernels import LayerArrays, best_degrees, split_table
from phaze_opt.units import counted, format_bytes

MOST_DOWNSETS = 20_000
"""Most downsets of a layer graph that is solved; the time grows with the square of their number."""


@dataclass(frozen=True)
class PublishedCost:
    """Constants of the published cost, from ``data/phaze_cost.toml``.

    Attributes
    ----------
    synchronisation_volume
        Bytes that synchronisation moves per byte of parameters, times (d − 1) / d.
    parameter_copies
        Bytes of memory per byte of parameters, by optimizer.
    """

    source: str
    synchronisation_volume: float
    parameter_copies: dict[str, float]


@dataclass(frozen=True)
class PublishedStage:
    """The ids of a stage's layers in the file, and its devices per replica."""

    layers: tuple[int, ...]
    devices: int


@dataclass(frozen=True)
class PublishedPlacement:
    """The best placement under the published cost: degrees, largest load, stages in order."""

    time_per_batch_s: float
    pipeline: int
    data: int
    tensor: int
    max_load_s: float
    stages: tuple[PublishedStage, ...]
    solve_s: float


@dataclass(frozen=True)
class _DegreePlacement:
    """The best placement at one tensor degree; ``chain`` holds the indices of nested downsets."""

    time_s: float
    tensor: int
    data: int
    max_load_s: float
    downsets: Downsets
    chain: tuple[int, ...]


@cache
def published_cost() -> PublishedCost:
    """Return the constants of the published cost."""
    return from_builtins(
        data_table("partitioning", "phaze_cost.toml"), PublishedCost, "published cost"
    )


def solve_published(problem: PhazeProblem) -> PublishedPlacement:
    """Find the placement with the least time under the published cost.

    Raises
    ------
    InfeasibleError
        If no placement fits; the message says what does not.
    """
    placement = _search(problem)
    if placement is None:
        raise InfeasibleError(_why_infeasible(problem))
    return placement


def _search(problem: PhazeProblem) -> PublishedPlacement | None:
    """Return the best placement over all tensor degrees, or None."""
    began = time.perf_counter()
    placements: list[_DegreePlacement] = []
    known: dict[frozenset[tuple[int, int]], Downsets] = {}
    for tensor in sorted(problem.nodes):
        pairs = frozenset((edge.source, edge.destination) for edge in problem.edges[tensor])
        if pairs not in known:
            known[pairs] = _downsets(len(problem.nodes[tensor]), pairs)
        placement = _solve_degree(problem, tensor, known[pairs])
        if placement is not None:
            placements.append(placement)
    if not placements:
        return None
    best = min(placements, key=lambda placement: placement.time_s)
    return _describe(problem, best, time.perf_counter() - began)


def _downsets(count: int, pairs: frozenset[tuple[int, int]]) -> Downsets:
    """Enumerate downsets, or raise an `InfeasibleError` if there are too many."""
    try:
        return enumerate_downsets(count, sorted(pairs), MOST_DOWNSETS)
    except TooManyDownsetsError:
        raise InfeasibleError(
            f"The layer graph has more than {MOST_DOWNSETS} downsets, too many to split exactly; "
            "merge parallel branches into single layers."
        ) from None


def _solve_degree(
    problem: PhazeProblem, tensor: int, downsets: Downsets
) -> _DegreePlacement | None:
    """Return the best placement at one tensor degree, or None."""
    layers = _layer_arrays(problem, tensor, downsets)
    unsplit = layers[0][:, 4]
    # Stages on a single device are counted apart, but at tensor degree 1 every stage is on one.
    single = int(unsplit.sum()) if tensor > 1 else 0
    bandwidth = problem.bandwidth_bytes_per_s
    most_stages = min(len(unsplit), problem.devices)
    following, first = split_table(
        layers, bandwidth, problem.memory_bytes, problem.recompute, most_stages, single
    )
    synchronisation_s = _synchronisation_s(problem, tensor, downsets)
    time_s, data, stages, singles, index = best_degrees(
        first, synchronisation_s, tensor, problem.devices, problem.microbatches
    )
    if not np.isfinite(time_s):
        return None
    load_s = float(first[stages, singles, index])
    chain = [0, index]
    while chain[-1] != len(downsets) - 1:
        if single and unsplit[downsets.members(chain[-2], chain[-1])].all():
            singles -= 1
        stages -= 1
        chain.append(int(following[chain[-1], stages, singles]))
    return _DegreePlacement(float(time_s), tensor, int(data), load_s, downsets, tuple(chain))


def _layer_arrays(problem: PhazeProblem, tensor: int, downsets: Downsets) -> LayerArrays:
    """Return the layers at one tensor degree as the kernels take them."""
    copies = published_cost().parameter_copies[problem.optimizer]
    table = np.array(
        [
            (
                node.forward_s,
                node.backward_s,
                copies * node.parameter_bytes + node.activation_bytes,
                node.activation_bytes,
                0.0 if node.tensor_parallel else 1.0,
            )
            for node in problem.nodes[tensor]
        ]
    )
    edges = problem.edges[tensor]
    ends = np.array([(e.source, e.destination) for e in edges], dtype=np.int64).reshape(-1, 2)
    return table, ends, np.array([e.bytes for e in edges], dtype=np.float64), downsets.bits


def _synchronisation_s(problem: PhazeProblem, tensor: int, downsets: Downsets) -> FloatArray:
    """Return the seconds to synchronise each downset as the first stage: (downsets,)."""
    parameters = np.array([node.parameter_bytes for node in problem.nodes[tensor]])
    stage_bytes = [parameters[downsets.members(0, index)].sum() for index in range(len(downsets))]
    factor = published_cost().synchronisation_volume / problem.bandwidth_bytes_per_s
    return np.array(stage_bytes) * factor


def _describe(problem: PhazeProblem, best: _DegreePlacement, solve_s: float) -> PublishedPlacement:
    """Name the layers of every stage."""
    nodes = problem.nodes[best.tensor]
    stages = []
    for smaller, larger in pairwise(best.chain):
        members = [nodes[index] for index in best.downsets.members(smaller, larger)]
        devices = best.tensor if any(node.tensor_parallel for node in members) else 1
        stages.append(PublishedStage(tuple(node.id for node in members), devices))
    return PublishedPlacement(
        time_per_batch_s=best.time_s,
        pipeline=len(stages),
        data=best.data,
        tensor=best.tensor,
        max_load_s=best.max_load_s,
        stages=tuple(stages),
        solve_s=solve_s,
    )


def _why_infeasible(problem: PhazeProblem) -> str:
    """Say in one sentence what does not fit: the devices, a layer alone, or every split."""
    copies = published_cost().parameter_copies[problem.optimizer]
    needs = []
    for tensor, nodes in sorted(problem.nodes.items()):
        if tensor > problem.devices and any(node.tensor_parallel for node in nodes):
            continue
        largest = max(nodes, key=lambda n: copies * n.parameter_bytes + n.activation_bytes)
        need = copies * largest.parameter_bytes + largest.activation_bytes
        needs.append((need, tensor, largest.id))
    if not needs:
        return (
            f"No tensor degree fits {counted(problem.devices, 'device')}: the smallest is "
            f"{min(problem.nodes)}."
        )
    need, tensor, identifier = min(needs)
    over = need - problem.memory_bytes
    if over > 0:
        return (
            f"Layer {identifier} alone, at the tensor degree {tensor}, needs "
            f"{format_bytes(need)}, {format_bytes(over)} more than the "
            f"{format_bytes(problem.memory_bytes)} of a device."
        )
    return _why_no_split(problem)


def _why_no_split(problem: PhazeProblem) -> str:
    """Say how much memory the split with the least memory needs, by bisection to a thousandth."""
    too_little, enough = problem.memory_bytes, problem.memory_bytes
    placement: PublishedPlacement | None = None
    while placement is None or enough - too_little > 1e-3 * enough:
        trial = (too_little + enough) / 2 if placement else 2 * enough
        placed = _search(replace(problem, memory_bytes=trial))
        if placed is None:
            too_little = trial
            enough = max(enough, trial)
        else:
            placement, enough = placed, trial
    return (
        f"Every layer fits the {format_bytes(problem.memory_bytes)} of a device alone, but even "
        f"the split that needs least memory, {counted(placement.pipeline, 'stage')} at the "
        f"tensor degree {placement.tensor}, needs about {format_bytes(enough)} on its "
        f"fullest stage, {format_bytes(enough - problem.memory_bytes)} more."
    )
