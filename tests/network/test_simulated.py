"""Closed forms of collectives against the simulation of their messages, up to 64 devices."""

import math
from collections.abc import Iterator

import pytest

from phaze_opt.choices import CollectiveName
from phaze_opt.network.cluster import Cluster, NetworkLevel, Topology
from phaze_opt.network.collective import collective_terms
from tests.network.simulated import Simulated, Step, Thread, simulated_s

BYTES = 1e9
LATENCY_S = 1e-3
"""Of a message: a few percent of the time of what is sent."""


def torus(*axes: int) -> Cluster:
    """Return one torus of links of 25 GB/s."""
    level = NetworkLevel(5e10 * len(axes), LATENCY_S, "torus", axes=axes)
    return Cluster("torus", (level,), math.prod(axes))


def switch(devices: int = 16) -> Cluster:
    """Return one switch."""
    return Cluster("switch", (NetworkLevel(1e11, LATENCY_S, "switch"),), devices)


def leaves(
    topology: Topology, leaf: int, taper: float, devices: int = 64, unit: int = 1
) -> Cluster:
    """Return leaf switches, above switches of some devices if there are several in a unit."""
    outer = NetworkLevel(2.5e10, LATENCY_S, topology, taper=taper, leaf_devices=leaf)
    inner = NetworkLevel(3e11, LATENCY_S, "switch", unit)
    return Cluster("leaves", (inner, outer) if unit > 1 else (outer,), devices)


def groups(devices: int, group: int, stride: int) -> list[list[int]]:
    """List the ranks of all groups."""
    return [
        [block + offset + stride * member for member in range(group)]
        for block in range(0, devices - group * stride + 1, group * stride)
        for offset in range(stride)
    ]


def rings(ranks: list[int], size: float, steps: int, back: bool = False) -> Thread:
    """Return a thread: in every step, all send to the next one."""
    following = dict(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    if back:
        following = {target: source for source, target in following.items()}

    def step(device: int) -> list[tuple[int, float]]:
        return [(following[device], size)]

    return ranks, [step] * steps


def pairs(ranks: list[int], size: float) -> Thread:
    """Return a thread: all send to all others at once."""

    def step(device: int) -> list[tuple[int, float]]:
        return [(other, size) for other in ranks if other != device]

    return ranks, [step]


def halves(ranks: list[int], size: float) -> Thread:
    """Return a thread: recursive halving, with half of the tensor half the group away."""

    def exchange(distance: int) -> Step:
        part = size * distance / len(ranks)
        return lambda device: [(ranks[ranks.index(device) ^ distance], part)]

    distances = [1 << bit for bit in reversed(range(len(ranks).bit_length() - 1))]
    return ranks, [exchange(distance) for distance in distances]


Case = tuple[Cluster, int, int, CollectiveName, str]

CASES: list[Case] = [
    (switch(), 16, 1, "all_gather", "ring"),
    (switch(), 5, 3, "all_reduce", "ring"),
    (switch(), 8, 2, "reduce_scatter", "tree"),
    (torus(8), 8, 1, "all_to_all", "hierarchical"),
    (torus(16), 16, 1, "all_to_all", "hierarchical"),
    (torus(7), 7, 1, "all_to_all", "hierarchical"),
    (torus(4, 4), 16, 1, "all_to_all", "hierarchical"),
    (torus(8, 8), 64, 1, "all_to_all", "hierarchical"),
    (torus(4, 4, 4), 64, 1, "all_to_all", "hierarchical"),
    (torus(8, 4), 32, 1, "all_to_all", "hierarchical"),
    (torus(16), 4, 1, "all_to_all", "hierarchical"),
    (torus(4, 4), 4, 4, "all_to_all", "hierarchical"),
    (torus(16), 4, 4, "all_gather", "ring"),
    (torus(4, 4, 4), 16, 4, "all_gather", "ring"),
    (torus(8, 4), 8, 4, "reduce_scatter", "ring"),
    (leaves("fat-tree", 8, 2.0), 64, 1, "all_gather", "ring"),
    (leaves("fat-tree", 8, 4.0), 16, 4, "all_gather", "ring"),
    (leaves("fat-tree", 8, 2.0), 8, 8, "all_reduce", "ring"),
    (leaves("fat-tree", 16, 4.0), 4, 16, "reduce_scatter", "ring"),
    (leaves("fat-tree", 8, 2.0), 32, 1, "all_to_all", "pairwise"),
    (leaves("fat-tree", 16, 4.0), 8, 8, "all_to_all", "pairwise"),
    (leaves("fat-tree", 16, 3.0), 8, 2, "all_to_all", "pairwise"),
    (leaves("fat-tree", 8, 2.0), 32, 2, "reduce_scatter", "tree"),
    (leaves("fat-tree", 8, 4.0), 8, 8, "all_gather", "tree"),
    (leaves("fat-tree", 8, 2.0, unit=4), 16, 4, "all_gather", "ring"),
    (leaves("fat-tree", 8, 2.0, unit=4), 16, 4, "all_to_all", "pairwise"),
    (leaves("rail", 8, 2.0, unit=4), 16, 4, "all_gather", "ring"),
    (leaves("rail", 4, 2.0, unit=4), 16, 4, "all_to_all", "pairwise"),
    (leaves("rail", 4, 4.0, unit=4), 4, 16, "all_gather", "ring"),
    (leaves("rail", 4, 4.0, unit=4), 64, 1, "all_to_all", "pairwise"),
]


def threads_of(
    cluster: Cluster, group: int, stride: int, kind: str, algorithm: str
) -> Iterator[Thread]:
    """Yield what all groups do."""
    passes = 2 if kind == "all_reduce" else 1
    for ranks in groups(cluster.devices, group, stride):
        if kind == "all_to_all":
            yield pairs(ranks, BYTES / group)
        elif algorithm == "tree":
            yield halves(ranks, BYTES)
        else:
            yield rings(ranks, BYTES / group, passes * (group - 1))


def names(case: Case) -> str:
    """Name a case."""
    level = case[0].levels[-1]
    shape = "x".join(map(str, level.axes)) or f"{level.leaf_devices}:{level.taper:g}"
    return f"{level.topology}-{shape}-{case[1]}-{case[2]}-{case[3]}-{case[4]}"


@pytest.mark.parametrize("case", CASES, ids=names)
def test_closed_forms_are_what_the_messages_take(case: Case) -> None:
    """All groups at once, within 5 %; an all-to-all without the latencies of its messages."""
    cluster, group, stride, kind, algorithm = case
    terms = {term.algorithm: term for term in collective_terms(kind, group, cluster, stride)}
    exchange = kind == "all_to_all"
    network = Simulated(cluster, splits=exchange)
    latency_s = 0.0 if exchange else LATENCY_S
    taken_s = simulated_s(network, list(threads_of(*case)), latency_s)
    term = terms[algorithm]
    predicted_s = term.s_per_byte * BYTES if exchange else term.seconds(BYTES)
    assert predicted_s == pytest.approx(taken_s, rel=0.05)


@pytest.mark.parametrize("axes", [(8,), (4, 4), (8, 4), (4, 4, 4), (2, 4, 8)])
def test_going_by_axes_is_what_the_messages_take(axes: tuple[int, ...]) -> None:
    """A part of the tensor per axis and way round, each along another axis, phase by phase."""
    cluster = torus(*axes)
    devices = math.prod(axes)
    term = next(
        term
        for term in collective_terms("reduce_scatter", devices, cluster)
        if term.algorithm == "hierarchical"
    )
    total_s = 0.0
    for phase in range(len(axes)):
        network = Simulated(cluster, splits=True)
        total_s += simulated_s(network, list(_phase(axes, phase)), 0.0)
    assert term.s_per_byte * BYTES == pytest.approx(total_s, rel=0.05)


def _phase(axes: tuple[int, ...], phase: int) -> Iterator[Thread]:
    """Yield the rings of one phase of a reduce-scatter by axes."""
    for part in range(len(axes)):
        done = math.prod(axes[(part + step) % len(axes)] for step in range(phase))
        axis = (part + phase) % len(axes)
        stride, extent = math.prod(axes[:axis]), axes[axis]
        # The two ways round; two devices have one link each way, which both of their rings share.
        for ranks in groups(math.prod(axes), extent, stride):
            size = BYTES / extent / done / len(axes) / 2
            yield rings(ranks, size, extent - 1)
            yield rings(ranks, size, extent - 1, back=True)


def test_ways_of_messages() -> None:
    """The simulation is right where the answer is plain: one link, a shared one, two steps."""
    network = Simulated(switch(4))
    one = ([0, 1], [lambda device: [(1, 1e11)] if device == 0 else []])
    assert simulated_s(network, [one], 0.0) == pytest.approx(1.0)
    shared = ([0, 1, 2], [lambda device: [(1, 1e11)] if device != 1 else []])
    assert simulated_s(network, [shared], 0.0) == pytest.approx(2.0)
    twice = ([0, 1], [one[1][0], lambda device: [(0, 1e11)] if device == 1 else []])
    assert simulated_s(network, [twice], 0.5) == pytest.approx(3.0)
