"""Products in other precisions than bf16: laws that hold whatever their bytes and rates are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.estimate import ModeEstimate, estimate_on_cores
from phaze_opt.estimator.operator_table import operator_table
from phaze_opt.estimator.rooflines import least_work, roofline_seconds
from phaze_opt.estimator.single import gemm_graph
from phaze_opt.hardware import energy
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.precision import BF16, PRECISIONS, Precision
from phaze_opt.whole_space.scalar_products import product_work
from phaze_opt.whole_space.scalar_rates import Rates
from phaze_opt.workload.graph import Gemm, OperatorGraph, side_by_side
from tests.strategies import accelerators

sizes = st.integers(1, 3000)
gemms = st.builds(Gemm, sizes, sizes, sizes, st.sampled_from([1, 5, 96]))


narrow_names = st.sampled_from([name for name in PRECISIONS if name != "bf16"])
able = accelerators.map(lambda chip: replace(chip, fp8_ratio=2.0, fp4_ratio=4.0, int8_ratio=2.0))


@pytest.fixture(autouse=True, scope="module")
def others() -> Iterator[None]:
    """Add a precision that is bf16 again."""
    with pytest.MonkeyPatch.context() as patch:
        known = cast(dict[str, Precision], PRECISIONS)
        patch.setitem(known, "same", Precision(*BF16))
        _forget()
        yield
    _forget()


def _forget() -> None:
    """Forget arrays that have a place for every precision."""
    energy._energy_per_event.cache_clear()
    operator_table.cache_clear()
    least_work.cache_clear()


def in_precision(gemm: Gemm, name: str) -> OperatorGraph:
    """Return a product as a graph."""
    return gemm_graph(replace(gemm, precision=name))  # type: ignore[arg-type]


def estimated(graph: OperatorGraph, chip: Accelerator) -> ModeEstimate:
    """Estimate a graph on all cores."""
    return estimate_on_cores(graph, chip, chip.num_tc)


@settings(max_examples=40)
@given(gemms, accelerators)
def test_the_name_has_no_say(gemm: Gemm, chip: Accelerator) -> None:
    """The same bytes and rate give the same numbers, to the bit."""
    own, other = (estimated(in_precision(gemm, name), chip) for name in ("bf16", "same"))
    for values, again in zip(own.arrays(), other.arrays(), strict=True):
        assert np.array_equal(values, again)


@settings(max_examples=40)
@given(gemms, able)
def test_half_the_bytes_at_twice_the_rate(gemm: Gemm, chip: Accelerator) -> None:
    """No operator takes longer, arrays take at least half; operands have half the bytes.

    Another tiling may take the arrays longer where it spares the global buffer.
    """
    wide, narrow = (estimated(in_precision(gemm, name), chip) for name in ("bf16", "fp8"))
    for resource in ("hbm_s", "latency_s"):
        assert getattr(narrow, resource)[0] <= getattr(wide, resource)[0] * (1 + 1e-9)
    macs_per_s = chip.num_tc * chip.pe_x * chip.pe_y * chip.array_clock_hz
    assert narrow.tc_s[0] >= gemm.flops / 2 / (2 * macs_per_s) * (1 - 1e-9)
    moved = in_precision(gemm, "fp8").moved_bytes[0]
    operands = gemm.batch * (gemm.m * gemm.k + gemm.k * gemm.n)
    assert moved == in_precision(gemm, "bf16").moved_bytes[0] - operands


@settings(max_examples=30)
@given(st.lists(st.tuples(gemms, st.sampled_from(["bf16", "fp8"])), min_size=2, max_size=5))
def test_each_product_has_its_own(products: list[tuple[Gemm, str]]) -> None:
    """Products of several precisions beside each other are what each is alone."""
    chip = replace(load_accelerator("tpuv4-lanes"), fp8_ratio=2.0)
    graphs = tuple(in_precision(gemm, name) for gemm, name in products)
    together = estimated(side_by_side(graphs), chip)
    for index, graph in enumerate(graphs):
        alone = estimated(graph, chip)
        assert together.latency_s[index] == alone.latency_s[0]
        assert together.energy_j[index] == alone.energy_j[0]


@settings(max_examples=40)
@given(gemms, able, narrow_names)
def test_bounds_know_bytes_and_rate(gemm: Gemm, chip: Accelerator, name: str) -> None:
    """Rooflines, and the plain bound of a product, are no more than the estimate."""
    graph = in_precision(gemm, name)
    mode = estimated(graph, chip)
    least = roofline_seconds(graph, Chips([chip]), load_cluster("flat-4GiB", 1))
    for resource in ("latency_s", "tc_s", "glb_s", "hbm_s"):
        assert getattr(least, resource)[0, 0] <= getattr(mode, resource)[0] * (1 + 1e-9)
    work = product_work(graph.operators[0].gemms[0], Rates.of(chip).all_cores, 0.0)
    assert work.array_cycles / chip.array_clock_hz <= mode.tc_s[0] * (1 + 1e-9)


@settings(max_examples=40)
@given(gemms, able)
def test_narrower_operands_take_no_more_bytes(gemm: Gemm, chip: Accelerator) -> None:
    """What a product itself moves falls with the bits of its recipe; scales count."""
    order = ("nvfp4", "mxfp8", "bf16"), ("nvfp4", "fp8-block", "bf16"), ("int8", "bf16")
    for names in order:
        moved = [in_precision(gemm, name).moved_bytes[0] for name in names]
        assert moved == sorted(moved)


@settings(max_examples=40)
@given(gemms, able, narrow_names)
def test_no_product_beats_its_own_roofline(gemm: Gemm, chip: Accelerator, name: str) -> None:
    """Neither the nominal rate of the recipe nor the HBM is ever beaten."""
    graph = in_precision(gemm, name)
    mode = estimated(graph, chip)
    rate = chip.nominal_rate(name)  # type: ignore[arg-type]
    assert mode.latency_s[0] >= gemm.flops / (rate * chip.peak_flops_per_s) * (1 - 1e-9)
    hbm_s = graph.moved_bytes[0] / chip.sustained_hbm_bytes_per_s
    assert mode.hbm_s[0] >= hbm_s * (1 - 1e-9)


def test_a_chip_without_the_rate_is_refused() -> None:
    """The sentence names the number that the chip lacks."""
    chip = load_accelerator("tpuv4-lanes")
    with pytest.raises(InputError, match="states no fp4_ratio"):
        estimated(in_precision(Gemm(64, 64, 64), "nvfp4"), chip)


def test_efficiency_slows_long_products_only_in_their_precision() -> None:
    """A measured efficiency of fp8 changes products in fp8, and no other."""
    chip = replace(load_accelerator("tpuv4-lanes"), fp8_ratio=2.0)
    slower = replace(chip, calibration=replace(chip.calibration, fp8_efficiency=0.5))
    gemm = Gemm(4096, 4096, 4096)
    for name, factor in (("bf16", 1.0), ("fp8", 2.0)):
        before, after = (estimated(in_precision(gemm, name), each) for each in (chip, slower))
        assert after.tc_s[0] == pytest.approx(factor * before.tc_s[0], rel=0.05)
