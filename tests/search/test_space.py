"""Points of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, IntDistribution

from phaze_opt.errors import InputError
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.search.space import (
    DesignPoint,
    PowerRange,
    Space,
    contains,
    distributions,
    params_of,
    point_of,
    point_of_accelerator,
)
from phaze_opt.search.spec import read_spec

TIED = Space()
FREE = Space(pe_vc=PowerRange(2, 2048))
QUICKSTART = Path(__file__).parents[2] / "studies" / "quickstart.toml"


def points(space: Space) -> st.SearchStrategy[DesignPoint]:
    """Any point of a space, by way of its distributions."""
    axes: dict[str, Any] = {}
    for name, axis in distributions(space).items():
        if isinstance(axis, CategoricalDistribution):
            axes[name] = st.sampled_from(axis.choices)
        elif isinstance(axis, IntDistribution):
            axes[name] = st.integers(axis.low, axis.high)
    return st.fixed_dictionaries(axes).map(lambda params: point_of(space, params))


@given(points(FREE))
def test_params_are_the_inverse_of_points(point: DesignPoint) -> None:
    """What a sampler chose can be read back from the point."""
    assert contains(FREE, point)
    assert point_of(FREE, params_of(FREE, point)) == point


@given(points(TIED))
def test_tied_lanes_follow_the_array(point: DesignPoint) -> None:
    """In the paper's space a vector core has as many lanes as the PE array has columns."""
    assert point.pe_vc == point.pe_x
    assert contains(TIED, point)
    assert "log2_pe_vc" not in params_of(TIED, point)


@given(points(FREE))
def test_accelerator_shows_its_point(point: DesignPoint) -> None:
    """The accelerator of a point is described by that point again."""
    chip = point.accelerator(load_accelerator("tpuv4-phaze"))
    assert point_of_accelerator(chip, point.microbatch, point.recompute) == point
    assert chip.l2_tc_bytes == max(1024, 16 * point.pe_x * point.pe_y)


@pytest.mark.parametrize("name", ["tpuv4-phaze", "tpuv4-lanes"])
def test_baselines_lie_in_the_quickstart(name: str) -> None:
    """Both baselines are points of the quickstart's space."""
    space = read_spec(QUICKSTART).space
    assert contains(space, point_of_accelerator(load_accelerator(name), 4, "none"))


def test_paper_space_has_its_candidates() -> None:
    """The paper's architecture axes have 75,712 candidates."""
    space = Space(hbm_gib=(32,), microbatch=PowerRange(1, 1), recompute=("none",))
    assert space.points == 13 * 13 * 8 * 8 * 7 == 75_712


@pytest.mark.parametrize(
    "change",
    [
        {"log2_num_tc": 13},
        {"log2_num_tc": -1},
        {"log2_num_tc": "3"},
        {"log2_num_tc": 2.5},
        {"hbm_gib": 48},
        {"hbm_gib": None},
        {"recompute": "some"},
    ],
)
def test_foreign_params_are_refused(change: dict[str, Any]) -> None:
    """Parameters that the space does not hold (of a row somebody else wrote) are refused."""
    point = DesignPoint(8, 2, 128, 128, 128, 128, 32, 4, "none")
    with pytest.raises(InputError):
        point_of(TIED, params_of(TIED, point) | change)
