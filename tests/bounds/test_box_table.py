"""Tests of `phaze_opt.bounds.axis_groups` and `phaze_opt.bounds.box_table`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.bounds import axis_groups, box_table
from phaze_opt.bounds.space_chips import SpaceChips, allowed_chips
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.spec.constraints import chip_violation
from phaze_opt.spec.designs import chip_of
from phaze_opt.spec.freezing import check_names
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.space import Space, all_points
from phaze_opt.spec.study_spec import AreaSpec, ConstraintSpec
from tests.study.fakes import toy_spec

AXES: dict[str, list[Any]] = {
    "num_tc": [[1, 2, 7], (1, 4), 3],
    "num_vc": [[1, 3], (1, 2), "num_tc"],
    "pe_x": [[32, 96], (64, 128), 64],
    "pe_y": ["pe_x", [16, 64], "64"],
    "pe_vc": [[64, 256], "pe_x", 128],
    "l2_vc_kib": ["rule", [16, 64], "0.25 * pe_x"],
    "l2_tc_kib": ["rule", [32, 512]],
    "glb_mib": [(1, 4), [0.25, 64], "4 * num_tc"],
    "hbm_gib": [[16, 32], 16],
    "hbm_gb_per_s": [[400, 800], "37.5 * hbm_gib", "100 * num_vc"],
    "glb_bytes_per_cycle": [[1024, 4096]],
}


def study_of(axes: dict[str, Any], area: AreaSpec, **limits: Any) -> ResolvedStudy:
    """Return a study of a space."""
    constraints = ConstraintSpec(**({"max_power_w": 1e6} | limits))
    space = Space("tpuv4-lanes", **axes)
    spec = toy_spec(space=space, area=area, constraints=constraints, baselines=())
    return check_names(replace(spec, model="bert-large"))


def listed(chips: SpaceChips) -> list[Accelerator]:
    """Return all chips, with every size of the HBM."""
    rows = np.arange(len(chips))
    sizes = chips.hbm_bytes(rows)
    return [
        replace(chip, hbm_bytes=int(size))
        for row, chip in enumerate(chips.architectures(rows))
        for size in sizes[:, row].tolist()
    ]


def one_by_one(study: ResolvedStudy) -> list[Accelerator]:
    """Return the chips of all points that are allowed."""
    chips = []
    for point in all_points(study.spec.space):
        try:
            chip = chip_of(study.base, point.by_name)
        except InputError:
            continue
        if chip_violation(study, chip) is None:
            chips.append(chip)
    return chips


def equal(some: list[Accelerator], others: list[Accelerator]) -> bool:
    """Whether both lists have the same chips equally often."""
    return Counter(some) == Counter(others)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_chips_are_those_that_are_allowed_one_by_one(data: st.DataObject) -> None:
    """Whatever the axes are, and whichever follow from others."""
    names = data.draw(st.sets(st.sampled_from(sorted(AXES)), min_size=2, max_size=5))
    axes = {name: data.draw(st.sampled_from(AXES[name])) for name in AXES if name in names}
    needed = {source for value in axes.values() for source in AXES if source in str(value)}
    axes |= {name: AXES[name][0] for name in needed - set(axes)}
    area = AreaSpec(
        model=data.draw(st.sampled_from(["chip", "phaze-22nm"])),
        max_mm2=data.draw(st.sampled_from([300.0, 450.0, 900.0])),
        min_share=data.draw(st.sampled_from([0.0, 0.5])),
    )
    limit_gib = data.draw(st.sampled_from([None, 8.0, 20.0]))
    try:
        study = study_of(axes, area, max_hbm_gib=limit_gib)
    except InputError:
        return  # axes that exclude each other, or that the area model does not charge for
    chips = allowed_chips(study)
    assert equal(listed(chips), one_by_one(study))
    rows = np.arange(len(chips))
    counts = np.bincount(chips.boxes_of(rows), minlength=len(chips.table.chips))
    assert (counts == chips.table.chips).all() and (counts > 0).all()
    for row, (chip, area_mm2) in enumerate(
        zip(chips.architectures(rows), chips.areas_mm2(rows).tolist(), strict=True)
    ):
        assert chip == chips.build([*chips.point_indices(row, 0).values()])
        assert area_mm2 == pytest.approx(chip.area_under(area.model), rel=1e-13)
        box = int(chips.boxes_of(rows[row : row + 1])[0])
        assert area_mm2 >= chips.table.least_mm2[box]
        for name, rate in chips.table.rates.items():
            own = {
                "processing_elements": chip.num_tc * chip.pe_x * chip.pe_y,
                "lanes": chip.num_vc * chip.pe_vc,
            }
            assert rate[box] == own.get(name, getattr(chip, name, None))


@pytest.mark.parametrize("least", [False, True])
def test_a_chip_at_a_limit_is_judged_alone(least: bool) -> None:
    """Areas of arrays differ in the last bits, so what is near a limit is asked of the chip."""
    axes: dict[str, Any] = {"num_tc": [2, 3, 4], "num_vc": [2, 3], "pe_x": [64, 128]}
    every = allowed_chips(study_of(axes, AreaSpec(model="chip", max_mm2=1000.0)))
    areas_mm2 = sorted(every.areas_mm2(np.arange(len(every))).tolist())
    for own_mm2 in areas_mm2[1:]:
        counts = []
        for apart in (-1e-9, 1e-9):
            area = AreaSpec(model="chip", max_mm2=own_mm2 * (1.0 + apart))
            if least:
                area = AreaSpec(model="chip", max_mm2=2.0 * own_mm2 * (1.0 + apart), min_share=0.5)
            study = study_of(axes, area)
            chips = allowed_chips(study)
            assert equal(listed(chips), one_by_one(study))
            counts.append(len(chips))
        assert abs(counts[0] - counts[1]) == 1


def test_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the number that there is, the most that there may be, and what to do."""
    axes: dict[str, Any] = {"num_tc": (1, 16), "pe_x": (64, 128), "num_vc": (1, 16)}
    study = study_of(axes, AreaSpec(model="chip", max_mm2=1000.0))
    for module, name in (
        (axis_groups, "MOST_COMBINATIONS"),
        (box_table, "MOST_CHIPS"),
        (box_table, "MOST_BOXES"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, 4)
            with pytest.raises(InputError, match=r"4 .*fix some|4 boxes.*fix some"):
                allowed_chips(study)
    monkeypatch.setattr(box_table, "_DENSE", 3)
    monkeypatch.setattr(axis_groups, "_LISTED", 3)
    assert equal(listed(allowed_chips(study)), one_by_one(study))
