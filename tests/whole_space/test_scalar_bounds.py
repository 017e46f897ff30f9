"""The bounds in plain Python: as those of arrays, and never below the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.bounding import bounds_of
from phaze_opt.bounds.study_bounds import StudyBounds
from phaze_opt.estimator.estimate import estimate_on_cores
from phaze_opt.estimator.operator_table import operator_table
from phaze_opt.estimator.tensor_core import GemmColumn, gemm_table
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.spec.designs import Design
from phaze_opt.spec.run_inputs import RunInputs, run_inputs
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.study import create_study
from phaze_opt.validation.scans import forward_scan
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import search_space
from phaze_opt.whole_space.scalar_bounds import ScalarBounds
from phaze_opt.whole_space.scalar_operators import chip_times, no_extra_bytes
from phaze_opt.whole_space.scalar_products import TensorCores, blocked_bytes, product_work
from phaze_opt.whole_space.scalar_rates import Rates, TensorGroup
from phaze_opt.workload.graph import Gemm, Operator, VectorWork
from phaze_opt.workload.recurrences import ScanShape
from tests.whole_space.enumerations import CASES, case_spec, engine_of
from tests.workload.graphs import Moved, graph_of


@pytest.fixture(scope="module", params=CASES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Return what bounds and evaluates the points of a space."""
    url = f"sqlite:///{tmp_path_factory.mktemp('plain') / 'a.db'}"
    study = create_study(case_spec(request.param), url)
    # Evaluates the reference of several workloads.
    return search_space(study, lambda engine, pool, stopped: engine, workers=1)


def designs(engine: Engine, option: int, row: int) -> Iterator[Design]:
    """Yield the designs of an architecture, with every size of its HBM."""
    design = engine.grid.study.design(engine.grid.point(option, 0, row))
    for hbm_bytes in engine.grid.chips.hbm_bytes(np.array([row]))[:, 0].tolist():
        yield replace(design, accelerator=replace(design.accelerator, hbm_bytes=hbm_bytes))


def test_boxes_have_the_same_bounds(engine: Engine) -> None:
    """Box by box, under every combination of options; also where all but the last bit is known."""
    grid, plain = engine.grid, ScalarBounds(engine.rule, engine.grid.chips)
    boxes = BoundedChips.boxes(grid.chips)
    for option in range(len(grid.options)):
        design = grid.study.design(grid.point(option, 0, 0))
        arrays, rates = (
            bounds_of(grid, engine.rule, option, boxes),
            engine.rule.rates(design, boxes),
        )
        for at, (row, end) in enumerate(boxes.runs.tolist()):
            for size, chip in enumerate(designs(engine, option, row)):
                for known in (np.zeros(len(rates)), rates[:, size, at] * (1.0 - 1e-9)):
                    rows = range(row, end)
                    plain_rates = plain.of_box(chip, rows, known.tolist())
                    value = plain.merit(chip, rows, float(boxes.area_mm2[at]), plain_rates)
                    assert value == pytest.approx(arrays[size, at], rel=1e-11)


def test_chips_have_nearly_the_same_bounds(engine: Engine) -> None:
    """No design is better than its plain bound, which is little above that of arrays."""
    grid, plain, ratios = engine.grid, ScalarBounds(engine.rule, engine.grid.chips), []
    chips = grid.chips
    areas_mm2 = chips.areas_mm2(np.arange(len(chips)))
    for option in range(len(grid.options)):
        arrays = bounds_of(grid, engine.rule, option, BoundedChips.of(chips, np.arange(len(chips))))
        for row in range(option % 2, len(chips), 2):
            size, design = list(enumerate(designs(engine, option, row)))[-1]
            rates = plain.of_chip(design, row, [0.0] * len(grid.study.spec.runs))
            value = plain.merit(design, row, float(areas_mm2[row]), rates)
            metrics = engine.objective(grid.point(option, size, row))
            if metrics.feasible:
                assert engine.rule.bounded.merit(metrics.value) <= value
            # Plain bounds do not tell which chips take too much power however slow they are.
            hot = value > 0.0 == arrays[size, row] and engine.rule.asks_for_energy
            assert hot or (value == 0.0) == (arrays[size, row] == 0.0)
            if value > 0.0 and not hot:
                ratios.append(value / arrays[size, row])
    assert min(ratios) > 0.99 and max(ratios) < 1.06 and np.median(ratios) < 1.015


def test_what_is_known_is_enough(engine: Engine) -> None:
    """Above what is known a bound is found to the last bit, and below it what is known is."""
    plain = ScalarBounds(engine.rule, engine.grid.chips)
    row = len(engine.grid.chips) // 2
    design = list(designs(engine, 0, row))[-1]
    box = engine.grid.chips.architecture(row)
    exact = plain.of_chip(design, row, [0.0] * len(engine.grid.study.spec.runs))
    for factor in (0.9, 1.1):
        known = [rate * factor for rate in exact]
        for rates in (plain.of_chip(design, row, known), plain.of_chip(design, row, known, box)):
            expected = exact if factor < 1.0 else known
            assert rates == pytest.approx(expected, rel=3e-4)


SIZES = st.integers(1, 3000) | st.sampled_from([64, 128, 512, 1024, 4096])


@settings(max_examples=150, deadline=None)
@given(
    gemm=st.builds(Gemm, SIZES, SIZES, SIZES, st.integers(1, 40)),
    edges=st.tuples(*[st.sampled_from([4, 16, 100, 128, 256])] * 2),
    cores=st.integers(1, 24),
    glb_rate=st.sampled_from([64.0, 1024.0, 4096.0]),
    l2_rate=st.sampled_from([None, 256.0]),
    glb_mib=st.integers(1, 64),
)
def test_products_take_at_least_what_they_must(
    gemm: Gemm,
    edges: tuple[int, int],
    cores: int,
    glb_rate: float,
    l2_rate: float | None,
    glb_mib: int,
) -> None:
    """Of every resource, and together; on one core they take no more than that."""
    chip = Accelerator(
        num_tc=cores,
        num_vc=1,
        pe_x=edges[0],
        pe_y=edges[1],
        pe_vc=64,
        glb_bytes=glb_mib * 2**20,
        glb_bytes_per_cycle=glb_rate,
        l2_bytes_per_cycle=l2_rate,
    )
    numbers = np.array([[gemm.m, gemm.n, gemm.k, gemm.batch, 0, 0]])
    row = gemm_table(numbers, [chip], [cores])[0, 0]
    glb_bytes = row[GemmColumn.GLB_READ_BYTES] + row[GemmColumn.GLB_WRITE_BYTES]
    work = product_work(
        gemm,
        TensorCores(
            cores,
            chip.pe_x,
            chip.pe_y,
            chip.l2_tc_bytes,
            np.inf if l2_rate is None else l2_rate,
            glb_rate,
            float(chip.pe_x + chip.pe_y),
            chip.array_rates,
        ),
        0.0,
    )
    once = 2.0 * gemm.batch * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n)
    hbm_bytes = once + row[GemmColumn.HBM_EXTRA_BYTES]
    assert blocked_bytes(gemm, float(chip.glb_bytes)) == pytest.approx(hbm_bytes, rel=1e-12)
    assert work.array_cycles <= row[GemmColumn.ARRAY_CYCLES] * (1 + 1e-12)
    assert work.glb_bytes <= glb_bytes * (1 + 1e-12)
    busy = max(row[GemmColumn.ARRAY_CYCLES], glb_bytes / glb_rate)
    assert work.busy_cycles <= busy * (1 + 1e-12)
    if cores == 1 and l2_rate is None:
        hbm = hbm_bytes * chip.array_clock_hz / chip.sustained_hbm_bytes_per_s
        assert max(work.busy_cycles, hbm) == pytest.approx(max(busy, hbm), rel=1e-12)


CHIP = Accelerator(num_tc=6, num_vc=3, pe_x=128, pe_y=128, pe_vc=128, glb_bytes=2**24)


def test_operators_take_their_share_of_the_cores() -> None:
    """Beside others they run on one core of each type that they need, and all count alike."""
    product, sums = (Gemm(256, 256, 256),), (VectorWork("add", 256, 256),)
    operators = (
        Operator("product", gemms=product),
        Operator("sum", vector=sums),
        Operator("both", gemms=product, vector=sums),
    )
    graph = graph_of([Moved(operator, 2**18, 2**17) for operator in operators])
    alone = TensorGroup(load_cluster("flat-4GiB", 1), 1, 1)
    times = chip_times(graph, Rates.of(CHIP), no_extra_bytes(graph), alone)
    own_s = np.array(times.beside_s)
    tensor_s, vector_s = map(np.array, times.shared_s[:2])
    np.testing.assert_allclose(tensor_s * CHIP.num_tc, own_s * [1, 0, 1])
    np.testing.assert_allclose(vector_s * CHIP.num_vc, own_s * [0, 1, 1])


@pytest.mark.parametrize("rate", [None, 1e8, 1e10])
def test_scans_wait_for_their_threads_as_estimated(rate: float | None) -> None:
    """The plain bound counts what every head loads, as the estimate does, in both modes."""
    graph = forward_scan(ScanShape(1, 512, 8, 2, 64, 128, 128))
    calibration = replace(CHIP.calibration, scan_core_bytes_per_s=rate)
    chip = replace(CHIP, calibration=calibration)
    alone = TensorGroup(load_cluster("flat-4GiB", 1), 1, 1)
    times = chip_times(graph, Rates.of(chip), no_extra_bytes(graph), alone)
    for cores, found_s in ((1, times.beside_s), (CHIP.num_tc, times.alone_s)):
        found = np.array(found_s)
        exact_s = estimate_on_cores(graph, chip, cores).latency_s
        assert (found <= exact_s * (1.0 + 1e-12)).all()
        if rate == 1e8:
            scans = operator_table(graph).scan_bytes > 0.0
            np.testing.assert_allclose(found[scans], exact_s[scans])
            assert scans.sum() == 4


class OnOneSlice(StudyBounds):
    """Bounds of runs on all of a network, whatever its slices are."""

    def on_slices(self, inputs: RunInputs) -> list[RunInputs]:
        """Return the run."""
        return [inputs]


def test_slices_are_bounded_as_if_alone(tmp_path: Path) -> None:
    """Whatever was bounded before, where its groups close to rings and where they do not."""
    spec = StudySpec(
        name="slices",
        model="gpt:layers=4,hidden=512,heads=8,sequence=512,vocab=8000",
        cluster="tpuv4-torus",
        devices=32,
        global_batch=8,
        tensor_parallel=(4,),
        overlap="none",
        microbatch=1,
        baselines=(),
        space=Space("tpuv4-lanes", num_tc=[4]),
    )
    engine = engine_of(create_study(spec, f"sqlite:///{tmp_path / 'a.db'}"))
    grid, rule = engine.grid, engine.rule
    some = BoundedChips.of(grid.chips, np.arange(len(grid.chips)))
    (inputs,) = run_inputs(grid.study, 0, grid.study.design(grid.point(0, 0, 0)))
    alone = [
        OnOneSlice(rule.study, rule.workloads).least_of_batch(sliced, some)[0]
        for sliced in rule.on_slices(inputs)
    ]
    assert len(alone) > 3
    least_s = np.minimum.reduce(alone)
    np.testing.assert_allclose(rule.least_of_batch(inputs, some)[0], least_s, rtol=1e-9)
    # Bounds of a slice are the same after those of another one.
    after = OnOneSlice(rule.study, rule.workloads)
    for sliced, expected_s in zip(rule.on_slices(inputs), alone, strict=True):
        np.testing.assert_array_equal(after.least_of_batch(sliced, some)[0], expected_s)
