"""Networks as axes of a space, and the area that their links take of a chip."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.hardware.area import link_area_mm2
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.level_values import even_extents, level_value, with_level_values
from phaze_opt.network.presets import load_cluster
from phaze_opt.spec.constraints import chip_violation
from phaze_opt.spec.freezing import check_names
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.space import Space, all_points
from phaze_opt.spec.study_spec import AreaSpec, StudySpec, read_spec
from phaze_opt.spec.variations import Variation, varied

SPEC = """
name = "networks"
model = "bert-large"
cluster = "dgx-h100"
devices = 64
global_batch = 64

[space]
base = "tpuv4-lanes"
num_tc = [2, 8]

[space.network.0]
group_size = [1, 8, 16]
topology = ["switch", "torus-2d", "torus-3d"]
links = [6, 18]
bandwidth_gb_per_s = "25 * network.0.links"

[space.network.1]
topology = ["switch", "fat-tree"]
taper = [1.0, 2.0]
leaf_devices = 32

[area]
model = "chip"
"""


def resolved(folder: Path, links: bool = False) -> ResolvedStudy:
    """Freeze the study, without its model."""
    path = folder / "networks.toml"
    path.write_text(SPEC + f"links = {str(links).lower()}\n")
    return check_names(read_spec(path))


@given(st.integers(1, 576), st.integers(1, 3))
def test_extents_are_the_most_even_ones(size: int, dimensions: int) -> None:
    """No other extents of that product have a smaller largest one; they fall."""
    extents = even_extents(size, dimensions)
    assert math.prod(extents) == size
    assert len(extents) == dimensions
    assert list(extents) == sorted(extents, reverse=True)
    root = round(size ** (1 / dimensions))
    if root**dimensions == size:
        assert set(extents) == {root}


def test_every_point_is_a_network_of_its_own_values(tmp_path: Path) -> None:
    """Extents follow from size and dimensions; only leaf switches have a taper."""
    study = resolved(tmp_path)
    space = study.spec.space
    assert space.points == 2 * 3 * 3 * 2 * 2 * 2
    seen: dict[Cluster, set[Any]] = {}
    for point in all_points(space):
        values = point.by_name
        inner, outer = study.design(point).cluster.levels
        assert inner.bandwidth_bytes_per_s == 25e9 * float(values["network.0.links"])
        assert inner.group_size == values["network.0.group_size"]
        assert level_value(inner, "topology") == values["network.0.topology"]
        if inner.topology == "torus":
            assert len(inner.axes) == int(str(values["network.0.topology"])[6])
            assert inner.in_switch_efficiency == 0.0
        leaves = outer.topology == "fat-tree"
        assert outer.taper == (values["network.1.taper"] if leaves else 1.0)
        assert outer.leaf_devices == (32 if leaves else None)
        seen.setdefault(study.design(point).cluster, set()).add(values["network.1.taper"])
    switched = [tapers for cluster, tapers in seen.items() if cluster.levels[1].is_uniform]
    assert {2.0, 1.0} in switched


@pytest.mark.parametrize(
    ("axis", "value", "words"),
    [
        ("network.0.topology", "mesh", "Unknown topology"),
        ("network.0.topology", ["switch", "torus-4d"], "torus-3d"),
        ("network.7.topology", "ring", "no level"),
        ("network.1.topology", "torus-2d", "group_size must say"),
        ("network.0.topology", "rail", "rails need a level"),
    ],
)
def test_networks_that_cannot_be(axis: str, value: object, words: str) -> None:
    """One sentence says what is allowed."""
    with pytest.raises(InputError) as error:
        named: dict[str, Any] = {axis: value}
        space = Space("tpuv4-lanes", **named)
        check_names(StudySpec("n", "bert-large", "dgx-h100", 64, 64, space=space))
    assert words in str(error.value)


def test_links_take_area_where_it_is_asked_for(tmp_path: Path) -> None:
    """Of the chip, and of the limit; without that no number changes, nor with another model."""
    without, study = resolved(tmp_path), resolved(tmp_path, links=True)
    chip, base = study.base, study.cluster
    own_mm2 = chip.area_under("chip")
    assert without.area_limit_mm2 == own_mm2 == without.area_if_known_mm2(chip, base)
    links_mm2 = 0.0632 * (450 + 50)
    assert study.link_area_mm2(base) == pytest.approx(links_mm2)
    assert study.area_limit_mm2 == pytest.approx(own_mm2 + links_mm2)
    assert study.area_if_known_mm2(chip, base) == study.area_limit_mm2
    assert link_area_mm2(1e12, "phaze-22nm") == 0.0
    assert chip_violation(study, chip, base) is None
    more = with_level_values(base, {"network.0.bandwidth_gb_per_s": 451}, "test")
    violation = chip_violation(study, chip, more)
    assert violation is not None
    assert violation.limit == "area"
    assert chip_violation(without, chip, more) is None


def test_bounds_leave_out_only_chips_that_surely_have_no_room(tmp_path: Path) -> None:
    """A chip at the limit stays, although its area in an array may differ in the last bits."""
    study = resolved(tmp_path, links=True)
    left_mm2 = study.area_limit_mm2 - study.link_area_mm2(study.cluster)
    areas_mm2 = left_mm2 * np.array([0.5, 1.0, 1.0 + 1e-12, 1.0 + 1e-6])
    assert study.links_fit(areas_mm2, study.cluster).tolist() == [True, True, True, False]
    assert resolved(tmp_path).links_fit(areas_mm2, study.cluster).all()


def test_a_network_that_sustains_more_has_the_same_links(tmp_path: Path) -> None:
    """Where its bandwidth is varied; an area that is varied changes the limit with the chip."""
    study = resolved(tmp_path, links=True)
    point = next(all_points(study.spec.space))
    faster = varied(study, Variation("network_bandwidth", 1.2))
    assert faster.design(point).cluster != study.design(point).cluster
    assert faster.link_area_mm2(faster.design(point).cluster) == pytest.approx(
        study.link_area_mm2(study.design(point).cluster)
    )
    larger = varied(study, Variation("pe_area", 1.2))
    assert larger.area_limit_mm2 > study.area_limit_mm2


@pytest.mark.parametrize("other", [{"model": "phaze-22nm"}, {"model": "chip", "min_share": 0.3}])
def test_links_do_not_go_with_everything(other: dict[str, Any]) -> None:
    """One sentence says why."""
    with pytest.raises(InputError, match="links is true"):
        AreaSpec(links=True, **other)


def test_another_size_changes_the_extents_of_a_torus() -> None:
    """As many axes as before; a ring has none."""
    torus = load_cluster("trn2-efa", 64)
    changed = with_level_values(torus, {"network.0.group_size": 32}, "test").levels[0]
    assert (changed.axes, changed.group_size) == ((8, 4), 32)
    ring = with_level_values(torus, {"network.0.topology": "ring"}, "test").levels[0]
    assert (ring.topology, ring.axes, ring.group_size) == ("ring", (), 16)
    assert dataclasses.replace(ring, topology="torus", axes=(4, 4)) == torus.levels[0]
