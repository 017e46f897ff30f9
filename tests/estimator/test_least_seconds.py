"""Least seconds and least traffic of operators on many chips."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.estimator import least_seconds as module
from phaze_opt.estimator.chips import Chips, chip_column
from phaze_opt.estimator.estimate import estimate_each, estimate_table
from phaze_opt.estimator.least_seconds import least_seconds
from phaze_opt.estimator.least_traffic import cached_bytes, most_kept_bytes
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.residency import cached_reads_of, residency_of
from phaze_opt.scheduling.residency_search import least_operator_s
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import OperatorGraph
from phaze_opt.workload.zoo import load_workload
from tests.strategies import any_accelerators

CLUSTER = load_cluster("tpuv4-ici-flat", 8)
MODELS = ("bert-large", "llama2-7b")


@cache
def passes(model: str) -> tuple[OperatorGraph, ...]:
    """Return the fused passes of all layers of a model."""
    layers = load_workload(model, tensor_parallel=(2,)).variants[0].layers
    graphs = [graph for layer in layers for graph in (layer.forward, layer.backward)]
    return tuple(fuse(graph, "epilogue") for graph in graphs)


@pytest.mark.parametrize("model", MODELS)
@given(chips=st.lists(any_accelerators, min_size=1, max_size=5))
@settings(max_examples=15, deadline=None)
def test_seconds_are_those_of_the_table(model: str, chips: list[Accelerator]) -> None:
    """In blocks of any size, on repeated chips too: bit for bit what the table has."""
    graph = passes(model)[2]
    chips = [*chips, chips[0], load_accelerator("h100")]
    table = estimate_table(graph, chips, CLUSTER, 2)
    whole, module._BLOCK = module._BLOCK, 2
    try:
        blocks = list(least_seconds(graph, Chips(chips), CLUSTER, 2))
    finally:
        module._BLOCK = whole
    assert sum(len(some.chips) for some in blocks) == len(chips)
    for some in blocks:
        for mode, same in ((some.one_core, table.one_core), (some.all_cores, table.all_cores)):
            for name, values in vars(mode).items():
                assert np.array_equal(values, getattr(same, name)[some.where])


@pytest.mark.parametrize("model", MODELS)
@given(chips=st.lists(any_accelerators, min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_what_stays_is_the_most_that_operators_save(model: str, chips: list[Accelerator]) -> None:
    """With it, every operator takes the least time that the joint problem allows it.

    Vector work that uses a part of its cores takes longer than on all of them: it is bounded only.
    """
    for graph in passes(model):
        kept = most_kept_bytes(graph, Chips(chips))
        for chip, row in zip(chips, kept, strict=True):
            (estimate,) = estimate_each([graph], chip, CLUSTER, 2)
            mode = estimate.all_cores
            residency = residency_of(graph, mode, chip)
            if residency is None:
                assert not chip.has_hbm or not np.where(np.isinf(row), 0.0, row).any()
                continue
            hbm_s = np.maximum(mode.hbm_s - row / residency.hbm_bytes_per_s, 0.0)
            least_s = np.maximum(residency.other_s[:, 0], hbm_s) + residency.overhead_s
            exact_s = least_operator_s(residency)
            assert (least_s <= exact_s * (1.0 + 1e-9)).all()
            uncut = (residency.other_s == residency.other_s[:, :1]).all(axis=1)
            assert np.allclose(least_s[uncut], exact_s[uncut], rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("model", MODELS)
def test_a_cache_saves_what_it_serves(model: str) -> None:
    """On every chip the flow from the HBM is that of the schedule; a larger cache saves more."""
    chips = [load_accelerator("h100", glb_bytes=size) for size in (2**20, 50 * 2**20, 2**45)]
    saved_bytes = []
    for graph in passes(model):
        cached = cached_bytes(graph, Chips(chips))
        saved_bytes.append(cached.sum(axis=1))
        for chip, row in zip(chips, cached, strict=True):
            (estimate,) = estimate_each([graph], chip, CLUSTER, 2)
            moved = estimate.all_cores.hbm_s * chip.sustained_hbm_bytes_per_s
            served = cached_reads_of(graph, estimate.all_cores, chip)
            flow = moved if served is None else served.hbm_bytes
            assert np.allclose(np.maximum(moved - row, 0.0), flow, rtol=1e-9, atol=1e-3)
    small, real, huge = np.sum(saved_bytes, axis=0)
    assert small <= real <= huge
    assert huge > 0.0


def test_columns_are_read_once_and_shared_by_slices() -> None:
    """A part of the chips has the rows of the whole; ``None`` is NaN."""
    chips = Chips([load_accelerator(name) for name in ("tpuv4-phaze", "h100", "a100-80")])
    rates = chip_column(chips, "calibration.exponentials_per_cycle")
    assert rates.shape == (3, 1)
    assert np.isnan(rates[0, 0])
    assert chips.column("pe_vc") is chips.column("pe_vc")
    assert chips[1:].column("pe_vc").tolist() == chip_column(list(chips)[1:], "pe_vc").tolist()
    assert chips[1] == load_accelerator("h100")
