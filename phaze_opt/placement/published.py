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
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from phaze_opt.codec import from_builtins
from phaze_opt.errors import InfeasibleError
from phaze_opt.placement.compiled import compiled
from phaze_opt.placement.downsets import Downsets, TooManyDownsetsError, enumerate_downsets
from phaze_opt.placement.formats import PhazeProblem
from phaze_opt.units import format_bytes

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

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
    text = (
        resources.files("phaze_opt.placement").joinpath("data/phaze_cost.toml").read_text("utf-8")
    )
    return from_builtins(tomllib.loads(text), PublishedCost, "published cost")


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
    following, first = _split(
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
    time_s, data, depth, singles, index = _degrees(
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


@compiled(
    "void(int64, float64[:,::1], int64[:,::1], float64[::1], uint64[:,::1], float64,"
    " float64[:,::1])"
)
def _forward(
    index: int,
    nodes: Floats,
    ends: Integers,
    sizes: Floats,
    bits: NDArray[np.uint64],
    bandwidth: float,
    out: Floats,
) -> None:
    """Fill, per layer outside a downset: finish, finish without waiting, bytes entering it.

    Layers and edges are in topological order, so one pass suffices.
    """
    out[:, :] = 0.0
    edge = 0
    # Edges are sorted by source; the finishes flow along them once the source is done.
    for node in range(nodes.shape[0]):
        inside = bits[index, node // 64] >> np.uint64(node % 64) & np.uint64(1)
        out[node, 0] += nodes[node, 0]
        out[node, 1] += nodes[node, 0]
        while edge < len(sizes) and ends[edge, 0] == node:
            target = ends[edge, 1]
            if inside:
                out[target, 0] = max(out[target, 0], sizes[edge] / bandwidth)
                out[target, 2] += sizes[edge]
            else:
                out[target, 0] = max(out[target, 0], out[node, 0])
                out[target, 1] = max(out[target, 1], out[node, 1])
            edge += 1


@compiled(
    "void(int64, float64[:,::1], int64[:,::1], float64[::1], uint64[:,::1], float64,"
    " float64[:,::1])"
)
def _backward(
    index: int,
    nodes: Floats,
    ends: Integers,
    sizes: Floats,
    bits: NDArray[np.uint64],
    bandwidth: float,
    out: Floats,
) -> None:
    """Fill, per layer of a downset: finish of its backward, and the work alone up to there."""
    edge = len(sizes) - 1
    for node in range(nodes.shape[0] - 1, -1, -1):
        start = 0.0
        path = 0.0
        while edge >= 0 and ends[edge, 0] == node:
            target = ends[edge, 1]
            if bits[index, target // 64] >> np.uint64(target % 64) & np.uint64(1):
                start = max(start, out[target, 0])
                path = max(path, out[target, 1])
            else:
                start = max(start, sizes[edge] / bandwidth)
            edge -= 1
        out[node, 0] = start + nodes[node, 1]
        out[node, 1] = path + nodes[node, 1]


@compiled(
    "boolean(int64, int64, float64[:,::1], uint64[:,::1], float64[:,::1], float64[:,:,::1],"
    " boolean, float64[::1])"
)
def _stage(
    smaller: int,
    larger: int,
    nodes: Floats,
    bits: NDArray[np.uint64],
    ahead: Floats,
    behind: Floats,
    recompute: bool,
    out: Floats,
) -> bool:
    """Fill what the stage between two downsets costs; false if they are not nested.

    Load as the last stage, load as another one, bytes held, bytes per stash, and 1 if no layer of
    it is tensor-parallel.
    """
    for word in range(bits.shape[1]):
        if bits[smaller, word] & ~bits[larger, word]:
            return False
    forward, again, entering, finish, path = 0.0, 0.0, 0.0, 0.0, 0.0
    held, activations, alone = 0.0, 0.0, 1.0
    for node in range(nodes.shape[0]):
        word, shift = node // 64, np.uint64(node % 64)
        if not (bits[larger, word] & ~bits[smaller, word]) >> shift & np.uint64(1):
            continue
        forward = max(forward, ahead[node, 0])
        again = max(again, ahead[node, 1])
        entering += ahead[node, 2]
        finish = max(finish, behind[larger, node, 0])
        path = max(path, behind[larger, node, 1])
        held += nodes[node, 2]
        activations += nodes[node, 3]
        alone = min(alone, nodes[node, 4])
    out[0] = forward + finish
    out[1] = forward + max(again + path, finish) if recompute else out[0]
    out[2] = held
    out[3] = entering if recompute else activations
    out[4] = alone
    return True


@compiled(
    "Tuple((int32[:,:,::1], float64[:,:,::1]))(float64[:,::1], int64[:,::1],"
    " float64[::1], uint64[:,::1], float64, float64, boolean, int64, int64)"
)
def _split(
    nodes: Floats,
    ends: Integers,
    sizes: Floats,
    bits: NDArray[np.uint64],
    bandwidth: float,
    memory: float,
    recompute: bool,
    stages: int,
    single: int,
) -> tuple[NDArray[np.int32], Floats]:
    """Return how to split what follows each downset with the least largest load.

    ``following[downset, stages left, of these on one device]`` is the next downset, and
    ``first[stages, of these on one device, first stage's downset]`` the largest load of all.
    """
    count, total = nodes.shape[0], bits.shape[0]
    least = np.full((total, stages + 1, single + 1), np.inf)
    following = np.full((total, stages + 1, single + 1), -1, dtype=np.int32)
    first = np.full((stages + 1, single + 1, total), np.inf)
    least[total - 1, 0, 0] = 0.0
    ahead = np.zeros((count, 3))
    behind = np.zeros((total, count, 2))
    stage = np.zeros(5)
    for index in range(total):
        _backward(index, nodes, ends, sizes, bits, bandwidth, behind[index])
    for smaller in range(total - 2, -1, -1):
        _forward(smaller, nodes, ends, sizes, bits, bandwidth, ahead)
        for larger in range(smaller + 1, total):
            if not _stage(smaller, larger, nodes, bits, ahead, behind, recompute, stage):
                continue
            alone = int(stage[4]) if single > 0 else 0
            for left in range(1, stages + 1):
                if stage[2] + (left - 1) * stage[3] > memory:
                    break
                load = stage[0] if left == 1 else stage[1]
                for ones in range(alone, single + 1):
                    value = max(load, least[larger, left - 1, ones - alone])
                    if value < least[smaller, left, ones]:
                        least[smaller, left, ones] = value
                        following[smaller, left, ones] = larger
                    if smaller == 0:
                        first[left, ones, larger] = value
    return following, first


@compiled(
    "Tuple((float64, int64, int64, int64, int64))(float64[:,:,::1], float64[::1], int64, int64,"
    " int64)"
)
def _degrees(
    first: Floats, synchronisation_s: Floats, width: int, devices: int, batch: int
) -> tuple[float, int, int, int, int]:
    """Return the least time with its data degree, stages, one-device stages and first downset."""
    best = (np.inf, 0, 0, 0, 0)
    for depth in range(1, first.shape[0]):
        for ones in range(min(depth, first.shape[1] - 1) + 1):
            used = width * (depth - ones) + ones
            for data in range(1, min(devices // used, batch) + 1):
                turns = -(-batch // data) + depth - 1
                share = (data - 1) / data
                for index in range(first.shape[2]):
                    time_s = turns * first[depth, ones, index] + share * synchronisation_s[index]
                    if time_s < best[0]:
                        best = (time_s, data, depth, ones, index)
    return best


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
