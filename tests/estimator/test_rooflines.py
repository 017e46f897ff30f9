"""Rooflines are below every estimate on chips with the same peak rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.estimate import estimate_table
from phaze_opt.estimator.least_traffic import most_kept_accesses_bytes, most_kept_bytes
from phaze_opt.estimator.rooflines import roofline_seconds
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from tests.estimator.test_least_seconds import CLUSTER, MODELS, passes
from tests.strategies import any_accelerators

_ROUNDING = 1.0 + 1e-12


@pytest.mark.parametrize("model", MODELS)
@given(chips=st.lists(any_accelerators, min_size=1, max_size=4), cut=st.sampled_from([1, 2, 4]))
@settings(max_examples=15, deadline=None)
def test_no_operator_is_faster(model: str, chips: list[Accelerator], cut: int) -> None:
    """In neither mode, nor on a chip whose cores are cut into smaller ones."""
    whole = [*chips, load_accelerator("h100"), load_accelerator("b200")]
    some = [
        replace(chip, num_tc=chip.num_tc * cut, pe_x=chip.pe_x // cut)
        if chip.pe_x % cut == 0
        else chip
        for chip in whole
    ]
    for graph in passes(model):
        least = roofline_seconds(graph, Chips(whole), CLUSTER, 2)
        table = estimate_table(graph, some, CLUSTER, 2)
        for mode in (table.one_core, table.all_cores):
            for name, values in vars(least).items():
                assert (values <= getattr(mode, name) * _ROUNDING).all(), name


@pytest.mark.parametrize("model", MODELS)
@given(chips=st.lists(any_accelerators.filter(lambda c: c.has_hbm), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_no_operator_moves_less(model: str, chips: list[Accelerator]) -> None:
    """What the HBM moves at least, with everything that may stay, is below what it moves."""
    columns = Chips(chips)
    for graph in passes(model):
        rate = columns.column("sustained_hbm_bytes_per_s")
        moved = estimate_table(graph, chips, CLUSTER, 2).all_cores.hbm_s * rate
        least = roofline_seconds(graph, columns, CLUSTER, 2).hbm_s * rate
        left = moved - most_kept_bytes(graph, columns)
        assert (least - most_kept_accesses_bytes(graph, columns) <= left + 1e-3).all()
