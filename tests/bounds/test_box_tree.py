"""Tests of `phaze_opt.bounds.box_tree` and `phaze_opt.bounds.box_order`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.bounds import box_order
from phaze_opt.bounds.best_first import BestFirst
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.bounding import bounds_of
from phaze_opt.bounds.box_order import BoxOrder
from phaze_opt.bounds.box_tree import BoxTree, Region
from phaze_opt.bounds.core_units import core_units
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import AreaSpec, StudySpec
from phaze_opt.store.enumerations import rounded_up
from phaze_opt.study.study import create_study
from phaze_opt.whole_space import verifying
from phaze_opt.whole_space.certificate import Certificate, certify
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import certificate_of, enumerate_study, verify_certificate
from phaze_opt.whole_space.exhaustive import enumerate_space
from phaze_opt.whole_space.verifying import RefusedError
from tests.whole_space.enumerations import CASES, RUN, Studies, case_spec, engine_of

HALVING = [
    name for name, case in CASES.items() if "constraints" not in case and "workloads" not in case
]
WIDE = StudySpec(
    name="wide",
    model="bert-large",
    tensor_parallel=(1, 2),
    optimizer="adam",
    space=Space(
        "tpuv4-lanes",
        num_tc=(1, 16),
        num_vc=(1, 16),
        pe_x=[64, 128],
        pe_vc=[64, 256],
        hbm_gb_per_s=[400, 1200],
        glb_mib=[16, 64],
        microbatch=[1, 4],
        residency=[False, True],
    ),
    area=AreaSpec(model="chip"),
    **RUN,
)
"""A space of some hundred boxes, in which the size of the global buffer counts."""

WIDE_SPACES = {"wide": WIDE, "per area": replace(WIDE, objectives=("throughput_per_area",))}


class Engines:
    """The engine of every case whose boxes may be halved, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        specs = {name: case_spec(name) for name in HALVING}
        self._studies = Studies(folder, specs | WIDE_SPACES)
        self._made: dict[str, Engine] = {}

    def __getitem__(self, name: str) -> Engine:
        if name not in self._made:
            self._made[name] = engine_of(self._studies[name])
        return self._made[name]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """Return the engines of all cases."""
    return Engines(tmp_path_factory.mktemp("trees"))


def every_region(tree: BoxTree) -> list[Region]:
    """Return all regions of a space."""
    found, left = [], tree.roots(alone=False)
    while left:
        found.append(left.pop())
        if len(found[-1].boxes) > 1:
            left += tree.halves(found[-1])
    return found


@pytest.mark.parametrize("name", [*HALVING, *WIDE_SPACES])
def test_halves_take_every_box_once(name: str, engines: Engines) -> None:
    """Down to single boxes, of which each is there; no box is better than the corner."""
    chips = engines[name].grid.chips
    tree = BoxTree(chips)
    regions = every_region(tree)
    alone = [int(region.boxes[0]) for region in regions if len(region.boxes) == 1]
    assert sorted(alone) == list(range(len(chips.table.chips)))
    assert len({region.path for region in regions}) == len(regions)
    for region in regions:
        corner = tree.corner(region)
        assert all(
            (rate[region.boxes] <= corner[at]).all() for at, rate in chips.table.rates.items()
        )
        assert tree.chips_of(region) == chips.table.chips[region.boxes].sum()
    for root in tree.roots(alone=True):
        assert list(root.boxes) == [root.path[0]]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_box_is_better_than_its_region(engines: Engines, data: st.DataObject) -> None:
    """Under every option, and a region of one box has the bounds of that box to the bit."""
    engine = engines[data.draw(st.sampled_from([*HALVING, *WIDE_SPACES]))]
    tree = BoxTree(engine.grid.chips)
    region = data.draw(st.sampled_from(every_region(tree)))
    option = data.draw(st.integers(0, len(engine.grid.options) - 1))
    (of_region,) = bounds_of(engine.grid, engine.rule, option, tree.corners([region])).T
    flat = BestFirst(engine.grid, engine.rule).order
    for box in region.boxes.tolist():
        assert (flat.bounds(option, box) <= rounded_up(of_region)).all()
        if len(region.boxes) == 1:
            assert (flat.bounds(option, box) == rounded_up(of_region)).all()


@pytest.mark.parametrize("name", [*HALVING, *WIDE_SPACES])
def test_the_order_does_not_depend_on_halving(
    name: str, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same cells come in the same order, while some are left unbounded."""
    engine = engines[name]

    def cells(order: BoxOrder) -> list[box_order.Cell]:
        found: list[box_order.Cell] = []
        while (cell := order.cell(len(found))) is not None:
            found.append(cell)
        return found

    def order() -> BoxOrder:
        return BoxOrder(engine.grid, engine.rule, None)

    flat = cells(order())
    monkeypatch.setattr(box_order, "MOST_AT_ONCE", 0)
    monkeypatch.setattr(box_order, "core_units", lambda chips: None)
    for halved in (1, 7, 1000):
        monkeypatch.setattr(box_order, "HALVED", halved)
        whole = order()
        assert cells(whole) == flat
    lazy = order()
    assert lazy.cell(0) == flat[0]
    known = sum(len(bounded.region.boxes) for bounded in lazy.frontier())
    assert known == len(engine.grid.chips.table.chips)
    # What is known to be infeasible early is part of what is known in the end.
    assert lazy.infeasible(0) <= whole.infeasible(len(flat))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_chip_is_better_than_the_cores_of_its_box(engines: Engines, data: st.DataObject) -> None:
    """Bounds by the cores lie between those of the chips and those of the peak rates."""
    assert core_units(engines["narrow-arrays"].grid.chips) is None
    names = [name for name in (*HALVING, *WIDE_SPACES) if name != "narrow-arrays"]
    engine = engines[data.draw(st.sampled_from(names))]
    grid, chips = engine.grid, engine.grid.chips
    boxes = np.array([data.draw(st.integers(0, len(chips.table.chips) - 1))])
    option = data.draw(st.integers(0, len(grid.options) - 1))
    units = core_units(chips)
    assert units is not None
    box = BoundedChips.boxes(chips, boxes)
    (loose,) = bounds_of(grid, engine.rule, option, box).T
    (close,) = bounds_of(grid, engine.rule, option, replace(box, units=units.of(boxes))).T
    rows = np.arange(*chips.first[boxes[0] : boxes[0] + 2])
    of_chips = bounds_of(grid, engine.rule, option, BoundedChips.of(chips, rows))
    assert (of_chips.max(axis=1) <= close * (1.0 + 1e-12)).all()
    assert (close <= loose * (1.0 + 1e-12)).all()


def test_cores_that_no_tile_fits_hide_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes are bounded by the cores that a tile fits; others have no feasible point."""
    space = Space("tpuv4-lanes", num_tc=(1, 8), num_vc=(1, 4), pe_x=[64, 256], l2_tc_kib=[1, 512])
    spec = StudySpec("t", "bert-large", tensor_parallel=(1,), space=space, **RUN)
    study = create_study(
        replace(spec, area=AreaSpec(model="chip")), f"sqlite:///{tmp_path / 'a.db'}"
    )
    flat = enumerate_space(engine_of(study), None, top=3)
    monkeypatch.setattr(box_order, "MOST_AT_ONCE", 0)
    monkeypatch.setattr(box_order, "HALVED", 4)
    halved = enumerate_space(engine_of(study), None, top=3)
    assert flat is not None and halved is not None and len(flat.top) == 3
    assert [design.point for design in halved.top] == [design.point for design in flat.top]
    assert halved.evaluated == flat.evaluated
    assert halved.infeasible_proven == flat.infeasible_proven > 0


def test_a_searched_bandwidth_of_the_global_buffer_leaves_peak_rates_alone(tmp_path: Path) -> None:
    """The tiles of products follow from it, so that cores alone do not tell the time."""
    space = Space("tpuv4-lanes", num_tc=[2, 4], glb_bytes_per_cycle=[2048, 4096])
    spec = StudySpec("b", "bert-large", space=space, area=AreaSpec(model="chip"), **RUN)
    study = create_study(spec, f"sqlite:///{tmp_path / 'a.db'}")
    assert core_units(engine_of(study).grid.chips) is None


def test_a_halved_space_is_certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The top and the evaluations are the same; the certificate has fewer bounds, and verifies."""
    monkeypatch.setattr(verifying, "SAMPLE", 5)
    study = create_study(WIDE, f"sqlite:///{tmp_path / 'a.db'}")
    flat = enumerate_study(study, top=5)
    of_boxes = certificate_of(study, flat, 5)
    monkeypatch.setattr(box_order, "MOST_AT_ONCE", 0)
    monkeypatch.setattr(box_order, "HALVED", 4)
    engine = engine_of(study)
    halved = enumerate_space(engine, None, top=5)
    assert halved is not None
    assert halved.evaluated == flat.evaluated
    certificate = certify(BestFirst(engine.grid, engine.rule), halved, 5)
    assert certificate.top == of_boxes.top
    assert len(certificate.boxes) < len(of_boxes.boxes) / 2
    assert sum(box.chips for box in certificate.boxes) == len(engine.grid.chips)
    verify_certificate(certificate)
    closed = next(at for at, box in enumerate(certificate.boxes) if not box.opened)
    for altered in _altered(certificate, closed):
        with pytest.raises(RefusedError):
            verify_certificate(altered)


def _altered(certificate: Certificate, closed: int) -> list[Certificate]:
    """Return certificates with a wrong region."""
    boxes = certificate.boxes
    box = boxes[closed]
    lower = tuple(tuple(bound * 0.9 for bound in bounds) for bounds in box.bounds)
    changes = (
        (*boxes[:closed], *boxes[closed + 1 :]),
        (*boxes[:closed], replace(box, bounds=lower), *boxes[closed + 1 :]),
        (*boxes[:closed], replace(box, chips=box.chips + 1), *boxes[closed + 1 :]),
    )
    altered = [replace(certificate, boxes=changed) for changed in changes]
    return [replace(made, checksum=made.content) for made in altered]
