import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from phaze_opt.codec import to_json
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.area import (
    AREA_FIELDS,
    area_constants,
    area_of_arrays_mm2,
    narrow_multipliers,
    sram_table,
    tensor_core_um2,
    vector_core_um2,
)
from phaze_opt.units import KIB, MIB
from tests.strategies import accelerators

DATA = Path(__file__).parent.parent / "data"


def test_area_equals_the_published_sample() -> None:
    """All 641 published configurations have the published area to 1e-9 relative."""
    with (DATA / "area_published_sample.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 641
    for row in rows:
        accelerator = Accelerator(
            num_tc=int(row["num_tc"]),
            num_vc=int(row["num_vc"]),
            pe_x=int(row["width"]),
            pe_y=int(row["depth"]),
            pe_vc=int(row["width_vc"]),
            glb_bytes=int(row["glb_bytes"]),
        )
        assert accelerator.area_under("phaze-22nm") * 1e6 == pytest.approx(
            float(row["area_um2"]), rel=1e-9
        )


def test_the_published_rule_regenerates_the_published_space() -> None:
    """Of 75,712 candidates 29,360 keep 0.3·A ≤ area ≤ A (no lower bound with a single core)."""
    axes = np.meshgrid(
        2.0 ** np.arange(13),
        2.0 ** np.arange(13),
        2.0 ** np.arange(1, 9),
        2.0 ** np.arange(1, 9),
        2.0 ** np.arange(1, 8) * MIB,
        indexing="ij",
    )
    num_tc, num_vc, pe_x, pe_y, glb_bytes = (axis.ravel() for axis in axes)
    assert num_tc.size == 75_712
    area = area_of_arrays_mm2(
        {
            "num_tc": num_tc,
            "num_vc": num_vc,
            "pe_x": pe_x,
            "pe_y": pe_y,
            "pe_vc": pe_x,
            "l2_tc_bytes": np.maximum(KIB, 16 * pe_x * pe_y),
            "l2_vc_bytes": np.maximum(KIB, 16 * pe_x),
            "glb_bytes": glb_bytes,
            "glb_bytes_per_cycle": 4096.0,
            "hbm_bytes": 2.0**35,
            "hbm_bytes_per_s": 1200e9,
        },
        "phaze-22nm",
    )
    limit = 278.82667631216
    single = (num_tc == 1) | (num_vc == 1)
    kept = (area <= limit) & (single | (area >= 0.3 * limit))
    assert int(kept.sum()) == 29_360


def test_the_reference_point_has_its_published_area() -> None:
    """The paper's TPUv4-like point sets the area budget of 278.82667631216 mm²."""
    reference = Accelerator(num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB)
    written = to_json(reference)
    assert reference.area_mm2 == pytest.approx(278.82667631216, rel=1e-12)
    # The area is kept, but is no field.
    assert to_json(reference) == written
    assert replace(reference, num_tc=4).area_mm2 != reference.area_mm2


def test_chip_area_charges_for_what_the_relative_model_leaves_out() -> None:
    """The ``chip`` model is larger, and grows with the bandwidths that the other one gives away."""
    base = Accelerator(num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB)
    faster = Accelerator(
        num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB,
        hbm_bytes_per_s=2400e9, glb_bytes_per_cycle=8192,
    )  # fmt: skip
    assert base.area_under("chip") > base.area_under("phaze-22nm")
    assert faster.area_mm2 == base.area_mm2
    assert faster.area_under("chip") == pytest.approx(
        base.area_under("chip") + 0.044 * 1200 + 0.015 * 4096
    )


def test_sizes_between_the_macros_are_interpolated_and_outside_refused() -> None:
    """A macro's area lies between its neighbours'; a size outside the table is an error."""
    table = sram_table("GLB")
    assert table.area_um2[3] < table.interpolate(20 * MIB, table.area_um2) < table.area_um2[4]
    with pytest.raises(InputError, match="GLB of 1024 KiB lies outside"):
        table.interpolate(1 * MIB, table.area_um2)


@pytest.mark.parametrize("core", ["num_tc", "num_vc"])
def test_every_core_has_its_control(core: str) -> None:
    """Under ``chip`` one more core costs its own area and that of its control."""
    base = Accelerator(num_tc=8, num_vc=2, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=128 * MIB)
    more = replace(base, **{core: getattr(base, core) + 1})
    constants = area_constants("chip")
    own_um2 = {
        "num_tc": tensor_core_um2(base.pe_x, base.pe_y, base.l2_tc_bytes, constants),
        "num_vc": vector_core_um2(base.pe_vc, base.l2_vc_bytes, constants),
    }
    assert constants.core_mm2 > 0.0
    grown_mm2 = more.area_under("chip") - base.area_under("chip")
    assert grown_mm2 == pytest.approx(float(own_um2[core]) / 1e6 + constants.core_mm2)


def test_only_elements_and_lanes_grow_with_their_size() -> None:
    """A fifth larger, they take a fifth more; buffers, control and wires stay as they are."""
    base = Accelerator(num_tc=8, num_vc=2, pe_x=128, pe_y=64, pe_vc=256, glb_bytes=128 * MIB)
    columns = {name: getattr(base, name) or 0.0 for name in AREA_FIELDS}
    constants = area_constants("chip")
    elements_um2 = base.num_tc * base.pe_x * base.pe_y * constants.tensor_pe_um2
    lanes_um2 = base.num_vc * base.pe_vc * constants.vector_lane_um2
    grown_mm2 = area_of_arrays_mm2(columns, "chip", 1.2) - area_of_arrays_mm2(columns, "chip")
    assert grown_mm2 == pytest.approx(0.2 * (elements_um2 + lanes_um2) / 1e6)


@given(accelerators, st.floats(0.1, 8.0), st.floats(0.1, 8.0))
def test_narrow_multipliers_take_area_under_chip_alone(
    chip: Accelerator, ratio: float, other: float
) -> None:
    """As many as are stated of the kind that takes most; none changes nothing to the bit."""
    plain = replace(chip, fp8_ratio=None, fp4_ratio=None, int8_ratio=None)
    narrow = replace(plain, fp8_ratio=ratio)
    both = replace(narrow, int8_ratio=other)
    assume(plain.area_mm2 is not None and plain.area_chip_mm2 is not None)
    assert plain.area_mm2 == narrow.area_mm2 == both.area_mm2
    columns = {name: getattr(plain, name) or 0.0 for name in AREA_FIELDS}
    stated = {name: value for name, value in columns.items() if not name.endswith("_ratio")}
    assert float(area_of_arrays_mm2(stated, "chip")) == plain.area_chip_mm2
    elements = plain.num_tc * plain.pe_x * plain.pe_y
    of_one = area_constants("chip").tensor_pe_um2 * elements * 1e-6
    multipliers = narrow_multipliers()
    shares = (multipliers["fp8"].area * ratio, multipliers["int8"].area * other)
    for larger, share in ((narrow, shares[0]), (both, max(shares))):
        assert larger.area_chip_mm2 is not None and plain.area_chip_mm2 is not None
        more = larger.area_chip_mm2 - plain.area_chip_mm2
        assert more == pytest.approx(share * of_one, abs=1e-9 * plain.area_chip_mm2)
