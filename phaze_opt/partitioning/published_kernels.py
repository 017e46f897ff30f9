"""The inner loops of the published cost (`phaze_opt.partitioning.published`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import compiled


@compiled(
    "void(int64, float64[:,::1], int64[:,::1], float64[::1], uint64[:,::1], float64,"
    " float64[:,::1])"
)
def _forward(
    index: int,
    nodes: FloatArray,
    ends: IntArray,
    sizes: FloatArray,
    bits: NDArray[np.uint64],
    bandwidth: float,
    out: FloatArray,
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
    nodes: FloatArray,
    ends: IntArray,
    sizes: FloatArray,
    bits: NDArray[np.uint64],
    bandwidth: float,
    out: FloatArray,
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
    nodes: FloatArray,
    bits: NDArray[np.uint64],
    ahead: FloatArray,
    behind: FloatArray,
    recompute: bool,
    out: FloatArray,
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
def split_table(
    nodes: FloatArray,
    ends: IntArray,
    sizes: FloatArray,
    bits: NDArray[np.uint64],
    bandwidth: float,
    memory: float,
    recompute: bool,
    stages: int,
    single: int,
) -> tuple[NDArray[np.int32], FloatArray]:
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
def best_degrees(
    first: FloatArray, synchronisation_s: FloatArray, width: int, devices: int, batch: int
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
