"""A run on a torus takes the slice on which it is fastest, and answers for all devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze_opt.errors import InfeasibleError
from phaze_opt.evaluation import evaluate, evaluate_many, evaluate_one
from phaze_opt.explanation.explain import explain_point
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.point import Point, cost_point, smaller_slices
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.training import Training
from phaze_opt.workload.zoo import model_loader
from tests.more_hardware import QUICK, TORI, cases, quickly, workload_of

CACHE: dict[str, Schedule] = {}


def fastest_s(point: Point) -> float:
    """Return the least time of a batch over all slices, each of them placed."""
    times_s = []
    whole = cost_point(point, CACHE)
    for index in [0, *(index for index, _ in smaller_slices(point.cluster, whole.degrees))]:
        try:
            costed = cost_point(point, CACHE, index)
            times_s.append(solve_placement(costed.problem, costed.degrees).time_per_batch_s)
        except InfeasibleError:
            continue
    return min(times_s, default=0.0)


def test_no_slice_is_left_out_that_is_faster() -> None:
    """What is not placed because of its work alone is not the fastest, interleaved or not."""
    smaller, chip = 0, load_accelerator("tpuv4-lanes")
    for number, case in enumerate(map(quickly, cases(10, 5, ["devices"], TORI))):
        training = case.training
        if number % 4 == 0:
            training = replace(training, pipeline_schedule="interleaved", interleave=2)
        cluster = load_cluster(case.cluster.name, 4 * case.cluster.devices)
        placement = case.placement if number % 2 else "solve"
        point = Point(workload_of(case), chip, cluster, training, placement)
        found = evaluate_one(point, CACHE)
        assert (found.time_per_batch_s or 0.0) == fastest_s(point)
        smaller += found.placement is not None and 2 * found.placement.devices <= cluster.devices
    assert smaller > 1


@pytest.fixture
def point() -> Point:
    """Return a point whose batch is so small that most devices are not used."""
    training = Training(8, 2, zero=1)
    workload = model_loader(QUICK)(training, 1)
    cluster = load_cluster("tpuv4-torus", 64)
    return Point(workload, load_accelerator("tpuv4-lanes"), cluster, training)


def test_the_answer_is_of_all_devices(point: Point) -> None:
    """Of a slice are the times; what is per device is of all that were asked for."""
    many = evaluate_one(point, CACHE)
    assert many.placement is not None
    used = many.placement.devices
    few = evaluate_one(replace(point, cluster=load_cluster("tpuv4-torus", used)), CACHE)
    assert many.placement == few.placement
    assert many.unused_devices == 64 - used > 0 and many.time_per_batch_s is not None
    assert many.mfu == pytest.approx(few.mfu * used / 64)
    assert many.energy_by_level_j == few.energy_by_level_j
    assert many.power_w_per_device == few.power_w_per_device
    # The degrees say the slice, too; a bulk of points and an explanation say the same.
    degrees = many.placement.pipeline, many.placement.data, many.placement.tensor
    given = evaluate_one(replace(point, placement=degrees), CACHE)
    assert given.time_per_batch_s is not None
    assert given.time_per_batch_s <= many.time_per_batch_s * (1 + 1e-12)
    assert evaluate_many([point, point], CACHE) == [many, many]


def test_an_explanation_is_of_the_slice(point: Point) -> None:
    """Its layers are those of the answer, and more of a resource is no slower where they are."""
    load = model_loader(QUICK, None)
    explained = explain_point(point, load, CACHE)
    answer = evaluate_one(point, CACHE)
    assert explained.evaluation == answer and answer.time_per_batch_s is not None
    assert [layer.forward.makespan_s for layer in explained.layers] == [
        layer.forward_s for layer in answer.layers
    ]
    for gain in explained.gains:
        assert gain.same_placement_time_per_batch_s <= answer.time_per_batch_s * (1 + 1e-9)
        assert gain.time_per_batch_s is not None
        assert gain.time_per_batch_s <= gain.same_placement_time_per_batch_s * (1 + 1e-9)


def test_proofs_hold_on_every_slice(point: Point) -> None:
    """A placement is optimal only if none on another slice may be faster."""
    found = evaluate(
        point.workload, point.accelerator, point.cluster, point.training, cache=CACHE
    ).placement
    assert found is not None and found.bound_s is not None
    for index, _ in [(0, None), *smaller_slices(point.cluster, None)]:
        costed = cost_point(point, CACHE, index)
        one = solve_placement(costed.problem)
        assert found.bound_s <= one.time_per_batch_s
