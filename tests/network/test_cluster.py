import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.presets import cluster_presets, find_cluster, load_cluster


def test_presets_say_where_their_numbers_come_from() -> None:
    """Every preset has a source, and sustains no more than its nominal bandwidth."""
    assert {"flat-4GiB", "tpuv4-ici-flat", "tpuv4-torus", "dgx-a100", "dgx-h100"} <= set(
        cluster_presets()
    )
    assert "dgx-b200" in cluster_presets()
    for cluster in cluster_presets().values():
        assert cluster.source
        for level in cluster.levels:
            assert level.sustained_bytes_per_s <= level.bandwidth_bytes_per_s


def test_flat_preset_is_the_papers() -> None:
    """The paper's network is 4 GiB/s without latency."""
    (level,) = load_cluster("flat-4GiB", 1024).levels
    assert level.link_bytes_per_s == 4 * 2**30
    assert level.latency_s == 0.0


@pytest.mark.parametrize(
    ("devices", "axes"),
    [(1, (1, 1, 1)), (8, (2, 2, 2)), (1024, (16, 8, 8)), (1000, (16, 8, 8)), (4096, (16, 16, 16))],
)
def test_torus_slices_are_nearly_cubic(devices: int, axes: tuple[int, ...]) -> None:
    """A job on a torus gets the most cubic slice that holds its devices."""
    cluster = load_cluster("tpuv4-torus", devices)
    assert cluster.levels[0].axes == axes
    assert cluster.devices == devices


def test_links_of_a_torus() -> None:
    """A device on a 3D torus has six links; a message between neighbours takes one."""
    (level,) = cluster_presets()["tpuv4-torus"].levels
    assert level.link_bytes_per_s == pytest.approx(45e9)


def test_reach_is_the_product_of_the_levels() -> None:
    """Levels join what the level below joins; one without a size joins all."""
    levels = tuple(NetworkLevel(1.0, 0.0, "switch", size) for size in (8, 4))
    assert Cluster("c", levels).reach == 32
    assert math.isinf(cluster_presets()["dgx-a100"].reach)


@pytest.mark.parametrize(
    ("bandwidth", "latency", "topology", "size", "axes", "efficiency", "message"),
    [
        (0.0, 0.0, "switch", None, (), 1.0, "bandwidth_bytes_per_s is 0.0"),
        (1.0, -1.0, "switch", None, (), 1.0, "latency_s is -1.0"),
        (1.0, 0.0, "switch", 0, (), 1.0, "group_size is 0"),
        (1.0, 0.0, "switch", 4, (2, 2), 1.0, "axes is .* on a switch"),
        (1.0, 0.0, "torus", 4, (2, 3), 1.0, "product must be group_size 4"),
        (1.0, 0.0, "torus", None, (2, 0), 1.0, "positive extents"),
        (1.0, 0.0, "switch", None, (), 1.5, "efficiency is 1.5"),
    ],
)
def test_impossible_levels_are_refused(
    bandwidth: float,
    latency: float,
    topology: str,
    size: int | None,
    axes: tuple[int, ...],
    efficiency: float,
    message: str,
) -> None:
    """Each number is checked, and the sentence says which one is wrong."""
    with pytest.raises(InputError, match=message):
        NetworkLevel(
            bandwidth,
            latency,
            "torus" if topology == "torus" else "switch",
            size,
            axes,
            efficiency,
        )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("launch_s", -1e-6, "launch_s is -1e-06, but it must not be negative"),
        ("launch_s", math.nan, "launch_s is nan"),
        ("ramp_bytes", -1.0, r"ramp_bytes is -1\.0"),
        ("ramp_bytes", math.inf, "ramp_bytes is inf"),
        ("own_part_cost", 1.5, r"own_part_cost is 1\.5, but it must be in \[0, 1\]"),
        ("in_switch_efficiency", -0.1, r"in_switch_efficiency is -0\.1"),
        ("in_switch_efficiency", math.nan, "in_switch_efficiency is nan"),
        ("in_switch_latency_s", -1.0, r"in_switch_latency_s is -1\.0"),
    ],
)
def test_impossible_constants_are_refused(name: str, value: float, message: str) -> None:
    """What is measured of a link is checked as what is stated of it."""
    level = NetworkLevel(1.0, 0.0, "switch", 4)
    with pytest.raises(InputError, match=message):
        replace(level, **cast(dict[str, Any], {name: value}))


def test_only_a_switch_reduces() -> None:
    """A ring or torus has no reduction in a switch."""
    with pytest.raises(InputError, match="only a switch reduces"):
        NetworkLevel(1.0, 0.0, "ring", 4, in_switch_efficiency=0.5)


def test_impossible_clusters_are_refused() -> None:
    """No devices, no levels, or more devices than the network joins."""
    level = NetworkLevel(1.0, 0.0, "switch", 4)
    with pytest.raises(InputError, match="devices is 0"):
        Cluster("c", (level,), 0)
    with pytest.raises(InputError, match="no network level"):
        Cluster("c", ())
    with pytest.raises(InputError, match="joins at most 4"):
        Cluster("c", (level,), 5)
    with pytest.raises(InputError, match="joins at most 4096"):
        load_cluster("tpuv4-torus", 5000)


def test_clusters_from_files(tmp_path: Path) -> None:
    """A TOML file holds what an entry of the presets does; mistakes in it are named."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'source = "mine"\n'
        'levels = [{ bandwidth_bytes_per_s = 1e9, latency_s = 0.0, topology = "switch" }]\n'
    )
    cluster = load_cluster(str(path), 16)
    assert (cluster.name, cluster.devices) == ("mine", 16)
    path.write_text('levels = [{ bandwidth = 1e9, latency_s = 0.0, topology = "switch" }]\n')
    with pytest.raises(InputError, match="bandwidth_bytes_per_s"):
        find_cluster(str(path))
    path.write_text("levels = [")
    with pytest.raises(InputError, match="not valid TOML"):
        find_cluster(str(path))
    with pytest.raises(NotFoundError):
        find_cluster(str(tmp_path / "none.toml"))
    with pytest.raises(InputError, match="Did you mean 'dgx-a100'"):
        find_cluster("dgx-a10")
