"""What the search is told about a point."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phaze_opt.evaluation import Evaluation
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.run_inputs import RunInputs
from phaze_opt.spec.space import DesignPoint, Space
from phaze_opt.spec.study_spec import AreaSpec
from phaze_opt.store.caches import EvaluationCache, NoEvaluations, ScheduleCache
from phaze_opt.study.objective import Objective
from phaze_opt.study.trials import metrics_from_plain, metrics_to_plain
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload
from tests.spec.test_space import TIED, points
from tests.study.fakes import TOY, toy_evaluator, toy_study

GOOD = DesignPoint.of(
    num_tc=8,
    num_vc=2,
    pe_x=64,
    pe_y=64,
    pe_vc=64,
    glb_mib=16,
    hbm_gib=32,
    microbatch=2,
    recompute="none",
)


def changed(point: DesignPoint, **changes: Scalar) -> DesignPoint:
    """Return a point with other values."""
    return DesignPoint.of(**{**point.by_name, **changes})


@pytest.fixture(scope="module")
def objective(tmp_path_factory: pytest.TempPathFactory) -> Objective:
    """Return the objective of the toy study."""
    study = toy_study(f"sqlite:///{tmp_path_factory.mktemp('objective') / 'a.db'}")
    return Objective(
        study.resolved,
        [TOY],
        EvaluationCache(study.storage, "me", 30.0),
        ScheduleCache(study.storage),
        toy_evaluator,
    )


@given(points(TIED))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_infeasible_is_below_feasible(objective: Objective, point: DesignPoint) -> None:
    """A feasible point is told its throughput, any other a negative number."""
    metrics = objective(point)
    assert metrics.feasible == (metrics.value > 0) == (metrics.violation == 0)
    assert metrics.feasible == (metrics.reason is None)
    assert metrics_from_plain(metrics_to_plain(metrics)) == metrics


def test_area_comes_first(objective: Objective) -> None:
    """A chip that is too large is never evaluated."""

    def never(*args: Any) -> Evaluation:
        raise AssertionError("evaluated")

    metrics = replace(objective, evaluator=never)(changed(GOOD, num_tc=4096))
    assert not metrics.feasible and metrics.evaluation_key is None
    assert metrics.area_mm2 is not None
    assert metrics.value == -(metrics.area_mm2 / objective.study.area_limit_mm2 - 1.0)
    assert "above the limit" in str(metrics.reason)


def test_lower_bound_spares_single_cores(objective: Objective) -> None:
    """The paper's lower bound of the area holds for chips with several cores of each kind only."""
    spec = replace(objective.study.spec, area=AreaSpec(min_share=0.3))
    bounded = replace(objective, study=replace(objective.study, spec=spec))
    tiny = changed(GOOD, num_tc=2, pe_x=2, pe_y=2, pe_vc=2, glb_mib=2)
    assert "below the least" in str(bounded(tiny).reason)
    assert bounded(changed(tiny, num_tc=1)).feasible
    assert bounded(changed(tiny, num_vc=1)).feasible
    assert objective(tiny).feasible


def test_memory_violation_is_passed_on(objective: Objective) -> None:
    """What the cost model finds not to fit is told as its relative excess."""
    metrics = objective(changed(GOOD, microbatch=8))
    assert (metrics.feasible, metrics.value, metrics.violation) == (False, -0.25, 0.25)
    assert metrics.evaluation_key is not None


def test_second_time_is_cached(objective: Objective) -> None:
    """The same point again comes from the database, with the same key and numbers."""
    point = changed(GOOD, glb_mib=32)
    first, second = objective(point), objective(point)
    assert (first.cached, second.cached) == (False, True)
    assert replace(first, cached=True, evaluate_s=0.0) == replace(second, evaluate_s=0.0)


OPTION = st.tuples(
    st.floats(1.0, 1.002) | st.floats(1.0, 3.0),
    st.sampled_from([1.0, 2.0, 3.0]),
    st.booleans(),
    st.just(1.0) | st.floats(0.0, 1.0),
)
"""Seconds and joules of a batch, whether it fits, and the share of its seconds that is a bound."""


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> ResolvedStudy:
    """Return a study of the toy workload that solves its ZeRO stage."""
    space = Space("tpuv4-lanes", num_tc=[4, 8], zero={"solve": [0, 1, 2, 3]})
    url = f"sqlite:///{tmp_path_factory.mktemp('options') / 'a.db'}"
    return toy_study(url, space=space).resolved


@given(st.lists(OPTION, min_size=4, max_size=4))
@settings(max_examples=300)
def test_options_that_surely_lose_may_be_left_out(
    several: ResolvedStudy, options: list[tuple[float, float, bool, float]]
) -> None:
    """With any bounds the best option is the same, and what counts as equal is told by energy."""

    def evaluator(
        workload: Workload, chip: Accelerator, cluster: Cluster, training: Training, cache: Any
    ) -> Evaluation:
        seconds, energy_j, feasible, _ = options[training.zero]
        small = replace(training, microbatch=1 if feasible else 8)
        toy = toy_evaluator(workload, chip, cluster, small, cache)
        if not feasible:
            return toy
        rate = training.global_batch / seconds
        return replace(
            toy,
            throughput_samples_per_s=rate,
            time_per_batch_s=seconds,
            energy_by_level_j={"hbm": energy_j},
        )

    def takes_longer(inputs: RunInputs, known_s: float) -> bool:
        seconds, *_, share = options[inputs.training.zero]
        return seconds * share > known_s

    objective = Objective(several, [TOY], NoEvaluations(), ScheduleCache(None), evaluator)
    point = DesignPoint.of(num_tc=8)
    for _ in range(2):  # the second time begins with the best one
        every, bounded = objective(point), objective(point, takes_longer)
        assert replace(bounded, evaluate_s=0.0) == replace(every, evaluate_s=0.0)


@pytest.mark.parametrize(
    "change", [{"area_mm2": math.nan}, {"values": [math.inf]}, {"feasible": False}, {"values": []}]
)
def test_impossible_metrics_are_left_out(objective: Objective, change: dict[str, Any]) -> None:
    """Numbers that no evaluation gives do not enter a ranking."""
    assert metrics_from_plain(metrics_to_plain(objective(GOOD)) | change) is None


@pytest.mark.parametrize("plain", [None, 3, "x", [], {"feasible": "yes"}, {"unknown": 1}, {}])
def test_foreign_attributes_are_not_metrics(plain: object) -> None:
    """An attribute that another program wrote is left out."""
    assert metrics_from_plain(plain) is None
