"""The compiled loops of the search over paths (`phaze_opt.partitioning.path_search`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled
from phaze_opt.partitioning.path_arrays import PathArrays

Reached = tuple[NDArray[np.uint8], NDArray[np.int32], FloatArray]
"""What stages from the empty downset reach, each by most CPUs:

- level (CPUs + 1, downsets): 1 + the fewest accelerators; 0 where it is not reached;
- origin (CPUs + 1, downsets): the downset before the last stage; if that is on a CPU, −1 − it;
- most (accelerators + 1, CPUs + 1): the most least latency that these devices do.
"""


_STEPS_PER_STAGE = 4
"""A downset that is reached is somewhere in memory, which takes longer than a step."""


@inlined
def _price(price: FloatArray, word: np.uint64) -> float:
    """Return the transfers of the tensors of a word."""
    total = 0.0
    byte = 0
    while word:
        total += price[byte, np.int64(word & np.uint64(255))]
        word >>= np.uint64(8)
        byte += 1
    return total


@inlined
def _read_ends(number: int, paths: PathArrays, first: IntArray, later: FloatArray) -> None:
    """Write how far a downset reaches on each path, and the least latency left from each on."""
    for path in range(len(first) - 1, -1, -1):
        length = paths.length[path]
        first[path] = number // paths.stride[path] % (length + 1)
        later[path] = later[path + 1] + paths.least[path, length] - paths.least[path, first[path]]


@inlined
def _number_of(paths: PathArrays, end: IntArray) -> int:
    """Return the number of the downset that reaches so far on each path."""
    number = 0
    for path in range(len(end)):
        number += end[path] * paths.stride[path]
    return number


@inlined
def _least_end(paths: PathArrays, first: IntArray, end: IntArray, path: int) -> int:
    """Return how far a path must reach, by what the stage takes of the paths before it."""
    least = first[path]
    for other in range(path):
        least = max(least, paths.needs[other, end[other], path])
    return int(least)


@inlined
def _is_closed(paths: PathArrays, end: IntArray, path: int) -> bool:
    """Say whether the paths before one reach as far as its own end needs."""
    closed = True
    for other in range(path):
        closed = closed and end[other] >= paths.needs[path, end[path], other]
    return closed


@inlined
def _record(
    reached: Reached, downset: int, before: int, accelerators: int, cpus: int, on_cpu: bool
) -> None:
    """Note that a downset is reached."""
    level, origin, _ = reached
    for most in range(cpus, len(level)):
        if level[most, downset] == 0:
            level[most, downset] = accelerators + 1
            origin[most, downset] = -1 - before if on_cpu else before


@lazily_compiled(
    "i8(i8[::1], i8, i8, b1, PathArrays, f8, f8, f8, i8,"
    " Tuple((u1[:, ::1], i4[:, ::1], f8[:, ::1])))"
)
def extend_downsets(
    downsets: IntArray,
    accelerators: int,
    cpus: int,
    on_cpu: bool,
    paths: PathArrays,
    limit: float,
    memory: float,
    room: float,
    steps: int,
    reached: Reached,
) -> int:
    """Extend downsets by every stage within a load after which the devices that remain may do.

    Along each path a stage grows by one unit at a time. Its latency, its size, and the transfers
    of what is fixed on earlier paths only grow, and so does what its load is above its least
    latency.

    Parameters
    ----------
    downsets
        Their numbers.
    accelerators, cpus
        Devices with the stage.
    on_cpu
        Whether the stage is on a CPU.
    paths
        The graph.
    limit, memory
        Largest load of a device, and size on an accelerator.
    room
        The most least latency that the devices after the stage do.
    steps
        Most steps that may be done.
    reached
        Takes what is reached.

    Returns
    -------
    The steps left; negative if they did not suffice.
    """
    count = len(paths.length)
    first, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    # Of the paths before each, up to their ends: least latency, size, latency and transfers of
    # single paths, other transfers, and the bits of their tensors. ``later``: least latency left.
    least, size, own = np.zeros(count + 1), np.zeros(count + 1), np.zeros(count + 1)
    shared, later = np.zeros(count + 1), np.zeros(count + 1)
    inside, outside = np.zeros(count + 1, np.uint64), np.zeros(count + 1, np.uint64)
    furthest, total = 0.0, 0.0
    for path in range(count):
        total += paths.least[path, paths.length[path]]
    for before in downsets:
        _read_ends(before, paths, first, later)
        needed = later[0] - room
        path = 0
        end[0] = first[0] - 1
        while path >= 0:
            end[path] += 1
            steps -= 1
            if steps < 0:
                return steps
            a, b = first[path], end[path]
            if b > paths.length[path]:
                path -= 1
                continue
            fits = _is_closed(paths, end, path)
            if on_cpu:
                busy = own[path] + paths.cpu[path, b] - paths.cpu[path, a]
            else:
                busy = own[path] + shared[path] + paths.work[path, a, b]
                size[path + 1] = size[path] + paths.size[path, b] - paths.size[path, a]
                fits = fits and size[path + 1] <= memory
            if not fits or busy > limit:
                path -= 1
                continue
            done = least[path] + paths.least[path, b] - paths.least[path, a]
            if done + later[path + 1] < needed:
                continue
            least[path + 1] = done
            if on_cpu:
                own[path + 1] = busy
            else:
                own[path + 1] = own[path] + paths.load[path, a, b]
                inside[path + 1] = inside[path] | paths.inside[path, a, b]
                outside[path + 1] = outside[path] | paths.outside[path, a, b]
                shared[path + 1] = _price(paths.price, inside[path + 1] & outside[path + 1])
                busy = own[path + 1] + shared[path + 1]
                if busy > limit:
                    continue
            if busy - done > limit - needed:
                continue
            path += 1
            if path < count:
                end[path] = _least_end(paths, first, end, path) - 1
                continue
            path -= 1
            furthest = max(furthest, total - later[0] + done)
            steps -= _STEPS_PER_STAGE
            _record(reached, _number_of(paths, end), before, accelerators, cpus, on_cpu)
    most = reached[2]
    most[accelerators, cpus] = max(most[accelerators, cpus], furthest)
    return steps
