"""Laws of topologies, and what leaf switches with narrower links upwards do."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.choices import CollectiveName
from phaze_opt.errors import InputError
from phaze_opt.network.cluster import Cluster, NetworkLevel, Topology
from phaze_opt.network.collective import COLLECTIVES, collective_s, collective_terms
from phaze_opt.network.message import message_term
from phaze_opt.network.token_exchange import exchange_cost
from phaze_opt.network.uplinks import pairwise_slowdown
from phaze_opt.workload.graph import TokenExchange

kinds = st.sampled_from(COLLECTIVES)
sizes = st.floats(1.0, 1e12)
DEVICES = 64


def of_topology(
    topology: Topology, taper: float = 1.0, leaf: int | None = None, unit: int = 8
) -> Cluster:
    """Return units on switches, joined by a level of a topology."""
    inner = NetworkLevel(3e11, 1e-6, "switch", unit)
    outer = NetworkLevel(2.5e10, 2e-6, topology, taper=taper, leaf_devices=leaf)
    return Cluster("leaves", (inner, outer), DEVICES)


@st.composite
def group_shapes(draw: st.DrawFn) -> tuple[int, int]:
    """Draw a group and its stride that fit."""
    stride = draw(st.sampled_from([1, 2, 3, 4, 8, 12, 16, 32]))
    return draw(st.integers(2, DEVICES // stride)), stride


tapers = st.floats(1.0, 8.0)
leaf_sizes = st.sampled_from([4, 8, 16, 32, 64])
leaf_topologies: st.SearchStrategy[Topology] = st.sampled_from(["fat-tree", "rail"])


@given(kinds, sizes, group_shapes(), leaf_sizes)
def test_a_fat_tree_without_taper_is_a_switch(
    kind: CollectiveName, size: float, shape: tuple[int, int], leaf: int
) -> None:
    """To the bit, whatever its leaves are: seconds, bytes and messages."""
    switch, tree = of_topology("switch"), of_topology("fat-tree", 1.0, leaf)
    assert collective_terms(kind, shape[0], tree, shape[1]) == collective_terms(
        kind, shape[0], switch, shape[1]
    )
    assert message_term(tree, shape[1], shape[0]) == message_term(switch, shape[1], shape[0])


@given(kinds, sizes, group_shapes(), leaf_sizes, tapers, tapers, leaf_topologies)
def test_a_larger_taper_is_never_faster(
    kind: CollectiveName,
    size: float,
    shape: tuple[int, int],
    leaf: int,
    one: float,
    other: float,
    topology: Topology,
) -> None:
    """Nor is any fat tree faster than a switch, nor slower than the taper says."""
    less, more = (of_topology(topology, each, leaf) for each in sorted((one, other)))
    less_s, more_s = (collective_s(kind, size, shape[0], each, shape[1]) for each in (less, more))
    assert less_s <= more_s * (1 + 1e-12)
    full = of_topology("switch")
    switch_s = collective_s(kind, size, shape[0], full, shape[1])
    assert switch_s <= less_s * (1 + 1e-12)
    if topology == "fat-tree":
        assert more_s <= max(one, other) * switch_s * (1 + 1e-9)


@given(kinds, sizes, group_shapes(), st.floats(1.0, 10.0), leaf_topologies, tapers)
def test_more_bandwidth_is_never_slower(
    kind: CollectiveName,
    size: float,
    shape: tuple[int, int],
    factor: float,
    topology: Topology,
    taper: float,
) -> None:
    """Of either level."""
    cluster = of_topology(topology, taper, 16)
    for index, level in enumerate(cluster.levels):
        levels = list(cluster.levels)
        more = level.bandwidth_bytes_per_s * factor
        levels[index] = dataclasses.replace(level, bandwidth_bytes_per_s=more)
        faster = dataclasses.replace(cluster, levels=tuple(levels))
        faster_s = collective_s(kind, size, shape[0], faster, shape[1])
        assert faster_s <= collective_s(kind, size, shape[0], cluster, shape[1]) * (1 + 1e-12)


@given(kinds, sizes, st.integers(1, 6), st.integers(1, 5))
def test_a_level_with_the_inner_bandwidth_is_no_level(
    kind: CollectiveName, size: float, steps: int, inside: int
) -> None:
    """Among a power of two; an exchange may then also go level by level, in fewer messages."""
    level = NetworkLevel(1e11, 1e-6, "switch")
    one = Cluster("one", (level,), DEVICES)
    two = Cluster("two", (dataclasses.replace(level, group_size=2**inside), level), DEVICES)
    one_s = collective_s(kind, size, 2**steps, one)
    two_s = collective_s(kind, size, 2**steps, two)
    if kind != "all_to_all":
        assert two_s == pytest.approx(one_s)
    else:
        assert two_s <= one_s * (1 + 1e-12)
        assert min(t.s_per_byte for t in collective_terms(kind, 2**steps, two)) == pytest.approx(
            min(t.s_per_byte for t in collective_terms(kind, 2**steps, one))
        )


@given(kinds, sizes, group_shapes(), st.integers(1, 6), st.floats(1.0, 20.0))
def test_splitting_a_level_never_helps(
    kind: CollectiveName, size: float, shape: tuple[int, int], inside: int, factor: float
) -> None:
    """Units of one switch behind slower links take as long or longer; latencies aside."""
    level = NetworkLevel(1e11, 0.0, "switch")
    inner = dataclasses.replace(level, group_size=2**inside)
    slower = dataclasses.replace(level, bandwidth_bytes_per_s=1e11 / factor)
    whole_s = collective_s(kind, size, shape[0], Cluster("one", (level,), DEVICES), shape[1])
    split = Cluster("split", (inner, slower), DEVICES)
    assert whole_s <= collective_s(kind, size, shape[0], split, shape[1]) * (1 + 1e-9)


@given(kinds, st.integers(2, 64), st.data())
def test_a_torus_of_one_axis_is_a_ring(
    kind: CollectiveName, extent: int, data: st.DataObject
) -> None:
    """To the bit."""
    stride = data.draw(st.integers(1, extent // 2))
    group = data.draw(st.integers(2, extent // stride))
    ring = NetworkLevel(1e11, 1e-6, "ring", extent)
    torus = NetworkLevel(1e11, 1e-6, "torus", axes=(extent,))
    terms = [
        collective_terms(kind, group, Cluster("one", (level,), extent), stride)
        for level in (ring, torus)
    ]
    assert terms[0] == terms[1]


def test_rails_take_what_fat_trees_send_upwards() -> None:
    """Of the same switches, rails join as many units as a leaf has devices."""
    tree, rail = (of_topology(each, 4.0, 8) for each in ("fat-tree", "rail"))
    assert collective_s("all_reduce", 1e9, 8, rail, 8) * 3.9 < collective_s(
        "all_reduce", 1e9, 8, tree, 8
    )
    exchange = TokenExchange(4096, 8, 256, 64, 14336, "ideal", plans=False)
    assert exchange_cost(exchange, rail).time_s < exchange_cost(exchange, tree).time_s


def test_what_changes_rails_goes_through_the_level_below() -> None:
    """A message to another place of a unit, and the parts of an all-to-all that go there."""
    rail, switch = of_topology("rail"), of_topology("switch")
    straight, across = message_term(rail, 8), message_term(rail, 4, 8)
    assert straight == message_term(switch, 8)
    assert across.sent_per_byte == (1.0, 1.0)
    assert across.latency_s == pytest.approx(3e-6)
    on_rails = {t.algorithm: t for t in collective_terms("all_to_all", 64, rail)}["pairwise"]
    direct = {t.algorithm: t for t in collective_terms("all_to_all", 64, switch)}["pairwise"]
    beyond = direct.sent_per_byte[1]
    assert on_rails.sent_per_byte == pytest.approx(
        (direct.sent_per_byte[0] + beyond * 7 / 8, beyond)
    )


@pytest.mark.parametrize("group,stride", [(6, 1), (12, 1), (3, 4), (5, 8), (20, 3)])
def test_groups_that_do_not_fit_leaves_count_what_leaves_the_busiest(
    group: int, stride: int
) -> None:
    """The slowdown of an exchange is never below what the links upwards carry."""
    cluster = Cluster(
        "tree", (NetworkLevel(1e10, 0.0, "fat-tree", taper=4.0, leaf_devices=8),), DEVICES
    )
    busiest = 0.0
    for leaf in range(0, DEVICES, 8):
        sent = 0.0
        for rank in range(leaf, leaf + 8):
            block = rank // (group * stride) * group * stride
            ranks = range(block + (rank - block) % stride, block + group * stride, stride)
            sent += sum(not leaf <= other < leaf + 8 for other in ranks) / (group - 1)
        busiest = max(busiest, sent / 8)
    assert pairwise_slowdown(cluster, 0, group, stride) >= max(1.0, 4.0 * busiest) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ({"topology": "fat-tree", "taper": 2.0}, "leaf_devices must say"),
        ({"topology": "switch", "taper": 2.0}, "taper is 2.0 on a switch"),
        ({"topology": "torus", "leaf_devices": 8}, "leaf_devices is 8 on a torus"),
        ({"topology": "fat-tree", "taper": 0.5, "leaf_devices": 8}, "at least 1"),
        ({"topology": "fat-tree", "axes": (4,)}, "axes is [4] on a fat-tree"),
    ],
)
def test_levels_that_cannot_be(level: dict[str, Any], words: str) -> None:
    """One sentence says why."""
    with pytest.raises(InputError) as error:
        NetworkLevel(1e9, 0.0, **level)
    assert words in str(error.value)


def test_rails_need_switches_below() -> None:
    """A first level, or one above a torus, has none."""
    with pytest.raises(InputError, match="rails need a level"):
        Cluster("rails", (NetworkLevel(1e9, 0.0, "rail"),), 8)


def test_math_of_pods_is_finite() -> None:
    """More devices than a leaf, and fewer."""
    for leaf in (1, 3, 8, 64, 500):
        cluster = of_topology("fat-tree", 2.0, leaf)
        assert math.isfinite(collective_s("all_reduce", 1e9, 64, cluster))
