"""Contiguous splits of any graph with the least largest load, by dynamic programming.

Devices take the differences of nested downsets, one after the other. The load of an accelerator is
its units' latency and, once per tensor, the transfer of every tensor that crosses its border; that
of a CPU is latency alone. After M. Tarnawski et al., "Efficient algorithms for device placement of
DNN graph operators" (NeurIPS 2020), with one addition: the best split of one topological order
bounds the answer, so sets above that bound are not built at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.errors import InfeasibleError
from phaze_opt.partitioning.colocation import Partition
from phaze_opt.partitioning.dag_kernels import left_over, relax_downsets
from phaze_opt.partitioning.downsets import Downsets, TooManyDownsetsError, enumerate_downsets
from phaze_opt.units import format_bytes

MOST_DOWNSETS = 250_000
"""Larger graphs are only split along one topological order."""

CHUNK = 2048
"""Downsets between two reports of progress."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Split:
    """Units on devices.

    Attributes
    ----------
    devices
        Kind (``"accelerator"`` or ``"cpu"``) and units of every device in use, in the order of the
        graph where the split is contiguous.
    loads
        Of every device, in the file's unit.
    status, bound
        ``"optimal"`` only where no split can have a largest load (or latency) below ``value``.
    """

    devices: tuple[tuple[str, tuple[int, ...]], ...]
    loads: tuple[float, ...]
    value: float
    status: str
    bound: float
    solve_s: float

    @property
    def gap(self) -> float:
        """``(value − bound) / value``; 0 where proven."""
        return max(0.0, (self.value - self.bound) / self.value) if self.value > 0 else 0.0


def device_load(partition: Partition, kind: str, units: tuple[int, ...]) -> float:
    """Return the load of one device by the definition."""
    if kind == "cpu":
        return sum(partition.units[unit].cpu_latency for unit in units)
    inside = set(units)
    transfers = sum(
        tensor.cost
        for tensor in partition.tensors
        if (tensor.producer in inside) != inside.issuperset(tensor.consumers)
        or (tensor.producer not in inside and not inside.isdisjoint(tensor.consumers))
    )
    return sum(partition.units[unit].accelerator_latency for unit in units) + transfers


def split_contiguous(
    partition: Partition, most_downsets: int = MOST_DOWNSETS, progress: Progress | None = None
) -> Split:
    """Find the contiguous split with the least largest load.

    Parameters
    ----------
    partition
        Units and devices.
    most_downsets
        With more downsets than that, only splits of one topological order are searched, and the
        status is ``"feasible"``.
    progress
        Called with downsets done and in total.

    Raises
    ------
    InfeasibleError
        If no split fits the accelerators' memory.
    """
    begin = time.perf_counter()
    linear = _solve(partition, _line(len(partition.units)), np.inf, None)
    try:
        downsets = enumerate_downsets(len(partition.units), partition.edges, most_downsets)
    except TooManyDownsetsError:
        if linear is None:
            raise InfeasibleError(explain(partition)) from None
        return _split(partition, linear, begin, proven=False)
    known = _value(partition, linear) if linear is not None else np.inf
    found = _solve(partition, downsets, known, progress)
    if found is None:
        raise InfeasibleError(explain(partition))
    return _split(partition, found, begin, proven=True)


def split_linearised(partition: Partition) -> Split:
    """Find the best split of one depth-first topological order; errors as `split_contiguous`."""
    begin = time.perf_counter()
    found = _solve(partition, _line(len(partition.units)), np.inf, None)
    if found is None:
        raise InfeasibleError(explain(partition))
    return _split(partition, found, begin, proven=False)


def _line(count: int) -> Downsets:
    """Return the downsets of one topological order: its prefixes."""
    return enumerate_downsets(count, [(node, node + 1) for node in range(count - 1)])


def _solve(
    partition: Partition, downsets: Downsets, known: float, progress: Progress | None
) -> list[tuple[str, tuple[int, ...]]] | None:
    """Return the devices of the best split, if there is one not above ``known``."""
    shape = (len(downsets), partition.accelerators + 1, partition.cpus + 1)
    least = np.full(shape, np.inf)
    least[0] = 0.0
    origin = np.full(shape, -1, dtype=np.int32)
    on_cpu = np.zeros(shape, dtype=np.bool_)
    arrays = _arrays(partition)
    visited = np.full(len(downsets), -1, dtype=np.int32)
    queue = np.zeros((len(downsets), 5))
    queued = np.zeros(len(downsets), dtype=np.int64)
    rest = left_over(
        downsets.grow_start,
        downsets.grow_node,
        downsets.grow_to,
        np.asarray(least_latencies(partition), dtype=np.float64),
    )
    for start in range(0, len(downsets), CHUNK):
        relax_downsets(
            start,
            min(start + CHUNK, len(downsets)),
            downsets.bits,
            downsets.grow_start,
            downsets.grow_node,
            downsets.grow_to,
            *arrays,
            partition.memory_bytes,
            known,
            rest,
            least,
            origin,
            on_cpu,
            visited,
            queue,
            queued,
        )
        if progress is not None:
            progress(min(start + CHUNK, len(downsets)), len(downsets))
    return _trace(downsets, least, origin, on_cpu)


def _arrays(
    partition: Partition,
) -> tuple[FloatArray, IntArray, IntArray, IntArray, IntArray, FloatArray]:
    """Return the partition as arrays.

    Units (accelerator latency, CPU latency, size); per unit the tensors it touches; per tensor its
    ends, producer first, and its cost.
    """
    units = np.array(
        [(u.accelerator_latency, u.cpu_latency, u.size_bytes) for u in partition.units]
    )
    touching: list[list[int]] = [[] for _ in partition.units]
    ends: list[int] = []
    end_start = [0]
    for index, tensor in enumerate(partition.tensors):
        for unit in (tensor.producer, *tensor.consumers):
            touching[unit].append(index)
            ends.append(unit)
        end_start.append(len(ends))
    touch_start = np.cumsum([0, *(len(tensors) for tensors in touching)])
    touch = [index for tensors in touching for index in tensors]
    costs = np.array([tensor.cost for tensor in partition.tensors], dtype=np.float64)
    return (
        units,
        np.asarray(touch_start, dtype=np.int64),
        np.asarray(touch, dtype=np.int64),
        np.asarray(end_start, dtype=np.int64),
        np.asarray(ends, dtype=np.int64),
        costs,
    )


def _trace(
    downsets: Downsets,
    least: FloatArray,
    origin: NDArray[np.int32],
    on_cpu: BoolArray,
) -> list[tuple[str, tuple[int, ...]]] | None:
    """Walk back from the whole graph; of equal answers that with the fewest devices."""
    last = len(downsets) - 1
    best = least[last].min()
    if not np.isfinite(best):
        return None
    options = np.argwhere(least[last] <= best)
    accelerators, cpus = min((tuple(o) for o in options), key=lambda o: (o[0] + o[1], o[1]))
    devices: list[tuple[str, tuple[int, ...]]] = []
    index = last
    while index != 0:
        state = index, accelerators, cpus
        before, cpu = int(origin[state]), bool(on_cpu[state])
        units = tuple(downsets.members(before, index))
        devices.append(("cpu" if cpu else "accelerator", units))
        index, accelerators, cpus = before, accelerators - (not cpu), cpus - cpu
    return devices[::-1]


def _value(partition: Partition, devices: list[tuple[str, tuple[int, ...]]]) -> float:
    """Return the largest load."""
    return max(device_load(partition, kind, units) for kind, units in devices)


def _split(
    partition: Partition, devices: list[tuple[str, tuple[int, ...]]], begin: float, proven: bool
) -> Split:
    """Describe a split; without a proof the bound is the even share of the least work."""
    loads = tuple(device_load(partition, kind, units) for kind, units in devices)
    value = max(loads)
    return Split(
        devices=tuple(devices),
        loads=loads,
        value=value,
        status="optimal" if proven else "feasible",
        bound=value if proven else min(value, share_bound(partition)),
        solve_s=time.perf_counter() - begin,
    )


def least_latencies(partition: Partition) -> list[float]:
    """Return every unit's latency on the kind of device that runs it fastest.

    Raises
    ------
    InfeasibleError
        If there is no device that can run some unit.
    """
    latencies = [
        min(
            unit.accelerator_latency if partition.accelerators else np.inf,
            unit.cpu_latency if partition.cpus else np.inf,
        )
        for unit in partition.units
    ]
    if not np.isfinite(latencies).all():
        raise InfeasibleError(explain(partition))
    return latencies


def share_bound(partition: Partition) -> float:
    """Bound the largest load from below: the least work spread evenly over all devices."""
    cheapest = least_latencies(partition)
    return max(sum(cheapest) / (partition.accelerators + partition.cpus), max(cheapest))


def explain(partition: Partition) -> str:
    """Say why no split fits."""
    if partition.accelerators + partition.cpus == 0:
        return "There is neither an accelerator nor a CPU to place anything on."
    if partition.cpus == 0:
        for index, unit in enumerate(partition.units):
            if np.isinf(unit.accelerator_latency):
                return f"Unit {index} is not supported by accelerators and there is no CPU."
    largest = max(range(len(partition.units)), key=lambda i: partition.units[i].size_bytes)
    size_bytes = partition.units[largest].size_bytes
    if size_bytes > partition.memory_bytes:
        over = format_bytes(size_bytes - partition.memory_bytes)
        return (
            f"Unit {largest} (nodes {list(partition.units[largest].members)}) needs "
            f"{format_bytes(size_bytes)}, {over} more than the "
            f"{format_bytes(partition.memory_bytes)} of an accelerator, and there is no CPU."
        )
    total = sum(unit.size_bytes for unit in partition.units)
    room = partition.accelerators * partition.memory_bytes
    if total > room:
        return (
            f"All units together need {format_bytes(total)}, {format_bytes(total - room)} more "
            f"than the {format_bytes(room)} of {partition.accelerators} accelerators, and there "
            "is no CPU."
        )
    return (
        f"No contiguous split over {partition.accelerators} accelerators of "
        f"{format_bytes(partition.memory_bytes)} fits, although all units together need only "
        f"{format_bytes(total)}."
    )
