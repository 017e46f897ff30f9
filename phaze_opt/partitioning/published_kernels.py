"""The compiled loops of the published cost (`phaze_opt.partitioning.published`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled

LayerArrays = tuple[FloatArray, IntArray, FloatArray, NDArray[np.uint64]]
"""The layers at one tensor degree, in topological order:

- nodes (layers, 5): forward and backward seconds, bytes held, activation bytes, and 1 if the layer
  is not tensor-parallel;
- ends (edges, 2): source and destination, sorted by source;
- sizes (edges,): bytes;
- bits (downsets, words): members, see `downsets.Downsets`.
"""
_LAYER_ARRAYS_TYPE = "Tuple((f8[:, ::1], i8[:, ::1], f8[::1], u8[:, ::1]))"


@inlined
def _forward(index: int, layers: LayerArrays, bandwidth: float, out: FloatArray) -> None:
    """Fill, per layer outside a downset: ends of its forward with and without receives, bytes in.

    Layers and edges are in topological order, so one pass suffices.
    """
    nodes, ends, sizes, bits = layers
    out[:, :] = 0.0
    edge = 0
    # Edges are sorted by source, so that the end of a source is known before its edges are read.
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


@inlined
def _backward(index: int, layers: LayerArrays, bandwidth: float, out: FloatArray) -> None:
    """Fill, per layer of a downset: ends of its backward with and without receives."""
    nodes, ends, sizes, bits = layers
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


@inlined
def _stage(
    smaller: int,
    larger: int,
    layers: LayerArrays,
    ahead: FloatArray,
    behind: FloatArray,
    recompute: bool,
    out: FloatArray,
) -> bool:
    """Fill the cost of the stage between two downsets; false if they are not nested.

    Load as the last stage, load as another stage, bytes held, bytes per stash, and 1 if no layer of
    the stage is tensor-parallel.
    """
    nodes, _, _, bits = layers
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


@lazily_compiled(
    f"Tuple((i4[:, :, ::1], f8[:, :, ::1]))({_LAYER_ARRAYS_TYPE}, f8, f8, boolean, i8, i8)"
)
def split_table(
    layers: LayerArrays, bandwidth: float, memory: float, recompute: bool, stages: int, single: int
) -> tuple[NDArray[np.int32], FloatArray]:
    """Split the layers after each downset into stages with the least largest load.

    Parameters
    ----------
    layers
        The layers at one tensor degree, and their downsets.
    bandwidth
        Bytes per second between two stages.
    memory
        Bytes of a device.
    recompute
        Whether every stage but the last runs its forward again.
    stages, single
        Largest numbers of stages, and of stages on one device among them.

    Returns
    -------
    following : (downsets, stages + 1, single + 1)
        The next downset, by number of stages that remain and of those among them on one device.
    first : (stages + 1, single + 1, downsets)
        The largest load of all stages, by their number, by number on one device, and by the downset
        that is the first stage.
    """
    count, total = layers[0].shape[0], layers[3].shape[0]
    least = np.full((total, stages + 1, single + 1), np.inf)
    following = np.full((total, stages + 1, single + 1), -1, dtype=np.int32)
    first = np.full((stages + 1, single + 1, total), np.inf)
    least[total - 1, 0, 0] = 0.0
    ahead = np.zeros((count, 3))
    behind = np.zeros((total, count, 2))
    stage = np.zeros(5)
    for index in range(total):
        _backward(index, layers, bandwidth, behind[index])
    for smaller in range(total - 2, -1, -1):
        _forward(smaller, layers, bandwidth, ahead)
        for larger in range(smaller + 1, total):
            if not _stage(smaller, larger, layers, ahead, behind, recompute, stage):
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


@lazily_compiled("Tuple((f8, i8, i8, i8, i8))(f8[:, :, ::1], f8[::1], i8, i8, i8)")
def best_degrees(
    first: FloatArray, synchronisation_s: FloatArray, tensor: int, devices: int, batch: int
) -> tuple[float, int, int, int, int]:
    """Return the least time of a batch, with the degrees that give it.

    Parameters
    ----------
    first
        From `split_table`.
    synchronisation_s
        (downsets,): seconds to synchronise a first stage, of which (d − 1) / d count.
    tensor, devices, batch
        Tensor degree, number of devices, microbatches per batch.

    Returns
    -------
    Seconds, data degree, stages, stages on one device, and the downset that is the first stage.
    """
    best = (np.inf, 0, 0, 0, 0)
    for depth in range(1, first.shape[0]):
        for ones in range(min(depth, first.shape[1] - 1) + 1):
            used = tensor * (depth - ones) + ones
            for data in range(1, min(devices // used, batch) + 1):
                turns = -(-batch // data) + depth - 1
                share = (data - 1) / data
                for index in range(first.shape[2]):
                    time_s = turns * first[depth, ones, index] + share * synchronisation_s[index]
                    if time_s < best[0]:
                        best = (time_s, data, depth, ones, index)
    return best
