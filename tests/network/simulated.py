"""A simulation of messages on the links of a network, event by event.

Messages that share a link share its bandwidth fairly (max-min); one that is done lets the others go
faster. A *thread* is what some devices do one after another: in every step each of them sends, and
goes on once its messages are out and those to it are in.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from phaze_opt.network.cluster import Cluster

Link = tuple[object, ...]
Way = tuple[float, tuple[Link, ...]]
Thread = tuple[Sequence[int], Sequence["Step"]]
"""Devices, and their steps."""

Step = Callable[[int], list[tuple[int, float]]]
"""From a device to those that it sends to, with the bytes."""


@dataclass
class Simulated:
    """Links and ways of one level of network above at most one level of switches.

    Parameters
    ----------
    cluster
        The network.
    splits
        Whether messages that are as far in both ways around a ring go half each way.
    """

    cluster: Cluster
    splits: bool = False
    capacity: dict[Link, float] = field(default_factory=dict)
    _known: dict[tuple[int, int], list[Way]] = field(default_factory=dict)

    def ways(self, source: int, target: int) -> list[Way]:
        """Return the ways of a message, each with its share."""
        if (source, target) not in self._known:
            self._known[source, target] = list(self._find(source, target))
        return self._known[source, target]

    def _link(self, *name: object, rate: float) -> Link:
        self.capacity[name] = rate
        return name

    def _switched(self, index: int, source: int, target: int) -> tuple[Link, ...]:
        rate = self.cluster.levels[index].sustained_bytes_per_s
        out = self._link(index, "out", source, rate=rate)
        return out, self._link(index, "in", target, rate=rate)

    def _find(self, source: int, target: int) -> Iterator[Way]:
        levels = self.cluster.levels
        inner = levels[0]
        if inner.is_direct:
            yield from self._around(source, target)
            return
        unit = inner.group_size or self.cluster.devices
        if len(levels) > 1 and source // unit == target // unit:
            yield 1.0, self._switched(0, source, target)
            return
        index = len(levels) - 1
        outer = levels[index]
        first: tuple[Link, ...] = ()
        below = unit if index else 1
        if outer.topology == "rail" and source % below != target % below:
            over = source // below * below + target % below
            first, source = self._switched(0, source, over), over
        links = self._switched(index, source, target)
        leaf = outer.leaf_devices or self.cluster.devices
        rate = leaf * outer.sustained_bytes_per_s / outer.taper
        rail = outer.topology == "rail"
        under = [
            (at % below, at // below // leaf) if rail else at // leaf for at in (source, target)
        ]
        if under[0] != under[1]:
            up = self._link("up", under[0], rate=rate)
            links = (*links, up, self._link("down", under[1], rate=rate))
        yield 1.0, (*first, *links)

    def _around(self, source: int, target: int) -> Iterator[Way]:
        level = self.cluster.levels[0]
        axes = level.axes or (level.group_size or self.cluster.devices,)
        here, there = (_place(rank, axes) for rank in (source, target))
        options: list[list[int]] = []
        for extent, at, to in zip(axes, here, there, strict=True):
            up = (to - at) % extent
            ties = self.splits and 2 * up == extent
            options.append([up, up - extent] if ties else [up if 2 * up <= extent else up - extent])
        ways = list(itertools.product(*options))
        for way in ways:
            place, links = list(here), []
            for axis, places in enumerate(way):
                step = 1 if places > 0 else -1
                for _ in range(abs(places)):
                    links.append(self._link(*place, axis, step, rate=level.link_bytes_per_s))
                    place[axis] = (place[axis] + step) % axes[axis]
            yield 1.0 / len(ways), tuple(links)


def _place(rank: int, axes: tuple[int, ...]) -> list[int]:
    """Return the coordinates of a rank, first axis fastest."""
    place = []
    for extent in axes:
        rank, at = divmod(rank, extent)
        place.append(at)
    return place


def simulated_s(network: Simulated, threads: Sequence[Thread], latency_s: float) -> float:
    """Return when all threads are done; each is its devices and their steps."""
    expected = [[_ends(devices, step) for step in steps] for devices, steps in threads]
    arrived: dict[tuple[int, int, int], float] = defaultdict(float)
    flows: list[_Flow] = []
    active: list[_Flow] = []
    due: list[tuple[float, int]] = []
    now = 0.0

    def go_on(thread: int, device: int, step: int) -> None:
        """Begin a step of a device, and those after it of whose messages all are in."""
        steps = threads[thread][1]
        while step < len(steps):
            at[thread][device] = step
            for target, size in steps[step](device):
                for share, links in network.ways(device, target):
                    ends = (thread, device, step), (thread, target, step)
                    flows.append(_Flow(len(flows), share, size * share, links, ends))
                    active.append(flows[-1])
            if arrived[thread, device, step] < expected[thread][step][device] - 1e-6:
                return
            step += 1

    at = [dict.fromkeys(devices, 0) for devices, _ in threads]
    for thread, (devices, _) in enumerate(threads):
        for device in devices:
            go_on(thread, device, 0)
    while active or due:
        rates = _fair(network, [flow.links for flow in active])
        after = [flow.left / rate for flow, rate in zip(active, rates, strict=True)]
        passed = min([*after, *(entry[0] - now for entry in due[:1])])
        now += passed
        moving, active[:] = list(zip(active, rates, after, strict=True)), []
        for flow, rate, own_s in moving:
            flow.left -= rate * passed
            if own_s <= passed * (1 + 1e-9) + 1e-15:
                heapq.heappush(due, (now + latency_s, flow.number))
            else:
                active.append(flow)
        while due and due[0][0] <= now * (1 + 1e-12):
            flow = flows[heapq.heappop(due)[1]]
            for end in flow.ends:
                arrived[end] += flow.share
                thread, device, step = end
                whole = expected[thread][step][device] - 1e-6
                if at[thread][device] == step and arrived[end] >= whole > arrived[end] - flow.share:
                    go_on(thread, device, step + 1)
    return now


@dataclass
class _Flow:
    """A part of a message on its way: what is left of it, and the steps of both of its ends."""

    number: int
    share: float
    left: float
    links: tuple[Link, ...]
    ends: tuple[tuple[int, int, int], tuple[int, int, int]]


def _ends(devices: Sequence[int], step: Step) -> dict[int, float]:
    """Count the messages of a step that begin or end at each device."""
    count: dict[int, float] = defaultdict(float)
    for device in devices:
        for target, _ in step(device):
            count[device] += 1
            count[target] += 1
    return count


def _fair(network: Simulated, ways: Sequence[tuple[Link, ...]]) -> list[float]:
    """Return the max-min fair rates of messages."""
    numbers: dict[Link, int] = {}
    flow = np.array([i for i, way in enumerate(ways) for _ in way], dtype=np.int64)
    link = np.array([numbers.setdefault(v, len(numbers)) for way in ways for v in way], np.int64)
    free = np.array([network.capacity[name] for name in numbers])
    rates, open_ = np.zeros(len(ways)), np.ones(len(ways), dtype=bool)
    while open_.any():
        used = open_[flow]
        count = np.bincount(link[used], minlength=len(free))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(count > 0, free / count, np.inf)
        least = share.min()
        tight = np.zeros(len(ways), dtype=bool)
        tight[flow[used & (share[link] <= least * (1 + 1e-9))]] = True
        rates[tight] = least
        taken = tight[flow]
        free = np.maximum(free - np.bincount(link[taken], minlength=len(free)) * least, 0.0)
        open_ &= ~tight
    return rates.tolist()
