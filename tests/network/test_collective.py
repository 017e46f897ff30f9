import math
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import CollectiveName
from phaze_opt.errors import InputError
from phaze_opt.network.cluster import Cluster, NetworkLevel, Topology, outermost_level
from phaze_opt.network.collective import (
    COLLECTIVES,
    collective_s,
    collective_terms,
    has_ranges,
    rising_starts,
)
from phaze_opt.network.groups import members_per_level, whole_units
from phaze_opt.network.message import send_receive_s
from phaze_opt.network.presets import load_cluster
from phaze_opt.network.term import Term
from phaze_opt.placement.synchronisation import levels_used

kinds = st.sampled_from(COLLECTIVES)
sizes = st.floats(0.0, 1e12)


def flat(bandwidth: float = 1e9, latency: float = 1e-6, devices: int = 64) -> Cluster:
    """Return one switch."""
    return Cluster("flat", (NetworkLevel(bandwidth, latency, "switch"),), devices)


def nodes(inner: float = 3e11, outer: float = 2.5e10, size: int = 8) -> Cluster:
    """Return nodes of some devices behind a slower switch."""
    levels = (
        NetworkLevel(inner, 1e-6, "switch", size),
        NetworkLevel(outer, 2e-6, "switch"),
    )
    return Cluster("nodes", levels, 64)


def torus(*axes: int) -> Cluster:
    """Return one torus."""
    count = 1
    for axis in axes:
        count *= axis
    return Cluster("torus", (NetworkLevel(270e9, 1e-6, "torus", axes=axes),), count)


@given(kinds, sizes)
def test_one_device_takes_no_time(kind: CollectiveName, size: float) -> None:
    """A group of one has nothing to exchange."""
    assert collective_s(kind, size, 1, flat()) == 0.0


@given(sizes, st.integers(2, 64))
def test_ring_on_a_flat_level(size: float, group: int) -> None:
    """The ring all-reduce moves 2 (g − 1) / g of the tensor in 2 (g − 1) messages."""
    ring = next(t for t in collective_terms("all_reduce", group, flat()) if t.algorithm == "ring")
    expected = 2 * (group - 1) / group * size / 1e9 + 2 * (group - 1) * 1e-6
    assert ring.seconds(size) == pytest.approx(expected)
    assert collective_s("all_reduce", size, group, flat()) <= expected * (1 + 1e-12)


@given(sizes, st.integers(1, 6))
def test_tree_on_a_flat_level(size: float, steps: int) -> None:
    """Halving and doubling over a power of two moves as much in logarithmically many messages."""
    group = 2**steps
    tree = next(t for t in collective_terms("all_gather", group, flat()) if t.algorithm == "tree")
    assert tree.seconds(size) == pytest.approx((group - 1) / group * size / 1e9 + steps * 1e-6)


@given(sizes, st.integers(2, 64))
def test_pairwise_on_a_flat_level(size: float, group: int) -> None:
    """An all-to-all sends every other rank its part of the tensor, one message each."""
    (pairwise,) = collective_terms("all_to_all", group, flat())
    expected = (group - 1) / group * size / 1e9 + (group - 1) * 1e-6
    assert pairwise.seconds(size) == pytest.approx(expected)


@given(sizes, st.integers(2, 64))
def test_all_reduce_is_reduce_scatter_and_all_gather(size: float, group: int) -> None:
    """An all-reduce takes as long as its two halves."""
    halves = [collective_s(kind, size, group, flat()) for kind in ("reduce_scatter", "all_gather")]
    assert collective_s("all_reduce", size, group, flat()) == pytest.approx(sum(halves))


@settings(max_examples=200)
@given(kinds, sizes, st.sampled_from([2, 4, 8, 16, 32, 64]), st.floats(1.0, 10.0))
def test_faster_inner_level_never_hurts(
    kind: CollectiveName, size: float, group: int, factor: float
) -> None:
    """More bandwidth inside the nodes makes no collective slower."""
    faster = nodes(inner=3e11 * factor)
    limit = collective_s(kind, size, group, nodes()) * (1 + 1e-12)
    assert collective_s(kind, size, group, faster) <= limit


@given(sizes, st.sampled_from([16, 32, 64]))
def test_hierarchical_is_not_slower_than_the_flat_ring(size: float, group: int) -> None:
    """Level by level moves less over the slow links than one ring through all of them."""
    terms = {t.algorithm: t for t in collective_terms("all_reduce", group, nodes())}
    assert terms["hierarchical"].seconds(size) <= terms["ring"].seconds(size) * (1 + 1e-12)


@settings(max_examples=200)
@given(
    st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]),
    sizes,
    st.tuples(*[st.tuples(st.floats(1e9, 1e12), st.floats(0.0, 1e-4))] * 3),
    st.integers(1, 6).map(lambda power: 2**power),
    st.sampled_from([1, 2, 4]),
)
def test_hierarchical_is_never_slower_on_the_same_links(
    kind: CollectiveName,
    size: float,
    links: tuple[tuple[float, float], ...],
    group: int,
    stride: int,
) -> None:
    """Whatever three levels of switches are like, going level by level beats one ring."""
    levels = tuple(
        NetworkLevel(bandwidth, latency, "switch", count)
        for (bandwidth, latency), count in zip(links, (4, 6, None), strict=True)
    )
    terms = {t.algorithm: t for t in collective_terms(kind, group, Cluster("c", levels), stride)}
    if "hierarchical" in terms:
        limit = terms["ring"].seconds(size) * (1 + 1e-12)
        assert terms["hierarchical"].seconds(size) <= limit


@given(sizes, st.sampled_from([16, 32, 64]))
def test_hierarchy_of_equal_levels_moves_as_much_as_one(size: float, group: int) -> None:
    """With the same bandwidth at both levels the volume is that of one flat level."""
    terms = {t.algorithm: t for t in collective_terms("all_reduce", group, nodes(1e9, 1e9))}
    share = 2 * (group - 1) / group
    assert terms["hierarchical"].s_per_byte == pytest.approx(share / 1e9)


@pytest.mark.parametrize("axes", [(4, 4, 4), (8, 8), (2, 2, 2), (16,)])
def test_torus_meets_the_bound_of_its_links(axes: tuple[int, ...]) -> None:
    """On a torus of equal axes all links of a device work all the time."""
    cluster = torus(*axes)
    group = cluster.devices
    term = collective_terms("all_reduce", group, cluster)[-1]
    assert term.s_per_byte == pytest.approx(2 * (group - 1) / group / 270e9)


@pytest.mark.parametrize("axes", [(4, 4, 4), (16, 8, 8), (2, 4, 8), (16, 4)])
def test_torus_meets_the_bound_of_its_busiest_axis(axes: tuple[int, ...]) -> None:
    """With one part of the tensor per axis, each going round them in another order.

    An axis is busy with all parts in turn; only where the axes differ do phases wait for the
    slowest of them.
    """
    parts = len(axes)
    link_bytes_per_s = 270e9 / (2 * parts)
    busy = []
    for axis in range(parts):
        carried = 0.0
        for part in range(parts):
            order = [(part + step) % parts for step in range(parts)]
            before = math.prod(axes[done] for done in order[: order.index(axis)])
            carried += (axes[axis] - 1) / axes[axis] / parts / before
        busy.append(2 * carried / (2 * link_bytes_per_s))
    cluster = torus(*axes)
    found = collective_terms("all_reduce", cluster.devices, cluster)[-1].s_per_byte
    assert found >= max(busy) * (1 - 1e-12)
    assert found <= max(busy) * (1.0 if len(set(axes)) == 1 else 1.25) * (1 + 1e-12)


def test_part_of_an_axis_is_a_line() -> None:
    """Half of a ring has one link per direction, and members apart share the links between."""
    whole = collective_terms("all_gather", 8, torus(8))[-1].s_per_byte / (7 / 8)
    half = collective_terms("all_gather", 4, torus(8))[-1].s_per_byte / (3 / 4)
    apart = collective_terms("all_gather", 4, torus(8), stride=2)[-1].s_per_byte / (3 / 4)
    assert half == pytest.approx(2 * whole)
    assert apart == pytest.approx(2 * whole)


@given(kinds, sizes, sizes, st.integers(1, 64))
def test_larger_tensors_take_longer(
    kind: CollectiveName, size: float, more: float, group: int
) -> None:
    """Time never falls with size."""
    small, large = sorted((size, more))
    times = [collective_s(kind, s, group, flat()) for s in (small, large)]
    assert times[0] <= times[1]


def test_strided_groups_use_the_outer_level() -> None:
    """Ranks a node apart meet only at the outer level, each with its own link."""
    assert outermost_level(8, nodes()) == 0
    assert outermost_level(2, nodes(), stride=8) == 1
    members = members_per_level(8, nodes(), stride=8)
    assert members is not None
    assert [axes[0][0] for axes in members] == [1, 8]
    assert members_per_level(12, nodes()) is None


@given(st.floats(0.0, 1e9), st.integers(2, 8))
def test_send_takes_the_slowest_link(size: float, group: int) -> None:
    """A pipeline's message counts as one over the slowest link between its stages."""
    assert send_receive_s(size, nodes(), 1, group) == pytest.approx(1e-6 + size / 3e11)
    assert send_receive_s(size, nodes(), 8, group) == pytest.approx(2e-6 + size / 2.5e10)
    assert send_receive_s(size, nodes(), 1, 1) == 0.0


def test_bad_groups_are_refused() -> None:
    """Unknown kinds, empty groups and groups beyond the network are refused."""
    with pytest.raises(InputError, match="broadcast"):
        collective_s(cast(CollectiveName, "broadcast"), 1.0, 2, flat())
    with pytest.raises(InputError, match="at least 1"):
        collective_s("all_reduce", 1.0, 0, flat())
    with pytest.raises(InputError, match="joins at most 8"):
        collective_s("all_reduce", 1.0, 16, torus(2, 2, 2))


@st.composite
def switched_clusters(draw: st.DrawFn) -> Cluster:
    """Draw levels inside a switch: none, nodes, nodes in racks, tori, nodes in a torus."""

    def level(
        size: int | None, topology: Topology = "switch", axes: tuple[int, ...] = ()
    ) -> NetworkLevel:
        reduces = topology == "switch" and draw(st.booleans())
        return NetworkLevel(
            draw(st.sampled_from([1e9, 3e11])),
            draw(st.sampled_from([0.0, 1e-6])),
            topology,
            size,
            axes,
            ramp_bytes=draw(st.sampled_from([0.0, 1e6])),
            own_part_cost=draw(st.sampled_from([0.0, 0.3])),
            halving=draw(st.booleans()),
            in_switch_efficiency=0.5 * reduces,
        )

    inside: list[NetworkLevel] = []
    if draw(st.booleans()):
        inside.append(level(draw(st.sampled_from([2, 3, 8, 12, 72]))))
    if draw(st.booleans()):
        axes = draw(st.sampled_from([(), (2, 3), (4, 4), (8,), (2, 2, 2)]))
        inside.append(level(None, "torus", axes) if axes else level(draw(st.integers(2, 4))))
    return Cluster("drawn", (*inside, level(None)), 2000)


@given(
    switched_clusters(),
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 100]),
    st.sets(st.integers(2, 200), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_a_larger_group_of_a_range_is_never_faster(
    cluster: Cluster, stride: int, begins: set[int]
) -> None:
    """Within each range that begins at one of the starts, at no size, nor over another level."""
    most = min(200, cluster.devices // stride)
    allowed = np.array(sorted({1, *(begin for begin in begins if begin <= most)}))
    starts = rising_starts(cluster, whole_units(cluster, stride), allowed, most)
    assert set(allowed.tolist()) <= set(starts.tolist())
    fewest: tuple[Term, ...] = ()
    for group in range(1, most + 1):
        terms = collective_terms("all_reduce", group, cluster, stride)
        if group in starts:
            fewest = terms
        for term in terms:
            assert any(
                other.latency_s <= term.latency_s
                and other.s_per_byte <= term.s_per_byte
                and other.s_per_sqrt_byte <= term.s_per_sqrt_byte
                for other in fewest
            )
        assert fewest[0].algorithm == "none" or levels_used(fewest) == levels_used(terms)


def test_there_are_few_ranges() -> None:
    """Of a million replicas on nodes of eight: powers of two, and what fills whole nodes."""
    cluster, begins = load_cluster("dgx-a100", 10**6), np.array([1])
    starts = rising_starts(cluster, whole_units(cluster, 1), begins, 10**6)
    assert len(starts) < 40


@pytest.mark.parametrize(
    ("name", "known"), [("tpuv4-torus", False), ("trn2-efa", True), ("nvl72", True)]
)
def test_no_ranges_are_known_of_a_torus(name: str, known: bool) -> None:
    """A larger group may fit it better, unless it is only the inside of a switch."""
    assert has_ranges(load_cluster(name, 64)) == known
