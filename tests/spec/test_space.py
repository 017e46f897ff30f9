"""Points of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.codec import from_json, to_json
from phaze_opt.errors import InputError
from phaze_opt.hardware.area import AREA_FIELDS, area_of_arrays_mm2
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.spec.designs import Design, chip_of, cluster_of, training_of, values_of_design
from phaze_opt.spec.space import (
    DesignPoint,
    Space,
    all_points,
    distributions,
    numbered_point,
    params_of,
    point_of,
    why_outside,
)
from phaze_opt.spec.study_spec import read_spec

TIED = Space.phaze()
FREE = Space.phaze(pe_vc=(2, 2048))
GENERAL = Space(
    "tpuv4-lanes",
    num_tc={"min": 4, "max": 12, "step": 4},
    pe_x=[64, 96, 128],
    pe_y="pe_x",
    num_vc=3,
    hbm_gib=[32, 80],
    hbm_gb_per_s="37.5 * hbm_gib",
    clock_ghz={"min": 0.8, "max": 1.2, "step": 0.1},
    l2_tc_bytes="rule",
    microbatch=(1, 4),
    zero={"solve": [0, 1]},
    overlap=["none", "data"],
    devices=[64, 128],
    network={"0": {"latency_us": [1, 2.5]}},
)
QUICKSTART = Path(__file__).parents[2] / "studies" / "quickstart.toml"
BASE = load_accelerator("tpuv4-lanes")


def points(space: Space) -> st.SearchStrategy[DesignPoint]:
    """Any point of a space."""
    return st.integers(0, space.points - 1).map(lambda number: numbered_point(space, number))


@given(points(FREE) | points(GENERAL))
def test_params_are_the_inverse_of_points(point: DesignPoint) -> None:
    """What a sampler chose can be read back from the point."""
    space = GENERAL if "clock_ghz" in point.by_name else FREE
    params = params_of(space, point)
    assert params.keys() == distributions(space).keys()
    assert point_of(space, params) == point
    assert why_outside(space, {**point.by_name, "zero": 0}) is None
    assert eval(repr(point)) == point


@given(points(TIED))
def test_tied_lanes_follow_the_array(point: DesignPoint) -> None:
    """In the paper's space a vector core has as many lanes as the PE array has columns."""
    assert point["pe_vc"] == point["pe_x"]
    assert "log2_pe_vc" not in params_of(TIED, point)


@given(points(GENERAL))
def test_a_design_shows_its_point(point: DesignPoint) -> None:
    """Chip, network and options of a point are described by that point again."""
    values = point.by_name
    cluster = load_cluster("tpuv4-ici-flat", int(values["devices"]))
    options: dict[str, Any] = {
        "global_batch": 64,
        "microbatch": values["microbatch"],
        "overlap": values["overlap"],
        "interleave": 1,
        "zero": 0,
    }
    chip = chip_of(BASE, values)
    design = Design(chip, cluster_of(cluster, values), "tpuv4-ici-flat", options)
    assert values_of_design(GENERAL, design) == {**values, "zero": 0}
    assert chip.l2_tc_bytes == max(1024, 16 * chip.pe_x * chip.pe_y)
    assert chip.hbm_bytes_per_s == 37.5e9 * float(values["hbm_gib"])
    assert design.cluster.levels[0].latency_s == float(values["network.0.latency_us"]) / 1e6
    training = training_of(design.options, None)
    assert (training.microbatch, training.overlap) == (values["microbatch"], values["overlap"])


def test_what_is_not_named_has_the_number_of_the_base() -> None:
    """An axis that the space does not name is not searched."""
    space = Space("tpuv4-lanes", num_tc=[4, 8])
    assert space.points == 2
    four, eight = (chip_of(BASE, point.by_name) for point in all_points(space))
    assert eight == BASE
    assert (four.num_tc, four.num_vc, four.pe_vc) == (4, BASE.num_vc, BASE.pe_vc)


@pytest.mark.parametrize("space", [Space(num_tc=[1, 2], pe_x=(2, 8), zero=[0, 3]), GENERAL])
def test_every_point_has_one_number(space: Space) -> None:
    """The numbered points are all different, and as many as the space says."""
    assert len(set(all_points(space))) == space.points


@pytest.mark.parametrize("name", ["tpuv4-phaze", "tpuv4-lanes"])
def test_baselines_lie_in_the_quickstart(name: str) -> None:
    """Both baselines are points of the quickstart's space."""
    space = read_spec(QUICKSTART).space
    options: dict[str, Any] = {
        "microbatch": 4,
        "recompute": "none",
        "zero": 0,
        "attention": "eager",
    }
    cluster = load_cluster("tpuv4-ici-flat", 8)
    design = Design(load_accelerator(name), cluster, "tpuv4-ici-flat", options)
    assert why_outside(space, values_of_design(space, design)) is None


def test_a_number_outside_is_named() -> None:
    """What a space does not have is said with what it has."""
    values = {**numbered_point(TIED, 0).by_name, "num_tc": 132}
    expected = "num_tc is 132, but the space has powers of two from 1 to 4,096"
    assert why_outside(TIED, values) == expected


def test_paper_space_has_its_candidates() -> None:
    """The paper's 75,712 candidates hold its 29,360 architectures within 30 to 100 % of the area.

    Chips with one core of a kind have no lower bound.
    """
    space = Space.phaze(hbm_gib=32, microbatch=1, recompute="none")
    assert space.points == 13 * 13 * 8 * 8 * 7 == 75_712
    names = ("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc", "glb_mib")
    rows = np.array([[point[name] for name in names] for point in all_points(space)], dtype=int)
    num_tc, num_vc, pe_x, pe_y, pe_vc, glb_mib = rows.T
    base = load_accelerator("tpuv4-phaze")
    columns = {name: np.full(len(rows), getattr(base, name)) for name in AREA_FIELDS}
    columns |= {"num_tc": num_tc, "num_vc": num_vc, "pe_x": pe_x, "pe_y": pe_y, "pe_vc": pe_vc}
    columns["glb_bytes"] = glb_mib * 2**20
    columns["l2_tc_bytes"] = np.maximum(1024, 16 * pe_x * pe_y)
    columns["l2_vc_bytes"] = np.maximum(1024, 16 * pe_vc)
    area_mm2 = area_of_arrays_mm2(columns, "phaze-22nm")
    limit_mm2 = base.area_under("phaze-22nm")
    least = np.where((num_tc > 1) & (num_vc > 1), 0.3 * limit_mm2, 0.0)
    assert int(((area_mm2 <= limit_mm2) & (area_mm2 >= least)).sum()) == 29_360


def test_spaces_are_plain_data() -> None:
    """A space is written as a spec states it, and read back; its ``repr`` is a call."""
    for space in (TIED, FREE, GENERAL, Space()):
        assert from_json(to_json(space), Space, "space") == space
        assert eval(repr(space)) == space
    assert from_json(b'"phaze"', Space, "space") == TIED


def test_varying_numbers_include_derived_ones() -> None:
    """What follows from a searched axis varies with it, in SI units."""
    varying = set(GENERAL.varying_fields)
    assert {"hbm_bytes_per_s", "pe_y", "clock_hz", "zero", "network.0.latency_s"} <= varying
    assert not {"num_vc", "l2_tc_bytes"} & varying


@pytest.mark.parametrize(
    "change",
    [
        {"log2_num_tc": 13},
        {"log2_num_tc": -1},
        {"log2_num_tc": "3"},
        {"log2_num_tc": 2.5},
        {"hbm_gib": 48},
        {"hbm_gib": None},
        {"hbm_gib": 32.0},
        {"recompute": "some"},
    ],
)
def test_foreign_params_are_refused(change: dict[str, Any]) -> None:
    """Parameters that the space does not hold (of a row somebody else wrote) are refused."""
    with pytest.raises(InputError):
        point_of(TIED, params_of(TIED, numbered_point(TIED, 0)) | change)


def test_options_that_follow_others_have_their_values() -> None:
    """All of them are captured for, and baselines take those that go together."""
    space = Space(num_tc=[2, 4], microbatch="num_tc", zero=[0, 1], interleave="2 * microbatch")
    assert space.values_of("microbatch") == (2, 4) and space.values_of("interleave") == (4, 8)
    options = space.training_options()
    assert sorted(each["microbatch"] for each in options) == [2, 2, 4, 4]
    assert all(each["interleave"] == 2 * int(each["microbatch"]) for each in options)
    points = {(point["microbatch"], point["zero"]) for point in all_points(space)}
    assert points == {(each["microbatch"], each["zero"]) for each in options}


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ({"num_tcs": 3}, "Did you mean 'num_tc'"),
        ({"network.0.latenzy_us": 3}, "Did you mean 'latency_us'"),
        ({"num_tc": 1.5}, "num_tc of the space holds 1.5.*whole number"),
        ({"num_tc": -1}, "positive whole number"),
        ({"devices": 1.5}, "positive whole number"),
        ({"hbm_gb_per_s": True}, "positive number"),
        ({"pe_vc": "pe_y"}, "pe_vc of the space follows 'pe_y'.*there is none"),
        ({"pe_x": "pe_y", "pe_y": "pe_x"}, "follows"),
        ({"pe_vc": "twice pe_x"}, "text must name another axis"),
        ({"num_tc": {"solve": [1, 2]}}, "only options of the training run"),
        ({"glb_mib": 8, "glb_bytes": 4}, "state the same number"),
        ({"clock_ghz": [1, 2], "peak_tflops": 3}, "state the same number"),
        ({"calibration.hbm_efficiency": [0.8, 0.9]}, "measured, not chosen"),
        ({"concurrent_operators": [True, False]}, "measured, not chosen"),
        ({"zero": 5}, "zero is 5, but it must be 0, 1, 2 or 3"),
        ({"microbatch": ["2"]}, "microbatch of the space"),
        ({"attention": ["fast"]}, "Unknown attention.*'flash'"),
        ({"recompute": ["ful"]}, "Did you mean 'full'"),
        ({"cluster": 3}, "must name a cluster"),
        ({"preset": "paper"}, "Unknown preset.*'paper'"),
        ({"base": 3}, "base is 3, but it must be the name or the path"),
    ],
)
def test_mistakes_are_named(axes: dict[str, Any], sentence: str) -> None:
    """Every mistake in a space is refused in one sentence that names the axis."""
    with pytest.raises(InputError, match=sentence) as caught:
        Space(**axes)
    assert "\n" not in str(caught.value)
