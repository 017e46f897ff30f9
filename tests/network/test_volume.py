import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.choices import CollectiveName
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.collective import (
    COLLECTIVES,
    collective_cost,
    collective_s,
    collective_terms,
)
from tests.network.test_collective import flat, nodes, torus

kinds = st.sampled_from(COLLECTIVES)
groups = st.sampled_from([2, 4, 8, 16, 32, 64])


@given(kinds, st.floats(0.0, 1e12), st.integers(1, 64))
def test_time_is_that_of_the_cheapest_algorithm(
    kind: CollectiveName, size: float, group: int
) -> None:
    """Volume comes beside the time, and changes nothing about it."""
    cost = collective_cost(kind, size, group, nodes())
    assert cost.time_s == collective_s(kind, size, group, nodes())
    assert len(cost.bytes_by_level) == 2
    assert min(cost.bytes_by_level) >= 0.0


@given(kinds, groups)
def test_level_by_level_every_byte_takes_its_time(kind: CollectiveName, group: int) -> None:
    """Of a large tensor through levels of switches, the bytes over the bandwidths are the time."""
    size, cluster = 1e15, nodes()
    cost = collective_cost(kind, size, group, cluster)
    if cost.algorithm == "hierarchical":
        sent_s = sum(
            sent / level.sustained_bytes_per_s
            for sent, level in zip(cost.bytes_by_level, cluster.levels, strict=True)
        )
        assert sent_s == pytest.approx(cost.time_s)


@given(kinds, st.floats(1.0, 1e12), st.integers(2, 64))
def test_one_flat_level_moves_what_the_algorithm_does(
    kind: CollectiveName, size: float, group: int
) -> None:
    """On one level without latency the volume is the bandwidth times the time."""
    cluster = flat(bandwidth=1e9, latency=0.0)
    cost = collective_cost(kind, size, group, cluster)
    assert cost.bytes_by_level[0] == pytest.approx(cost.time_s * 1e9)
    passes = 2 if kind == "all_reduce" else 1
    assert cost.bytes_by_level[0] >= passes * size * (group - 1) / group * (1 - 1e-12)


@given(st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]), groups)
def test_levels_share_the_least_volume(kind: CollectiveName, group: int) -> None:
    """By every algorithm, all levels together carry (g − 1) / g of the tensor a pass."""
    passes = 2 if kind == "all_reduce" else 1
    for term in collective_terms(kind, group, nodes()):
        assert term.all_sent_per_byte == pytest.approx(passes * (group - 1) / group)


@given(kinds, st.integers(2, 64), st.sampled_from([1, 2, 4, 8, 16]))
def test_bytes_are_those_of_every_device_counted(
    kind: CollectiveName, group: int, stride: int
) -> None:
    """The shares of rings and pairwise exchanges are a count over all messages of the group."""
    cluster = Cluster("nodes", nodes().levels, group * stride)
    terms = {term.algorithm: term for term in collective_terms(kind, group, cluster, stride)}
    ranks = [place * stride for place in range(group)]
    if "ring" in terms:
        passes = 2 if kind == "all_reduce" else 1
        share = passes * (group - 1) / group
        messages = [(rank, ranks[(i + 1) % group], share) for i, rank in enumerate(ranks)]
        assert terms["ring"].sent_per_byte == pytest.approx(_by_level(messages, group))
    if "pairwise" in terms:
        messages = [(a, b, 1.0 / group) for a in ranks for b in ranks if a != b]
        assert terms["pairwise"].sent_per_byte == pytest.approx(_by_level(messages, group))


def _by_level(messages: list[tuple[int, int, float]], group: int) -> tuple[float, float]:
    """Add up messages (sender, receiver, share) inside nodes of eight and between them."""
    inside = sum(share for a, b, share in messages if a // 8 == b // 8)
    return inside / group, (sum(share for _, _, share in messages) - inside) / group


def test_nodes_of_eight() -> None:
    """64 ranks reduce 7/8 of the tensor inside each node and 7/8 of an eighth between them."""
    cost = collective_cost("all_reduce", 6400.0, 64, nodes())
    assert cost.bytes_by_level == (2 * 5600.0, 2 * 700.0)
    apart = collective_cost("all_gather", 6400.0, 8, nodes(), stride=8)
    assert apart.bytes_by_level == (0.0, 5600.0)
    exchange = collective_cost("all_to_all", 6400.0, 64, nodes())
    assert sum(exchange.bytes_by_level) >= 6300.0


def test_a_group_that_fills_no_whole_nodes_goes_round_a_ring() -> None:
    """Twelve ranks do not split over nodes of eight: two of them send over the slow link."""
    cost = collective_cost("all_gather", 1.2e12, 12, nodes())
    assert cost.algorithm == "ring"
    assert cost.bytes_by_level == pytest.approx((1.1e12 * 10 / 12, 1.1e12 * 2 / 12))


def test_a_torus_of_equal_axes_uses_all_its_links() -> None:
    """The volume over the bandwidth of all links of a device is the time."""
    cost = collective_cost("all_reduce", 1e15, 64, torus(4, 4, 4))
    assert cost.time_s == pytest.approx(cost.bytes_by_level[0] / 270e9)


def test_one_device_sends_nothing() -> None:
    """A group of one has no volume and no algorithm."""
    cost = collective_cost("all_reduce", 1e9, 1, nodes())
    assert (cost.algorithm, cost.time_s, cost.bytes_by_level) == ("none", 0.0, (0.0, 0.0))
    assert collective_terms("all_reduce", 1, nodes())[0].algorithm == "none"


@pytest.mark.parametrize("group", [16, 32, 64])
def test_an_all_to_all_moves_everything_at_every_level(group: int) -> None:
    """All that goes beyond a node was in another device of the node before, or comes to one."""
    terms = collective_terms("all_to_all", group, nodes())
    (by_level,) = (term for term in terms if term.algorithm == "hierarchical")
    assert by_level.sent_per_byte == pytest.approx([1 - 1 / 8, 1 - 8 / group])
