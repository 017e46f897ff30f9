from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from phaze_opt.calibration.collectives import (
    NVLINK_EFFICIENCY,
    CollectiveRow,
    fit_collectives,
    level_constants,
    predicted_s,
    with_level_constants,
)
from phaze_opt.choices import CollectiveName
from phaze_opt.codec import data_rows
from phaze_opt.errors import InputError
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.collective import COLLECTIVES, collective_s
from phaze_opt.network.presets import load_cluster

NVLINK = NetworkLevel(
    450e9,
    6e-7,
    "switch",
    8,
    efficiency=0.75,
    launch_s=5e-6,
    ramp_bytes=6e6,
    own_part_cost=0.3,
    halving=False,
)
FITTED = ("launch_s", "latency_s", "efficiency", "ramp_bytes", "own_part_cost")


def rows_of(
    level: NetworkLevel, kinds: tuple[CollectiveName, ...] = COLLECTIVES
) -> list[CollectiveRow]:
    """Return rows that a level would be measured at."""
    rows = [
        CollectiveRow(kind, devices, size, 1.0)
        for kind in kinds
        for devices in (2, 8)
        for size in np.logspace(5, 9, 5).tolist()
    ]
    times_s = predicted_s(rows, level).tolist()
    return [replace(row, latency_s=time_s) for row, time_s in zip(rows, times_s, strict=True)]


def measured_rows(cluster: str) -> list[CollectiveRow]:
    """Return the built-in rows of one network."""
    return [
        CollectiveRow(
            cast(CollectiveName, row["kind"]),
            int(row["devices"]),
            float(row["bytes"]),
            float(row["latency_s"]),
        )
        for row in data_rows("validation", "collectives_chips.csv")
        if row["cluster"] == cluster
    ]


def test_rows_are_predicted_as_collectives_are() -> None:
    """By the cheapest algorithm among neighbours."""
    rows = rows_of(replace(NVLINK, in_switch_efficiency=0.6, in_switch_latency_s=2e-5))
    level = replace(NVLINK, in_switch_efficiency=0.5, in_switch_latency_s=1e-5)
    cluster = Cluster("node", (level,), 8)
    expected = [collective_s(row.kind, row.size_bytes, row.devices, cluster) for row in rows]
    assert predicted_s(rows, level).tolist() == expected


def found(rows: list[CollectiveRow], level: NetworkLevel, greatest: float = 0.82) -> NetworkLevel:
    """Return the level with what a fit gives."""
    result = fit_collectives(rows, level, level_constants(level, greatest))
    return with_level_constants(level, result.values)


def test_a_fit_returns_the_constants_that_made_the_rows() -> None:
    """From a start that is far away, exact rows give exact constants."""
    start = replace(NVLINK, launch_s=0.0, latency_s=5e-6, efficiency=0.4, ramp_bytes=0.0)
    result = fit_collectives(rows_of(NVLINK), start)
    assert tuple(result.values) == FITTED
    for name, value in result.values.items():
        assert value == pytest.approx(getattr(NVLINK, name), rel=1e-2)
    assert np.abs(result.errors).max() < 3e-3


def test_a_reduction_in_the_switch_is_found() -> None:
    """Its rate shows in large all-reduces, and only where the level has one it is fitted."""
    level = replace(NVLINK, in_switch_efficiency=0.6, in_switch_latency_s=2e-5)
    start = replace(level, in_switch_efficiency=0.4, in_switch_latency_s=0.0)
    assert found(rows_of(level), start).in_switch_efficiency == pytest.approx(0.6, rel=1e-2)


def test_what_rows_leave_open_stays() -> None:
    """All-reduces say nothing about a device's own part, which keeps its value."""
    start = replace(NVLINK, own_part_cost=0.77)
    result = fit_collectives(rows_of(NVLINK, ("all_reduce",)), start)
    (own_part,) = (one for one in result.constants if one.name == "own_part_cost")
    assert (own_part.value, own_part.origin, own_part.standard_error) == (0.77, "kept", None)


def test_large_tensors_alone_do_not_tell_a_step_from_a_launch() -> None:
    """One of the two keeps its value, and the rows are met all the same."""
    rows = [row for row in rows_of(NVLINK) if row.devices == 2 and row.kind == "all_gather"]
    result = fit_collectives(rows, NVLINK)
    assert {"launch_s", "latency_s"} - result.moved.keys()
    assert np.abs(result.errors).max() < 3e-3


def test_other_links_have_other_bounds() -> None:
    """An efficiency above that of NVLinks is found where the bounds allow it."""
    rows = rows_of(replace(NVLINK, efficiency=0.95))
    assert found(rows, NVLINK, 1.0).efficiency == pytest.approx(0.95, rel=1e-2)
    assert found(rows, NVLINK).efficiency == pytest.approx(NVLINK_EFFICIENCY, rel=1e-3)


def test_impossible_rows_are_refused() -> None:
    """There must be as many rows as constants, and their devices must be there."""
    rows = rows_of(NVLINK, ("all_reduce",))
    with pytest.raises(InputError, match="4 measured rows for 5 constants"):
        fit_collectives(rows[:4], NVLINK)
    with pytest.raises(InputError, match="0 measured rows for 5 constants"):
        fit_collectives([], NVLINK)
    with pytest.raises(InputError, match="joins 4"):
        fit_collectives(rows, replace(NVLINK, group_size=4))
    with pytest.raises(InputError, match=r"latency_s is 0\.0"):
        CollectiveRow("all_reduce", 2, 1e6, 0.0)
    with pytest.raises(InputError, match="size_bytes is nan"):
        CollectiveRow("all_reduce", 2, float("nan"), 1e-6)
    with pytest.raises(InputError, match="devices is 1"):
        CollectiveRow("all_reduce", 1, 1e6, 1e-6)
    with pytest.raises(InputError, match="broadcast"):
        CollectiveRow(cast(CollectiveName, "broadcast"), 2, 1e6, 1e-6)


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100"])
def test_built_in_constants_are_what_the_fit_gives(cluster: str) -> None:
    """On the table that comes with the package, to 1 %, from ideal links."""
    level = load_cluster(cluster, 8).levels[0]
    ideal = {"launch_s": 0.0, "latency_s": 0.0, "ramp_bytes": 0.0, "own_part_cost": 0.0}
    result = fit_collectives(measured_rows(cluster), with_level_constants(level, ideal))
    for name, value in result.values.items():
        assert getattr(level, name) == pytest.approx(value, rel=0.01)


def test_half_of_the_rows_predicts_the_other_half() -> None:
    """The constants are not too many for the table: rows that were held out agree as well."""
    rows, level = measured_rows("dgx-a100"), load_cluster("dgx-a100", 8).levels[0]
    order = np.random.default_rng(3).permutation(len(rows)).tolist()
    half = len(rows) // 2
    others = [rows[index] for index in order[half:] if rows[index].size_bytes >= 2**20]
    predicted = predicted_s(others, found([rows[index] for index in order[:half]], level))
    errors = predicted / np.array([row.latency_s for row in others]) - 1.0
    assert np.abs(errors).mean() <= 0.13
