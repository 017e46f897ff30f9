"""Laws of the constants that are measured of a link: launch, ramp, own part, in-switch."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.choices import CollectiveName
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.collective import (
    COLLECTIVES,
    collective_cost,
    collective_s,
    collective_terms,
)
from phaze_opt.network.message import (
    message_over,
    message_term,
    send_receive_s,
    split_message_terms,
)
from phaze_opt.network.presets import cluster_presets, load_cluster
from phaze_opt.network.term import Term

NODES = ("dgx-a100", "dgx-h100", "dgx-b200")

kinds = st.sampled_from(COLLECTIVES)
sizes = st.floats(1.0, 1e11)


@st.composite
def nodes(draw: st.DrawFn) -> Cluster:
    """Draw nodes of eight behind another switch, with all constants that may be measured."""
    inner = NetworkLevel(
        draw(st.floats(1e9, 1e12)),
        draw(st.floats(0.0, 1e-5)),
        "switch",
        8,
        efficiency=draw(st.floats(0.3, 1.0)),
        launch_s=draw(st.floats(0.0, 5e-5)),
        ramp_bytes=draw(st.floats(0.0, 6e7)),
        own_part_cost=draw(st.floats(0.0, 1.0)),
        halving=False,
        in_switch_efficiency=draw(st.sampled_from([0.0, 0.3, 0.6])),
        in_switch_latency_s=draw(st.floats(0.0, 6e-5)),
    )
    outer = NetworkLevel(draw(st.floats(1e9, 1e11)), draw(st.floats(0.0, 1e-5)), "switch")
    return Cluster("nodes", (inner, outer), 128)


@given(nodes(), kinds, sizes)
def test_more_devices_are_never_faster(cluster: Cluster, kind: CollectiveName, size: float) -> None:
    """Inside a node, and over whole nodes; a device alone takes no time."""
    assert collective_s(kind, size, 1, cluster) == 0.0
    for groups in (range(1, 9), (8, 16, 32, 64, 128)):
        times_s = [collective_s(kind, size, group, cluster) for group in groups]
        assert all(b >= a * (1 - 1e-12) for a, b in itertools.pairwise(times_s))


@given(nodes(), kinds, sizes, st.sampled_from([2, 3, 8, 12, 64]), st.floats(1.0, 10.0))
def test_more_bytes_are_never_faster_and_more_bandwidth_never_slower(
    cluster: Cluster, kind: CollectiveName, size: float, group: int, factor: float
) -> None:
    """Time rises with the size and falls with the bandwidth of either level."""
    time_s = collective_s(kind, size, group, cluster)
    assert collective_s(kind, size * factor, group, cluster) >= time_s * (1 - 1e-12)
    for index, level in enumerate(cluster.levels):
        wider = replace(level, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * factor)
        levels = (*cluster.levels[:index], wider, *cluster.levels[index + 1 :])
        faster = replace(cluster, levels=levels)
        assert collective_s(kind, size, group, faster) <= time_s * (1 + 1e-12)


@given(nodes(), kinds, sizes, st.integers(2, 64))
def test_the_cheapest_algorithm_is_taken(
    cluster: Cluster, kind: CollectiveName, size: float, group: int
) -> None:
    """No algorithm that can run takes less time than the collective."""
    terms = collective_terms(kind, group, cluster)
    cost = collective_cost(kind, size, group, cluster)
    assert cost.time_s == min(term.seconds(size) for term in terms)
    assert cost.algorithm in {term.algorithm for term in terms}


@given(st.floats(0.0, 1e-3), st.floats(0.0, 1e-3), st.lists(st.floats(0.0, 1e15), min_size=1))
def test_a_size_has_the_same_time_in_an_array(
    s_per_byte: float, s_per_sqrt_byte: float, many: list[float]
) -> None:
    """To the last bit, so that a table of times and a single one agree."""
    term = Term("one", 1e-6, s_per_byte, (1.0,), s_per_sqrt_byte)
    assert term.seconds(np.array(many)).tolist() == [term.seconds(size) for size in many]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, cluster in cluster_presets().items()
        if len(cluster.levels) == 1 and not cluster.levels[0].launch_s
    ],
)
def test_what_is_not_measured_changes_nothing(name: str) -> None:
    """Without measured constants every cost is the line ``a + b · bytes``, to the last bit."""
    cluster = load_cluster(name, 16)
    for kind, group in itertools.product(COLLECTIVES, (2, 3, 4, 8, 16)):
        for term in collective_terms(kind, group, cluster):
            assert term.s_per_sqrt_byte == 0.0
            assert term.seconds(12345.0) == term.latency_s + 12345.0 * term.s_per_byte
    (level,) = cluster.levels
    steps = {term.algorithm: term for term in collective_terms("all_reduce", 4, cluster)}
    assert steps["ring"].latency_s == 2 * 3 * level.latency_s
    message = message_over(cluster, 0)
    assert message == Term("message", level.latency_s, 1 / level.link_bytes_per_s, (1.0,))


def test_a_collective_starts_once() -> None:
    """A launch adds the same to every algorithm and message, however many steps and levels."""
    cluster = load_cluster("dgx-a100", 64)
    launch_s = cluster.levels[0].launch_s
    idle = replace(cluster, levels=(replace(cluster.levels[0], launch_s=0.0), cluster.levels[1]))
    for kind, group in itertools.product(COLLECTIVES, (2, 8, 16, 64)):
        for one, other in zip(
            collective_terms(kind, group, cluster), collective_terms(kind, group, idle), strict=True
        ):
            assert one.latency_s == pytest.approx(launch_s + other.latency_s)
    assert send_receive_s(0.0, cluster, 1) == launch_s + cluster.levels[0].latency_s
    assert send_receive_s(0.0, cluster, 8) == launch_s + cluster.levels[1].latency_s


def test_a_start_is_that_of_the_slowest_level_that_is_reached() -> None:
    """Groups within nodes start at once, whatever the switch between nodes takes to start."""
    cluster = load_cluster("dgx-a100", 64)
    inner, outer = cluster.levels
    slower = replace(cluster, levels=(inner, replace(outer, launch_s=inner.launch_s + 1e-3)))
    for kind, group in itertools.product(COLLECTIVES, (2, 8, 16, 64)):
        before, after = (collective_terms(kind, group, one) for one in (cluster, slower))
        for one, other in zip(before, after, strict=True):
            later_s = 1e-3 if group > 8 else 0.0
            assert other.latency_s == pytest.approx(one.latency_s + later_s)


@given(nodes(), sizes, st.sampled_from([2, 4, 8]))
def test_a_split_message_is_a_smaller_one_and_a_gather(
    cluster: Cluster, size: float, group: int
) -> None:
    """Launch, ramp and own part included, each of both counts once."""
    whole = message_term(cluster, stride=8)
    gathers = collective_terms("all_gather", group, cluster)
    splits = split_message_terms(whole, group, cluster)
    for split, gather in zip(splits, gathers, strict=True):
        expected_s = whole.seconds(size / group) + gather.seconds(size)
        assert split.seconds(size) == pytest.approx(expected_s)


def test_the_ramp_doubles_the_time_of_its_own_bytes() -> None:
    """Bytes through a link equal to the ramp's take twice as long as at full rate."""
    level = NetworkLevel(1e9, 0.0, "switch", ramp_bytes=1e6)
    cluster = Cluster("ramp", (level,), 4)
    assert send_receive_s(1e6, cluster) == pytest.approx(2e-3)
    # Four devices send three quarters of the tensor twice: the ramp's bytes for two thirds of it.
    assert collective_s("all_reduce", 1e6 / 1.5, 4, cluster) == pytest.approx(2e-3)


def test_a_devices_own_part_costs_a_share_of_one_that_is_sent() -> None:
    """A ring of n handles n parts and sends n − 1; an all-reduce has no part of its own."""
    level = NetworkLevel(1e9, 0.0, "switch", own_part_cost=0.5)
    cluster, free = Cluster("own", (level,), 4), replace(level, own_part_cost=0.0)
    without = replace(cluster, levels=(free,))
    for kind in ("all_gather", "reduce_scatter", "all_to_all"):
        assert collective_s(kind, 4e9, 4, cluster) == pytest.approx(3.5)
    assert collective_s("all_reduce", 4e9, 4, cluster) == collective_s(
        "all_reduce", 4e9, 4, without
    )


def test_only_rings_where_libraries_do_not_halve() -> None:
    """Then seven steps reach eight devices, also in the hierarchy."""
    cluster = replace(load_cluster("dgx-a100", 64))
    inner = replace(cluster.levels[0], latency_s=1.0, launch_s=0.0)
    slow = replace(cluster, levels=(inner, cluster.levels[1]))
    assert [term.algorithm for term in collective_terms("all_gather", 8, slow)] == ["ring"]
    by_name = {term.algorithm: term for term in collective_terms("all_gather", 64, slow)}
    assert by_name["hierarchical"].latency_s == pytest.approx(7.0, rel=1e-4)
    halving = replace(slow, levels=(replace(inner, halving=True), cluster.levels[1]))
    by_name = {term.algorithm: term for term in collective_terms("all_gather", 64, halving)}
    assert by_name["hierarchical"].latency_s == pytest.approx(3.0, rel=1e-4)


@pytest.mark.parametrize("group", [2, 4, 8, 64])
def test_bytes_of_a_reduction_in_the_switch_are_counted(group: int) -> None:
    """A device sends the tensor, and its n-th of the sum once more for all others.

    Over nodes, the n-th that a device holds after the inner reduction goes round the outer level.
    """
    cluster = load_cluster("dgx-h100", 64)
    terms = {term.algorithm: term for term in collective_terms("all_reduce", group, cluster)}
    inside = min(group, 8)
    pulled_by_each = 1 / inside
    sent = inside * pulled_by_each + 1 / inside
    outside = group // inside
    outer = 2 * (outside - 1) / outside / inside
    assert terms["in_switch"].sent_per_byte == pytest.approx((sent, outer))


def test_the_switch_reduces_nothing_else() -> None:
    """Other collectives, groups that the switch does not join, and other chips have no such way."""
    cluster = load_cluster("dgx-h100", 64)
    for kind in ("all_gather", "reduce_scatter", "all_to_all"):
        assert "in_switch" not in {term.algorithm for term in collective_terms(kind, 8, cluster)}
    apart = collective_terms("all_reduce", 8, cluster, stride=8)
    assert "in_switch" not in {term.algorithm for term in apart}
    uneven = collective_terms("all_reduce", 12, cluster)
    assert "in_switch" not in {term.algorithm for term in uneven}
    a100 = collective_terms("all_reduce", 8, load_cluster("dgx-a100", 8))
    assert "in_switch" not in {term.algorithm for term in a100}


@given(st.sampled_from(NODES), st.integers(2, 8), kinds)
def test_no_nodes_exceed_their_links(name: str, group: int, kind: CollectiveName) -> None:
    """No algorithm moves more bytes per second over a link than it can carry.

    A reduction in the switch sends and receives at the same time, both once per tensor.
    """
    cluster = load_cluster(name, 8)
    level = cluster.levels[0]
    for term in collective_terms(kind, group, cluster):
        rate = term.sent_per_byte[0] / term.s_per_byte
        assert rate <= level.bandwidth_bytes_per_s
        assert math.isfinite(rate)
