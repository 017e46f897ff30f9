"""Times on a torus against a count of the bytes on every directed link."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.collective import collective_terms
from phaze_opt.network.groups import members_per_level
from phaze_opt.network.message import messages_per_link, send_receive_s
from phaze_opt.network.torus import is_grid, ring_load, shift_load

TORUSES = [(8,), (9,), (4, 4), (8, 4), (3, 5), (6, 4), (4, 2, 4), (5, 4, 3), (2, 2, 2), (1, 4, 2)]
LINK_BYTES_PER_S = 1e9

Link = tuple[tuple[int, ...], int, int]
Place = tuple[int, ...]


def torus(*axes: int) -> Cluster:
    """Return one torus without latency."""
    level = NetworkLevel(2 * len(axes) * LINK_BYTES_PER_S, 0.0, "torus", axes=axes)
    return Cluster("torus", (level,), math.prod(axes))


def place(rank: int, axes: tuple[int, ...]) -> Place:
    """Return the coordinates of a rank, first axis fastest."""
    coordinates = []
    for extent in axes:
        rank, coordinate = divmod(rank, extent)
        coordinates.append(coordinate)
    return tuple(coordinates)


def walk(here: Place, axis: int, places: int, axes: tuple[int, ...]) -> Iterator[Link]:
    """Yield the directed links of a way along an axis: so many places up, or down if negative."""
    step = 1 if places > 0 else -1
    for passed in range(0, places, step):
        at = (here[axis] + passed) % axes[axis]
        yield (*here[:axis], at, *here[axis + 1 :]), axis, step


def route(source: Place, target: Place, axes: tuple[int, ...]) -> Iterator[Link]:
    """Yield the directed links from one device to another, axis by axis, the shorter way."""
    here = source
    for axis, extent in enumerate(axes):
        up = (target[axis] - here[axis]) % extent
        yield from walk(here, axis, up if 2 * up <= extent else up - extent, axes)
        here = (*here[:axis], target[axis], *here[axis + 1 :])


def groups(devices: int, group: int, stride: int) -> list[list[int]]:
    """List the ranks of all groups."""
    return [
        [block + offset + stride * i for i in range(group)]
        for block in range(0, devices - group * stride + 1, group * stride)
        for offset in range(stride)
    ]


def rings(axes: tuple[int, ...]) -> list[tuple[int, int, int, bool]]:
    """List all groups and strides with the rings on the busiest link, and which are grids."""
    devices = math.prod(axes)
    cuts = list(itertools.accumulate(axes, lambda a, b: a * b))[:-1]
    rows = []
    for group in range(2, devices + 1):
        for stride in range(1, devices // group + 1):
            count: Counter[Link] = Counter()
            for ranks in groups(devices, group, stride):
                for source, target in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
                    count.update(route(place(source, axes), place(target, axes), axes))
            rows.append((group, stride, max(count.values()), is_grid(cuts, group, stride)))
    return rows


@pytest.mark.parametrize("axes", TORUSES)
def test_rings_through_a_link_share_it(axes: tuple[int, ...]) -> None:
    """No ring is faster than the busiest link lets it be, and those of grids are as fast."""
    cluster = torus(*axes)
    for group, stride, busiest, grid in rings(axes):
        load = ring_load(axes, group, stride)
        assert load == busiest if grid else load >= busiest
        terms = {t.algorithm: t for t in collective_terms("all_gather", group, cluster, stride)}
        bytes_on_link = busiest * (group - 1) / group
        assert terms["ring"].s_per_byte >= bytes_on_link / LINK_BYTES_PER_S * (1 - 1e-12)
        assert ("hierarchical" in terms) == grid


@pytest.mark.parametrize("axes", TORUSES)
def test_going_by_axes_is_no_faster_than_its_links(axes: tuple[int, ...]) -> None:
    """Phase by phase, the busiest link carries its bytes in the time that is charged."""
    cluster = torus(*axes)
    for group, stride, _, grid in rings(axes):
        if not grid:
            continue
        terms = {t.algorithm: t for t in collective_terms("reduce_scatter", group, cluster, stride)}
        limit = sum(busiest_bytes(axes, group, stride)) / LINK_BYTES_PER_S
        assert terms["hierarchical"].s_per_byte >= limit * (1 - 1e-12)
        assert terms["hierarchical"].s_per_byte <= terms["ring"].s_per_byte * (1 + 1e-12)


def busiest_bytes(axes: tuple[int, ...], group: int, stride: int) -> Iterator[float]:
    """Yield the bytes on the busiest link of every phase, per byte of the tensor.

    Each part of the tensor goes along another axis.
    """
    members = members_per_level(group, torus(*axes), stride)
    assert members is not None
    counts = {axis: count for axis, (count, _) in enumerate(members[0]) if count > 1}
    used = list(counts)
    for phase in range(len(used)):
        carried: dict[Link, float] = defaultdict(float)
        for part in range(len(used)):
            *before, axis = [used[(part + step) % len(used)] for step in range(phase + 1)]
            done = math.prod(counts[other] for other in before)
            share = (counts[axis] - 1) / counts[axis] / len(used) / done
            for ranks in groups(math.prod(axes), group, stride):
                for line in lines([place(rank, axes) for rank in ranks], axis):
                    for link, half in ring_on_a_line(line, axis, axes):
                        carried[link] += share / 2 if half else share
        yield max(carried.values())


def lines(places: list[Place], axis: int) -> list[list[Place]]:
    """Split a grid into its lines along an axis."""
    others = {(*where[:axis], *where[axis + 1 :]) for where in places}
    return [
        sorted(where for where in places if (*where[:axis], *where[axis + 1 :]) == other)
        for other in others
    ]


def ring_on_a_line(
    line: list[Place], axis: int, axes: tuple[int, ...]
) -> Iterator[tuple[Link, bool]]:
    """Yield the links of a ring, and whether another one the other way carries half of the bytes.

    It does where the line goes all round the axis; else the last member sends back down the line.
    """
    spacing = line[1][axis] - line[0][axis]
    closed = len(line) * spacing == axes[axis]
    for where in line if closed else line[:-1]:
        for way in (spacing, -spacing) if closed else (spacing,):
            yield from ((link, closed) for link in walk(where, axis, way, axes))
    if not closed:
        back = -spacing * (len(line) - 1)
        yield from ((link, False) for link in walk(line[-1], axis, back, axes))


@pytest.mark.parametrize("axes", TORUSES)
def test_messages_of_all_stages_share_links(axes: tuple[int, ...]) -> None:
    """When all devices send to the one a stride further, the busiest link sets the time."""
    cluster, devices = torus(*axes), math.prod(axes)
    for stride in range(1, devices):
        count: Counter[Link] = Counter()
        for rank in range(devices):
            target = place((rank + stride) % devices, axes)
            count.update(route(place(rank, axes), target, axes))
        assert shift_load(axes, stride) == max(count.values())
        assert messages_per_link(cluster, 0, stride) == max(count.values())
    for group in range(2, devices + 1):
        stride = devices // group
        expected = messages_per_link(cluster, 0, stride) / LINK_BYTES_PER_S
        assert send_receive_s(1.0, cluster, stride, group) == pytest.approx(expected)


def test_a_torus_above_nodes_is_shared_by_nodes() -> None:
    """Ranks in one node reach its neighbour over links of their own; two nodes on, links halve."""
    node = NetworkLevel(1e12, 0.0, "switch", 4)
    ring = NetworkLevel(2 * LINK_BYTES_PER_S, 0.0, "ring", 8)
    cluster = Cluster("nodes on a ring", (node, ring), 32)
    assert [messages_per_link(cluster, index, 4) for index in (0, 1)] == [1, 1]
    assert messages_per_link(cluster, 1, 8) == 2
    one, two = (
        {t.algorithm: t for t in collective_terms("all_gather", 4, cluster, stride)}
        for stride in (4, 8)
    )
    assert two["ring"].s_per_byte == pytest.approx(2 * one["ring"].s_per_byte)
