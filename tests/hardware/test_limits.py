import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.area import AREA_FIELDS
from phaze_opt.hardware.buildable import buffers_fit, check_chip, tensor_cores_fit, vector_cores_fit
from phaze_opt.hardware.presets import accelerator_presets, load_accelerator
from tests.strategies import any_accelerators


@pytest.mark.parametrize("name", accelerator_presets())
def test_every_preset_can_exist(name: str) -> None:
    """No built chip is refused, nor one twice as large."""
    chip = load_accelerator(name)
    check_chip(chip)
    check_chip(dataclasses.replace(chip, num_tc=2 * chip.num_tc, num_vc=2 * chip.num_vc))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("pe_x=100000", "A PE array of 100000 × 32 takes 2432 mm², larger than a chip"),
        ("num_tc=100000000", "A PE array of 32 × 32, 100000000 times"),  # all arrays together
        ("pe_vc=2000000", "A vector core of 2000000 lanes"),
        ("num_vc=2000000", "A vector core of 64 lanes, 2000000 times"),
        ("l2_vc_bytes=255", "l2_vc_bytes is 255, too small for one fp32 value"),
    ],
)
def test_what_cannot_be_built_is_refused(change: str, message: str) -> None:
    """Arrays and lanes larger than any chip, or without room for a value, raise a sentence."""
    field, value = change.split("=")
    with pytest.raises(InputError, match=message):
        check_chip(load_accelerator("a100-80", **{field: value}))


@given(chips=st.lists(any_accelerators, min_size=1, max_size=20))
def test_many_chips_at_once_are_judged_alike(chips: list[Accelerator]) -> None:
    """As one by one, at the limits of private buffers too."""
    tight = [
        dataclasses.replace(chip, glb_bytes=max(chip.l2_tc_bytes, chip.l2_vc_bytes) - cut)
        for chip, cut in zip(chips, itertools.cycle((0, 1)), strict=False)
    ]
    huge = [dataclasses.replace(chip, num_tc=2**20) for chip in chips]
    every = [*chips, *tight, *huge]
    columns = {name: np.array([float(getattr(c, name)) for c in every]) for name in AREA_FIELDS}
    fits = tensor_cores_fit(columns) & vector_cores_fit(columns) & buffers_fit(columns)
    found = fits.tolist()
    for chip, fits in zip(every, found, strict=True):
        if fits:
            check_chip(chip)
        else:
            with pytest.raises(InputError):
                check_chip(chip)
