"""Enumeration: the top with bounds is the top without them, whatever was stopped on the way."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds import best_first, box_times, way_bounds
from phaze_opt.bounds.best_first import BestFirst
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.bounding import SpacePart, bounds_of
from phaze_opt.bounds.box_times import MOST_BOXES, BoxTimes
from phaze_opt.bounds.point_grid import Place
from phaze_opt.bounds.space_chips import allowed_chips, option_indices
from phaze_opt.bounds.study_bounds import StudyBounds
from phaze_opt.bounds.way_bounds import WayBounds
from phaze_opt.errors import ConflictError, InputError
from phaze_opt.passes.layer_cost import LeastLayers
from phaze_opt.report.enumeration import enumeration_tables
from phaze_opt.spec.constraints import chip_violation
from phaze_opt.spec.designs import chip_of
from phaze_opt.spec.freezing import check_names
from phaze_opt.spec.ordering import value_bin
from phaze_opt.spec.run_inputs import RunInputs, run_inputs
from phaze_opt.spec.space import Space, all_points, numbered_point, point_at
from phaze_opt.spec.study_spec import AreaSpec, ConstraintSpec, read_spec
from phaze_opt.store.enumerations import BoundStore, rounded_up
from phaze_opt.study.objective import EvaluatedRun, Objective
from phaze_opt.study.study import Study, create_study
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import enumerate_study, enumeration_to_json_dict
from phaze_opt.whole_space.exhaustive import Enumeration, enumerate_space
from tests.study.fakes import TOY, toy_evaluator, toy_spec
from tests.whole_space.enumerations import CASES, Studies, case_spec, engine_of, objective_of

STUDIES = Path(__file__).parents[2] / "studies"


def answer(enumeration: Enumeration | None) -> list[tuple[Any, ...]]:
    """Return what does not depend on the way to it."""
    assert enumeration is not None and enumeration.status == "certified" and enumeration.gap == 0.0
    assert enumeration.points == enumeration.bounded + enumeration.evaluated
    return [
        (design.point, design.metrics.values, design.metrics.area_mm2) for design in enumeration.top
    ]


SPACES = [
    Space.phaze(),
    Space("tpuv4-lanes", num_tc=[3, 8], pe_x={"min": 96, "max": 160, "step": 32}, pe_y="pe_x"),
    Space("h100", num_tc=[66, 132], l2_tc_kib=[128, 256], hbm_gib=[40, 80], hbm_gb_per_s=2000),
    Space("tpuv4-lanes", glb_mib=(16, 64), hbm_gib=[16, 32], hbm_gb_per_s="37.5 * hbm_gib"),
    Space("tpuv4-lanes", clock_ghz=[0.9, 1.0], num_vc=(1, 4), pe_vc=[128, 1024], zero=[0, 1]),
    Space("tpuv4-phaze", l2_vc_bytes="rule", pe_vc=(64, 512), glb_mib=128, num_tc=(4, 32)),
]


@pytest.mark.parametrize("space", SPACES, ids=range(len(SPACES)))
def test_chips_are_those_of_the_points(space: Space) -> None:
    """All chips at once are the same chips, within the same limits, as one by one."""
    area = AreaSpec(model="chip", max_of="h100", min_share=0.1)
    spec = toy_spec(space=space, area=area, constraints=ConstraintSpec(max_power_w=1e6))
    study = check_names(replace(spec, model="bert-large"))
    chips, options = allowed_chips(study), option_indices(space)
    number = len(chips) * len(chips.hbm_sizes)
    if space.points < 1000:
        allowed = {
            chip
            for point in all_points(space)
            if chip_violation(study, chip := chip_of(study.base, point.by_name)) is None
        }
        assert number == len(allowed)
    generator = np.random.default_rng(0)
    for row in generator.integers(len(chips), size=20).tolist():
        for size, hbm_bytes in enumerate(chips.hbm_bytes(np.array([row]))[:, 0].tolist()):
            point = point_at(space, {**options[0], **chips.point_indices(row, size)})
            chip = chip_of(study.base, point.by_name)
            assert replace(chips.architecture(row), hbm_bytes=hbm_bytes) == chip
            assert chip_violation(study, chip) is None
            assert chips.areas_mm2(np.array([row]))[0] == pytest.approx(
                chip.area_under("chip"), rel=1e-13
            )


def test_the_paper_has_its_points() -> None:
    """The paper's setting has 29,360 architectures and 704,640 points."""
    study = check_names(read_spec(STUDIES / "phaze" / "bert-large.toml"))
    chips = allowed_chips(study)
    assert len(chips) == 29_360
    options = option_indices(study.spec.space)
    assert len(chips) * len(chips.hbm_sizes) * len(options) == 704_640


@given(st.lists(st.floats(0, 1e30), min_size=1))
def test_single_precision_stays_a_bound(values: list[float]) -> None:
    """Stored bounds are not smaller, and larger by rounding only."""
    bounds = np.array(values)
    stored = rounded_up(bounds)
    assert (stored >= bounds).all()
    assert (stored <= bounds * (1 + 1e-6) + 1e-37).all()


def toy(tmp_path: Any, **changes: Any) -> Study:
    """Create a study of the toy workload on a small space."""
    space = Space(num_tc=(1, 16), pe_x=(32, 128), hbm_gib=[32, 80], microbatch=(1, 8))
    spec = toy_spec(**({"space": space, "baselines": ()} | changes))
    study = create_study(spec, f"sqlite:///{tmp_path / 'a.db'}", workload=TOY)
    study.evaluator = toy_evaluator
    return study


def test_without_bounds_all_points_are_ranked(tmp_path: Path) -> None:
    """The top is that of all points by the order of designs; a stored answer is the same."""
    study = toy(tmp_path)
    objective = objective_of(study)
    ranked = []
    for point in all_points(study.resolved.spec.space):
        metrics = objective(point)
        if metrics.feasible:
            ranked.append((metrics.rank(study.resolved, point).key, point))
    ranked.sort(key=lambda pair: pair[0])
    enumeration = enumerate_study(study, top=7, bounds=False)
    assert [design.point for design in enumeration.top] == [point.values for _, point in ranked[:7]]
    assert enumeration.feasible == len(ranked) <= enumeration.evaluated == enumeration.points
    assert enumerate_study(study, top=7, bounds=False) == enumeration
    plain = enumeration_to_json_dict(study, enumeration)
    assert {"points", "feasible", "bounded", "evaluated", "infeasible_proven", "status"} <= set(
        plain
    )
    assert plain["best"]["values"] == plain["top"][0]["values"]
    assert enumeration_tables(study, enumeration)


def test_a_stopped_enumeration_goes_on(tmp_path: Path) -> None:
    """Stopped at any point, the next one gives the same answer, with nothing evaluated twice."""
    study = toy(tmp_path)
    calls: list[int] = []

    def counted(*args: Any) -> Any:
        calls.append(1)
        return toy_evaluator(*args)

    study.evaluator = counted
    engine = engine_of(study)
    for after in (0, 3, 10):
        begun = len(calls)
        stopped = enumerate_space(
            engine,
            None,
            bounds=False,
            stopped=lambda: len(calls) - begun >= after,  # noqa: B023
        )
        assert stopped is None
    whole = enumerate_space(engine, None, bounds=False)
    assert whole is not None and len(calls) == whole.evaluated
    late = enumerate_space(engine, None, bounds=False, time_limit_s=0.0)
    assert late is not None and (late.status, late.top, late.gap) == ("time_limit", (), None)
    assert len(answer(whole)) == 20


def test_refusals(tmp_path: Path) -> None:
    """What has no bound, too many objectives and other versions are refused in a sentence."""
    energy = toy(tmp_path, objectives=("power",))
    with pytest.raises(InputError, match="No bound is known for the objective power"):
        enumerate_study(energy)
    (tmp_path / "b").mkdir()
    front = toy(tmp_path / "b", objectives=("throughput", "area"))
    with pytest.raises(InputError, match="one objective"):
        enumerate_study(front)
    with pytest.raises(InputError, match="top is 0"):
        enumerate_study(energy, top=0, bounds=False)
    energy.resolved = replace(energy.resolved, cost_model_version="old")
    with pytest.raises(ConflictError, match="--current-version"):
        enumerate_study(energy)


@pytest.mark.parametrize("name", CASES)
def test_bounds_change_nothing_but_the_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bounds the top is that of all points, to the bit, and fewer are evaluated."""
    monkeypatch.setattr(best_first, "FIRST_ROWS", 1)
    monkeypatch.setattr(best_first, "BATCH_ROWS", 5)
    study = create_study(case_spec(name), f"sqlite:///{tmp_path / 'a.db'}")
    every = enumerate_study(study, bounds=False, top=3)
    bounded = enumerate_study(study, top=3)
    assert answer(bounded) == answer(every)
    assert bounded.points == every.points == every.evaluated > bounded.evaluated
    # What is bounded is stored; from there the answer is the same again.
    engine = engine_of(study)
    again = enumerate_space(engine, BoundStore(study.storage), top=3)
    assert answer(again) == answer(bounded)
    assert [level.closed for level in bounded.levels[:2]] == [
        bounded.points - bounded.levels[1].points,
        bounded.levels[1].points - bounded.evaluated,
    ]
    no_option_is_missed(engine)


def places_of(engine: Engine) -> list[Place]:
    """Return where all points of a space are."""
    options, sizes, rows = engine.grid.shape
    return list(product(range(options), range(sizes), range(rows)))


def no_option_is_missed(engine: Engine) -> None:
    """Metrics of points are the same where solved options that surely lose are left out."""
    for place in places_of(engine):
        point = engine.grid.point(*place)
        every, bounded = engine.evaluate([point]), engine.evaluate([point], [place])
        assert [replace(each, **NO_EFFORT) for each in every] == [
            replace(each, **NO_EFFORT) for each in bounded
        ]


NO_EFFORT: dict[str, Any] = {
    "evaluate_s": 0.0,
    "cached": False,
    "needed_schedules": 0,
    "quickly_proven_schedules": 0,
}


@pytest.mark.parametrize("name", ["shared-experts", "split-backward", "today"])
def test_options_that_surely_lose_are_not_evaluated(
    prepared: Studies, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several solved options fewer are evaluated where they are bounded."""
    engine, asked = engine_of(prepared[name]), list[RunInputs]()
    evaluate = Objective.evaluate

    def counted(objective: Objective, inputs: RunInputs) -> EvaluatedRun:
        asked.append(inputs)
        return evaluate(objective, inputs)

    monkeypatch.setattr(Objective, "evaluate", counted)
    places = places_of(engine)[::5]
    points = [engine.grid.point(*place) for place in places]
    engine.evaluate(points)
    every = len(asked)
    engine.evaluate(points, places)
    assert len(points) < len(asked) - every < every


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Studies:
    """Return a study of every case with one workload."""
    specs = {name: case_spec(name) for name, case in CASES.items() if "workloads" not in case}
    return Studies(tmp_path_factory.mktemp("bounds"), specs)


@pytest.mark.parametrize("top", [1, 3, 50])
def test_a_distinct_top_has_the_best_of_each_architecture(prepared: Studies, top: int) -> None:
    """The sizes of the HBM and the options do not count; of equal values only the first is there.

    With bounds it is the same, and a top of all designs is not mistaken for it.
    """
    study = prepared["paper"]
    every = enumerate_study(study, top=10_000, bounds=False)
    architectures, bins, expected = set(), set(), []
    for design in every.top:
        values = dict(design.point)
        architecture = tuple(values[name] for name in ("num_tc", "pe_x", "glb_mib"))
        value = value_bin(design.metrics.value)
        if architecture not in architectures:
            if value not in bins:
                expected.append(design.point)
            architectures.add(architecture)
            bins.add(value)
    assert 3 <= len(expected) < len(architectures) + 1 < len(every.top)
    for bounds in (False, True):
        found = enumerate_study(study, top=top, distinct=True, bounds=bounds)
        assert [design.point for design in found.top] == expected[:top]
        assert found.status == "certified"
    assert len(enumerate_study(study, top=top).top) == min(top, len(every.top))


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_bounds_are_above_the_truth(prepared: Studies, data: st.DataObject) -> None:
    """No point of any of the spaces is better than its bound, nor the bound than its box's."""
    study = prepared[data.draw(st.sampled_from(prepared.names))]
    engine = engine_of(study)
    grid, chips = engine.grid, engine.grid.chips
    option = data.draw(st.integers(0, len(grid.options) - 1))
    row = data.draw(st.integers(0, len(chips) - 1))
    size = data.draw(st.integers(0, len(chips.hbm_sizes) - 1))
    point = grid.point(option, size, row)
    bounds = bounds_of(grid, engine.rule, option, BoundedChips.of(chips, np.array([row])))
    (box,) = chips.boxes_of(np.array([row])).tolist()
    rooflines = BestFirst(grid, engine.rule).order.bounds(option, box)
    assert (bounds[:, 0] <= rooflines * (1 + 1e-12)).all()
    metrics = engine.objective(point)
    if metrics.feasible:
        assert engine.rule.bounded.merit(metrics.value) <= bounds[size, 0]


@pytest.mark.parametrize("name", [name for name in CASES if "workloads" not in CASES[name]])
def test_the_order_does_not_depend_on_the_batches(name: str, prepared: Studies) -> None:
    """Points come by their heads, each once, however many cells are opened at a time."""
    engine = engine_of(prepared[name])
    orders = []
    for rows in (1, 10_000):
        before = best_first.FIRST_ROWS, best_first.BATCH_ROWS
        best_first.FIRST_ROWS = best_first.BATCH_ROWS = rows
        try:
            ordered = BestFirst(engine.grid, engine.rule)
            points = list(ordered)
        finally:
            best_first.FIRST_ROWS, best_first.BATCH_ROWS = before
        assert ordered.left is None
        assert len(points) + ordered.infeasible(ordered.batches) == engine.grid.points
        heads = [point.head for point in points]
        assert heads == sorted(heads)
        orders.append([point.point for point in points])
    assert orders[0] == orders[1]
    assert len(set(orders[0])) == len(orders[0])


def test_in_haste_known_points_come_first(
    prepared: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without opening further cells, of which one may hold a better point, as is then said."""
    monkeypatch.setattr(best_first, "FIRST_ROWS", 1)
    monkeypatch.setattr(best_first, "BATCH_ROWS", 1)
    engine = engine_of(prepared["today"])
    patient = list(BestFirst(engine.grid, engine.rule))
    haste = False
    hasty = BestFirst(engine.grid, engine.rule, in_haste=lambda: haste)
    first = next(iter(hasty))
    assert first == patient[0]
    haste, opened = True, hasty.batches
    known = list(hasty)
    assert hasty.batches == opened and len(known) < len(patient) - 1
    seen = {point.place for point in (first, *known)}
    best_left = min(point.head for point in patient if point.place not in seen)
    assert hasty.left is not None and hasty.left <= best_left
    haste = False
    assert sorted(point.place for point in (first, *known, *hasty)) == sorted(
        point.place for point in patient
    )
    # A time limit that is over still gives a design, and the distance of the best one left.
    found = enumerate_space(engine, None, top=3, time_limit_s=0.0)
    assert found is not None and found.status == "time_limit"
    assert found.feasible == len(found.top) == 1
    assert found.gap is not None and found.gap >= 0.0


def test_the_batch_bound_knows_memory(prepared: Studies) -> None:
    """Where the smallest state does not fit, the bound says that nothing does."""
    study = prepared["paper"]
    chips = allowed_chips(study.resolved)
    design = study.resolved.design(numbered_point(study.resolved.spec.space, 0))
    inputs = run_inputs(study.resolved, 0, design)[0]
    sizes = np.array([[2**20] * 3, [2**40] * 3])
    some = replace(BoundedChips.of(chips, np.arange(3)), hbm_bytes=sizes)
    least_s, _ = StudyBounds(study.resolved, study.workloads()).least_of_batch(inputs, some)
    assert np.isinf(least_s[0]).all() and np.isfinite(least_s[1]).all()


def test_the_batch_bound_reads_no_boxes(prepared: Studies, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chips may be in none of a space, as constants of other values make them."""
    study = prepared["paper"]
    some = BoundedChips.of(allowed_chips(study.resolved), np.arange(3))
    design = study.resolved.design(numbered_point(study.resolved.spec.space, 0))
    inputs = run_inputs(study.resolved, 0, design)[0]
    rule = StudyBounds(study.resolved, study.workloads())
    expected = rule.values(design, some)
    monkeypatch.delattr(BoxTimes, "of")
    (least_s, _) = StudyBounds(study.resolved, study.workloads()).least_of_batch(inputs, some)
    assert (expected <= inputs.training.global_batch / least_s * (1.0 + 1e-8)).all()
    with pytest.raises(AttributeError):
        StudyBounds(study.resolved, study.workloads()).values(design, some)


@pytest.mark.parametrize("name", ["today", "contexts"])
def test_placements_that_are_dropped_are_made_again(
    name: str, prepared: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for any tables the bounds are the same to the bit; the last one used stays."""
    engine = engine_of(prepared[name])
    rows = min(8, len(engine.grid.chips))
    parts = [SpacePart(option, ((0, rows),)) for option in range(len(engine.grid.options))]
    expected = engine.bound(parts)
    assert len(engine.rule.ways._placements) > 1
    monkeypatch.setattr(way_bounds, "PLACEMENT_BYTES", 0)
    monkeypatch.setattr(way_bounds, "DROPPED_AFTER", 1)
    again = engine_of(prepared[name])
    for own, other in zip(again.bound(parts), expected, strict=True):
        np.testing.assert_array_equal(own, other)
    assert len(again.rule.ways._placements) == 1


def test_ways_that_lose_anyway_change_no_bound(
    prepared: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds are the same to the bit without times of boxes, with which fewer are computed."""
    asked: list[object] = []
    find_layers = WayBounds._layers

    def layers(self: WayBounds, *given: Any) -> LeastLayers:
        if not given[2].rooflines:
            asked.append(given)
        return find_layers(self, *given)

    monkeypatch.setattr(WayBounds, "_layers", layers)
    skipping = 0
    for name in prepared.names:
        found: list[list[FloatArray]] = []
        counts = []
        for most in (box_times.MOST_BOXES, 0):
            monkeypatch.setattr(box_times, "MOST_BOXES", most)
            engine, before = engine_of(prepared[name]), len(asked)
            rows = min(8, len(engine.grid.chips))
            parts = [SpacePart(option, ((0, rows),)) for option in range(len(engine.grid.options))]
            found.append(engine.bound(parts))
            counts.append(len(asked) - before)
        for own, other in zip(*found, strict=True):
            np.testing.assert_array_equal(own, other, err_msg=name)
        assert counts[0] <= counts[1], name
        skipping += counts[0] < counts[1]
        monkeypatch.setattr(box_times, "MOST_BOXES", MOST_BOXES)
    assert skipping > 5
