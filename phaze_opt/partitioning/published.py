"""The placement problem as Phaze (ICML 2024) states it, solved for any layer graph.

The rules, for a stage that is the s-th from the end: a layer's forward starts when its
predecessors in the stage have finished and the tensors from outside have arrived, and the stage's
forward ends with its last layer; the backward mirrors it. Under recompute every stage but the last
runs its forward again before the backward. It holds ``s − 1`` stashes beside one set of
activations. A batch takes ``(m + p − 1) · largest load`` and the synchronisation of the first
stage's parameters. Layers without any tensor-parallel one on their stage take a single device.

The published program refuses branching; here stages are differences of downsets, which for a chain
are its intervals.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from phaze_opt.codec import data_table, from_builtins
from phaze_opt.errors import InfeasibleError
from phaze_opt.partitioning.downsets import Downsets, TooManyDownsetsError, enumerate_downsets
from phaze_opt.partitioning.formats import PhazeProblem
from phaze_opt.partitioning.published_kernels import best_degrees, split_table
from phaze_opt.units import format_bytes

MOST_DOWNSETS = 20_000
"""Largest layer graph that is solved; its pairs of downsets are walked through."""


@dataclass(frozen=True)
class PublishedCost:
    """Constants of the published cost, see ``data/phaze_cost.toml``."""

    source: str
    synchronisation_volume: float
    parameter_copies: dict[str, float]


@dataclass(frozen=True)
class PublishedPlacement:
    """The best placement under the published cost.

    Attributes
    ----------
    stages
        Ids of the layers of each stage, first stage first.
    stage_devices
        Devices of each stage, per replica.
    """

    time_per_batch_s: float
    pipeline: int
    data: int
    tensor: int
    stages: tuple[tuple[int, ...], ...]
    stage_devices: tuple[int, ...]
    max_load_s: float
    solve_s: float


@dataclass(frozen=True)
class _Answer:
    """The best placement at one width, stages as indices of nested downsets."""

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
        raise InfeasibleError(_explain(problem))
    return placement


def _search(problem: PhazeProblem) -> PublishedPlacement | None:
    """Return the best placement over all widths, if there is any."""
    begin = time.perf_counter()
    found: list[_Answer] = []
    known: dict[frozenset[tuple[int, int]], Downsets] = {}
    for width in sorted(problem.nodes):
        pairs = frozenset((edge.source, edge.destination) for edge in problem.edges[width])
        if pairs not in known:
            known[pairs] = _downsets(len(problem.nodes[width]), pairs)
        answer = _solve_width(problem, width, known[pairs])
        if answer is not None:
            found.append(answer)
    if not found:
        return None
    best = min(found, key=lambda answer: answer.time_s)
    return _describe(problem, best, time.perf_counter() - begin)


def _downsets(count: int, pairs: frozenset[tuple[int, int]]) -> Downsets:
    try:
        return enumerate_downsets(count, sorted(pairs), MOST_DOWNSETS)
    except TooManyDownsetsError:
        raise InfeasibleError(
            f"The layer graph has more than {MOST_DOWNSETS} downsets, too many to split exactly; "
            "merge parallel branches into single layers."
        ) from None


def _solve_width(problem: PhazeProblem, width: int, downsets: Downsets) -> _Answer | None:
    """Return the best placement at one width, if there is any."""
    nodes, edges = problem.nodes[width], problem.edges[width]
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
            for node in nodes
        ]
    )
    ends = np.array([(e.source, e.destination) for e in edges], dtype=np.int64).reshape(-1, 2)
    sizes = np.array([e.bytes for e in edges], dtype=np.float64)
    # Stages of one device are counted apart; at width 1 every stage has one.
    single = int(table[:, 4].sum()) if width > 1 else 0
    stages = min(len(nodes), problem.devices)
    following, first = split_table(
        table,
        ends,
        sizes,
        downsets.bits,
        problem.bandwidth_bytes_per_s,
        problem.memory_bytes,
        problem.recompute,
        stages,
        single,
    )
    parameters = np.array([node.parameter_bytes for node in nodes])
    first_parameters = np.array(
        [parameters[downsets.members(0, index)].sum() for index in range(len(downsets))]
    )
    factor = published_cost().synchronisation_volume / problem.bandwidth_bytes_per_s
    time_s, data, depth, singles, index = best_degrees(
        first, first_parameters * factor, width, problem.devices, problem.microbatches
    )
    if not np.isfinite(time_s):
        return None
    load_s = float(first[depth, singles, index])
    chain = [0, index]
    kind = table[:, 4]
    place, left = depth, singles
    while chain[-1] != len(downsets) - 1:
        if single and kind[downsets.members(chain[-2], chain[-1])].all():
            left -= 1
        place -= 1
        chain.append(int(following[chain[-1], place, left]))
    return _Answer(float(time_s), width, int(data), load_s, downsets, tuple(chain))


def _describe(problem: PhazeProblem, best: _Answer, solve_s: float) -> PublishedPlacement:
    """Name the layers of every stage."""
    nodes = problem.nodes[best.tensor]
    stages, devices = [], []
    for smaller, larger in zip(best.chain[:-1], best.chain[1:], strict=True):
        members = [nodes[index] for index in best.downsets.members(smaller, larger)]
        stages.append(tuple(node.id for node in members))
        devices.append(best.tensor if any(node.tensor_parallel for node in members) else 1)
    return PublishedPlacement(
        time_per_batch_s=best.time_s,
        pipeline=len(stages),
        data=best.data,
        tensor=best.tensor,
        stages=tuple(stages),
        stage_devices=tuple(devices),
        max_load_s=best.max_load_s,
        solve_s=solve_s,
    )


def _explain(problem: PhazeProblem) -> str:
    """Say what does not fit: devices, a layer, or every split."""
    copies = published_cost().parameter_copies[problem.optimizer]
    needs = []
    for width, nodes in sorted(problem.nodes.items()):
        if width > problem.devices and any(node.tensor_parallel for node in nodes):
            continue
        largest = max(nodes, key=lambda n: copies * n.parameter_bytes + n.activation_bytes)
        need = copies * largest.parameter_bytes + largest.activation_bytes
        needs.append((need, width, largest.id))
    if not needs:
        return (
            f"No tensor-parallel width fits {problem.devices} devices: the smallest is "
            f"{min(problem.nodes)}."
        )
    need, width, identifier = min(needs)
    over = need - problem.memory_bytes
    if over > 0:
        return (
            f"Layer {identifier} alone, at the tensor-parallel width {width}, needs "
            f"{format_bytes(need)}, {format_bytes(over)} more than the "
            f"{format_bytes(problem.memory_bytes)} of a device."
        )
    return _explain_split(problem)


def _explain_split(problem: PhazeProblem) -> str:
    """Say how much memory the thriftiest split needs, to about a thousandth."""
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
        f"the split that needs least memory, {placement.pipeline} stages at the tensor-parallel "
        f"width {placement.tensor}, needs about {format_bytes(enough)} on its fullest stage, "
        f"{format_bytes(enough - problem.memory_bytes)} more."
    )
