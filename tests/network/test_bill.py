"""What networks cost, against published counts, and laws."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.codec import data_table
from phaze_opt.network.bill import network_bill
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.level_values import with_level_values
from phaze_opt.network.presets import cluster_presets, load_cluster
from phaze_opt.ranged import Ranged

PORT = 50e9


def nodes(topology: str = "switch", taper: float = 1.0, size: int = 8) -> Cluster:
    """Return nodes on ports of 400 Gbit/s."""
    changed: dict[str, object] = {"network.1.topology": topology, "network.0.group_size": size}
    if topology != "switch":
        changed |= {"network.1.taper": taper, "network.1.leaf_devices": 32}
    return with_level_values(cluster_presets()["dgx-h100"], changed, "test")


@pytest.mark.parametrize(
    ("devices", "switches", "cables"), [(1024, 48, 2048), (32768, 2560, 98304)]
)
def test_switches_and_cables_are_those_of_a_published_count(
    devices: int, switches: int, cables: int
) -> None:
    """Rail-optimised networks of 1,024 and 32,768 H100, and what the sheet pays for them.

    The larger one has its rails joined, which is a fat tree here.
    """
    topology = "rail" if devices == 1024 else "fat-tree"
    _, outer = network_bill(nodes(topology), devices).levels
    assert outer.switch_bytes_per_s / (64 * PORT) == pytest.approx(switches)
    assert outer.optics_bytes_per_s / PORT == pytest.approx(cables)
    optics_usd = data_table("network", "bill.toml")["optics_usd"]
    assert outer.usd.low == pytest.approx(36_000 * switches + optics_usd["low"] * cables * PORT)
    assert optics_usd["central"] * PORT * 2048 == pytest.approx(2_621_440)


def test_a_torus_has_one_and_a_half_transceivers_per_chip() -> None:
    """As a TPU v4 has of six links: blocks of 4 × 4 × 4 are copper (Jouppi et al., ISCA 2023)."""
    (level,) = network_bill(load_cluster("tpuv4-torus", 4096), 4096).levels
    # A cable has two ends.
    assert 2 * level.optics_bytes_per_s / 4096 / 45e9 == pytest.approx(1.5)
    assert level.switch_bytes_per_s == 0.0
    (block,) = network_bill(load_cluster("tpuv4-torus", 64), 64).levels
    assert block.optics_bytes_per_s == 0.0
    assert block.copper_bytes_per_s == pytest.approx(64 * 6 * 45e9 / 2)


def test_a_rack_is_one_tier_of_copper_and_a_larger_domain_is_not() -> None:
    """72 devices are joined by single switch chips, 576 by two tiers with transceivers."""
    inner, outer = network_bill(nodes(size=72), 144).levels
    assert (inner.tiers, inner.optics_bytes_per_s) == (1, 0.0)
    assert outer.tiers == 2
    larger, _ = network_bill(nodes(size=576), 1152).levels
    assert (larger.tiers, larger.copper_bytes_per_s) == (2, 0.0)
    assert larger.usd.central > 3 * inner.usd.central * 8


sizes = st.sampled_from([1, 8, 64, 72, 100, 576, 4096])


@given(sizes, st.floats(1.0, 8.0), st.floats(1.0, 10.0))
def test_more_costs_more(devices: int, taper: float, factor: float) -> None:
    """More bandwidth or more devices; a taper saves, and rails never need more than fat trees."""
    tree, rail = (network_bill(nodes(each, taper), devices) for each in ("fat-tree", "rail"))
    full = network_bill(nodes("fat-tree"), devices)
    assert rail.usd.central <= tree.usd.central <= full.usd.central
    assert tree.power_w.high <= full.power_w.high
    wider = with_level_values(nodes(), {"network.1.bandwidth_gb_per_s": 50 * factor}, "test")
    assert network_bill(wider, devices).usd.low >= network_bill(nodes(), devices).usd.low
    assert (
        network_bill(nodes(), 2 * devices).power_w.low >= network_bill(nodes(), devices).power_w.low
    )


@pytest.mark.parametrize("name", cluster_presets())
def test_every_preset_has_a_bill(name: str) -> None:
    """All numbers are ranges; one device needs nothing."""
    bill = network_bill(load_cluster(name, 8), 8)
    for each in (bill.usd, bill.power_w):
        assert 0.0 <= each.low <= each.central <= each.high
    assert bill.usd.low > 0.0
    alone = dataclasses.replace(cluster_presets()[name], devices=1)
    assert network_bill(alone, 1).usd == Ranged(0.0, 0.0, 0.0)


def test_a_ring_around_racks() -> None:
    """Of 128 devices on a ring, two links per block of 64 leave it."""
    ring = Cluster("ring", (NetworkLevel(1e11, 1e-6, "ring", 128),), 128)
    (level,) = network_bill(ring, 128).levels
    assert level.optics_bytes_per_s == pytest.approx(2 * 5e10)
