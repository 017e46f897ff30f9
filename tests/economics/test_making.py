"""What chips cost to make and emit: worked examples, published bills, and laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.choices import ProcessNodeName
from phaze_opt.economics.carbon import die_kg_per_cm2, embodied_kg
from phaze_opt.economics.choices import STANDARD
from phaze_opt.economics.constants import CASES, Case, grids, wafer
from phaze_opt.economics.die import dies_per_wafer, sold_share
from phaze_opt.economics.package import (
    Parts,
    cheapest_dies,
    package_usd,
)
from phaze_opt.economics.rates import least_rates, rates_of
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.hardware.process_node import RETICLE_MM2, process_nodes
from phaze_opt.network.presets import load_cluster

NODES: tuple[ProcessNodeName, ...] = ("n28", "n16", "n10", "n7", "n5", "n4", "n3")


def parts_of(name: str) -> Parts[float]:
    """Return the parts of a preset."""
    parts = Parts.of(load_accelerator(name))
    assert parts is not None
    return parts


def made_usd(parts: Parts[float], case: Case = "central") -> float:
    """Return what a chip costs to make."""
    return sum(package_usd(parts, cheapest_dies(parts), case).values())


@pytest.mark.parametrize(("edge_mm", "dies", "share"), [(15.0, 270, 0.40), (10.0, 640, 0.66)])
def test_dies_and_yield_of_the_textbook(edge_mm: float, dies: int, share: float) -> None:
    """Hennessy and Patterson, fifth edition, section 1.6: 0.031 defects per cm², N = 13.5."""
    assert round(dies_per_wafer(edge_mm**2)) == dies
    assert sold_share(edge_mm**2, 13.5 * 0.031, 13.5) == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize(
    ("node", "kg"),
    [("n28", 1.39), ("n16", 1.64), ("n10", 1.88), ("n7", 2.46), ("n5", 2.96), ("n3", 3.38)],
)
def test_carbon_of_a_die_is_that_of_act(node: ProcessNodeName, kg: float) -> None:
    """With its yield of 0.875 and the grid of Taiwan, to 1 %."""
    found = die_kg_per_cm2(wafer(node, "central"), grids()["taiwan"], 0.875)
    assert found == pytest.approx(kg, rel=0.01)


@pytest.mark.parametrize(("name", "kg"), [("a100-40", 127.6), ("h100", 164.0), ("b200", 284.25)])
def test_embodied_carbon_of_published_footprints(name: str, kg: float) -> None:
    """Without the host, within 30 %: A100 (arXiv 2509.00093), H100 and B200 (NVIDIA)."""
    parts = parts_of(name)
    found = {**embodied_kg(parts, cheapest_dies(parts), "central")}
    del found["host"]
    assert sum(found.values()) == pytest.approx(kg, rel=0.3)


def test_cost_to_make_of_published_bills() -> None:
    """A B200 between 5,700 and 7,300 USD (Epoch AI), an H100 at 3,320 (Raymond James)."""
    assert 5700 <= made_usd(parts_of("b200")) <= 7300
    h100 = parts_of("h100")
    assert made_usd(h100, "low") <= 3320 <= made_usd(h100, "high")
    assert made_usd(h100) == pytest.approx(3320, rel=0.1)


@pytest.mark.parametrize("name", ["a100-80", "b200", "tpuv4-phaze", "groq-lpu", "l40s"])
def test_low_is_below_central_below_high(name: str) -> None:
    """In every part that is bought, and in every part that emits."""
    parts = parts_of(name)
    dies = cheapest_dies(parts)
    for of in (package_usd, embodied_kg):
        low, central, high = (of(parts, dies, case) for case in CASES)
        for part, value in central.items():
            assert low[part] <= value <= high[part], part


@given(
    area_mm2=st.floats(1.0, 8.0 * RETICLE_MM2),
    growth=st.floats(1.0, 1.5),
    node=st.sampled_from(NODES),
    stacks=st.integers(0, 8),
)
def test_a_bigger_die_is_never_cheaper(
    area_mm2: float, growth: float, node: ProcessNodeName, stacks: int
) -> None:
    """Neither one die, nor a chip that the reticle splits into several; nor does it emit less."""
    chip = Parts(area_mm2, 16.0 * stacks, float(stacks), node, "hbm3")
    larger = replace(chip, silicon_mm2=min(area_mm2 * growth, 8.0 * RETICLE_MM2))
    assert made_usd(chip) <= made_usd(larger) * (1 + 1e-12)
    assert made_usd(chip) <= made_usd(replace(chip, stacks=stacks + 1.0)) * (1 + 1e-12)
    one, more = (sum(embodied_kg(each, 1.0, "central").values()) for each in (chip, larger))
    assert one <= more * (1 + 1e-12)


@given(st.lists(st.floats(1.0, 8000.0), min_size=1, max_size=5), st.sampled_from(NODES))
def test_many_chips_cost_what_each_does(areas: list[float], node: ProcessNodeName) -> None:
    """What bounds use is what the bill uses."""
    ones, cluster = np.ones(len(areas)), load_cluster("dgx-h100", 8)
    parts = Parts(np.array(areas), 80.0 * ones, 5.0 * ones, node, "hbm3")
    many = least_rates(parts, 10.0 * ones, STANDARD, cluster)
    for place, area_mm2 in enumerate(areas):
        own = Parts(area_mm2, 80.0, 5.0, node, "hbm3")
        alone = rates_of(own, cheapest_dies(own), 10.0, STANDARD, cluster, "central")
        assert many.usd_per_s[place] == pytest.approx(alone.usd_per_s)
        assert many.kg_per_s[place] <= alone.kg_per_s * (1 + 1e-12)
        assert many.wall_w[place] == pytest.approx(alone.wall_w)


def test_no_die_is_larger_than_the_reticle() -> None:
    """A chip of twice its area has three dies: what links them takes area too."""
    whole = Parts(2 * RETICLE_MM2, 80.0, 5.0, "n5", "hbm3")
    assert cheapest_dies(whole) >= 3
    assert cheapest_dies(replace(whole, dies=2)) == 2


def test_every_process_has_a_wafer() -> None:
    """Also a confidence."""
    assert [*process_nodes()] == [*NODES]
    for node in NODES:
        assert wafer(node, "low").usd <= wafer(node, "high").usd
        assert wafer(node, "central").confidence in ("high", "medium", "low")
