import math

import pytest

from phaze_opt.choices import CollectiveName
from phaze_opt.errors import InputError
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.collective import collective_cost
from phaze_opt.network.estimate import estimate_collective
from phaze_opt.network.presets import load_cluster

FLAT = Cluster("flat", (NetworkLevel(1e9, 0.0, "switch"),), 64)


@pytest.mark.parametrize(
    ("kind", "share"),  # of nccl-tests' doc/PERFORMANCE.md, for the whole tensor
    [
        ("all_reduce", 2 * 7 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(kind: CollectiveName, share: float) -> None:
    """The share of the tensor that a ring sends, over the time: without latency, the link's."""
    found = estimate_collective(kind, 1e9, 8, FLAT)
    assert found.bus_bandwidth_bytes_per_s == pytest.approx(share * 1e9 / found.latency_s)
    assert found.bus_bandwidth_bytes_per_s == pytest.approx(1e9)


def test_time_and_algorithm_are_those_of_the_collective() -> None:
    """The overhead of a call is added, and lowers the bus bandwidth."""
    cluster = load_cluster("dgx-h100", 16)
    cost = collective_cost("all_gather", 1e8, 16, cluster)
    found = estimate_collective("all_gather", 1e8, 16, cluster)
    assert (found.latency_s, found.algorithm) == (cost.time_s, cost.algorithm)
    called = estimate_collective("all_gather", 1e8, 16, cluster, call_overhead_s=1.0)
    assert called.latency_s == pytest.approx(1.0 + cost.time_s)
    assert called.bus_bandwidth_bytes_per_s == pytest.approx(15 / 16 * 1e8 / called.latency_s)


def test_the_switch_of_an_h100_node_reduces_large_tensors() -> None:
    """NCCL reaches about 480 GB/s on eight H100s (nccl-tests issue 212), rings only 370."""
    cluster = load_cluster("dgx-h100", 8)
    found = estimate_collective("all_reduce", 4e9, 8, cluster)
    assert found.algorithm == "in_switch"
    assert found.bus_bandwidth_bytes_per_s == pytest.approx(480e9, rel=0.05)
    assert estimate_collective("all_reduce", 1e5, 8, cluster).algorithm == "ring"
    gather = estimate_collective("all_gather", 4e9, 8, cluster)
    assert gather.bus_bandwidth_bytes_per_s == pytest.approx(370e9, rel=0.09)


def test_one_device_has_no_bus_bandwidth() -> None:
    """It exchanges nothing."""
    found = estimate_collective("all_reduce", 1e6, 1, FLAT)
    assert (found.latency_s, found.algorithm, found.bus_bandwidth_bytes_per_s) == (0.0, "none", 0.0)


@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0])
def test_impossible_sizes_are_refused(value: float) -> None:
    """A size, and an overhead, is a number that is not negative."""
    with pytest.raises(InputError, match="size_bytes"):
        estimate_collective("all_reduce", value, 2, FLAT)
    with pytest.raises(InputError, match="call_overhead_s"):
        estimate_collective("all_reduce", 1.0, 2, FLAT, value)
