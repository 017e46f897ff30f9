"""The best designs under joint draws of all constants, against an evaluation of every design."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze_opt.arrays import FloatArray
from phaze_opt.errors import InputError
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.spec.constraints import chip_violation, run_violation
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.run_inputs import run_inputs
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import AreaSpec
from phaze_opt.spec.variations import Variation, varied
from phaze_opt.study.objective import evaluator_of
from phaze_opt.study.study import Study
from phaze_opt.whole_space.enumerating import enumerate_study
from studies.atlas.draws import constants_of, drawn_study, draws_of
from studies.atlas.questions import questions
from studies.atlas.robustness import (
    NEAR,
    QUANTILES,
    STEADY,
    Robust,
    robust,
    robust_lines,
)
from studies.paper.searches import study_in
from studies.paper.settings import changed
from studies.work import Work
from tests.studies.test_atlas import FIELDS

DESIGNS, DRAWS = 8, 8
AXES = {
    **{"num_tc": [8], "num_vc": [8], "pe_x": [32, 64], "pe_y": [128], "pe_vc": [256, 512]},
    **{"glb_mib": [16], "hbm_gib": [40, 80, 100], "microbatch": [1], "recompute": ["none"]},
}
SPEC = replace(
    changed(next(questions()).spec, "drawn", AXES, **FIELDS),
    area=AreaSpec(model="chip", max_mm2=562.0),
)
"""Lanes against bandwidth of the HBM, and an area that some draws put the winner above."""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Return the work of a run."""
    return Work(tmp_path_factory.mktemp("robust"), workers=1, tell=lambda line: None)


@pytest.fixture(scope="module")
def answer(work: Work) -> Robust:
    """Return how the winner stands."""
    return robust(work, SPEC, DESIGNS, DRAWS)


@pytest.fixture(scope="module")
def study(work: Work, answer: Robust) -> Study:
    """Return the enumerated study."""
    assert answer.designs == DESIGNS
    return study_in(work, SPEC)


def values_under(study: ResolvedStudy, own: Study, points: list[DesignPoint]) -> list[float]:
    """Evaluate every design with every option under the constants of a study."""
    workloads, schedules = own.workloads(), dict[str, Schedule]()
    found = []
    for point in points:
        design, best = study.design(point), 0.0
        if chip_violation(study, design.accelerator) is None:
            for each in run_inputs(study, 0, design):
                workload = workloads[each.capture]
                given = workload, each.accelerator, each.cluster, each.training, schedules
                evaluation = evaluator_of(study)(*given)
                if run_violation(study.spec, evaluation) is None:
                    best = max(best, evaluation.throughput_samples_per_s)
        found.append(best)
    return found


@pytest.fixture(scope="module")
def regrets(study: Study, answer: Robust) -> FloatArray:
    """Return the regret of every design under every draw."""
    points = [DesignPoint(each.point) for each in enumerate_study(study, top=DESIGNS).top]
    names = [constant.name for constant in answer.constants]
    values = np.array(
        [
            values_under(
                drawn_study(study.resolved, dict(zip(names, draw, strict=True))), study, points
            )
            for draw in draws_of(answer.constants, DRAWS).tolist()
        ]
    )
    return np.asarray(1.0 - values / values.max(axis=1, keepdims=True))


def test_nothing_that_is_not_evaluated_changes_the_answer(
    answer: Robust, regrets: FloatArray
) -> None:
    """Regrets, counts and shares are those of an evaluation of every design under every draw."""
    own = regrets[:, 0]
    within = np.sort(own[own < 1.0])
    assert answer.out == (own == 1.0).sum() > 0
    assert answer.best == (own == 0.0).sum() < DRAWS - answer.out
    ends = [within[int(np.ceil(share * len(within) - 1e-9)) - 1] for share in QUANTILES]
    assert answer.regrets == pytest.approx(ends, abs=1e-12)
    assert answer.near == tuple((own <= most).mean() for most in NEAR)
    assert answer.evaluated < answer.of


def test_the_steadiest_design_has_the_least_regret(answer: Robust, regrets: FloatArray) -> None:
    """No other design has less of it in as many draws."""
    last = int(np.ceil(STEADY * DRAWS)) - 1
    at_most = np.sort(regrets, axis=0)[last]
    assert answer.steady.regret == pytest.approx(at_most.min(), abs=1e-12)
    assert at_most[answer.steady.place] == pytest.approx(at_most.min(), abs=1e-12)
    assert answer.steady.nominal <= 1.0


def test_a_run_goes_on_where_it_was(work: Work, answer: Robust) -> None:
    """Draws that are kept are not ranked again, if fewer are asked for or by other processes."""
    told: list[str] = []
    again = robust(replace(work, tell=told.append), SPEC, DESIGNS, DRAWS)
    assert again == answer and not told
    fewer = robust(replace(work, tell=told.append), SPEC, DESIGNS, DRAWS - 3)
    assert fewer.draws == DRAWS - 3
    assert [line for line in told if "draws" in line] == []
    assert robust(replace(work, workers=2), SPEC, DESIGNS, DRAWS) == answer


def test_first_draws_are_the_same_and_within_their_ranges() -> None:
    """However many there are; and no share of a rate exceeds 1."""
    chip = load_accelerator("tpuv5p")
    constants = constants_of(chip)
    few, many = draws_of(constants, 5), draws_of(constants, 40)
    assert few.tolist() == many[:5].tolist()
    for constant, column in zip(constants, many.T, strict=True):
        assert constant.low <= column.min() < column.max() <= constant.high
    most = {constant.name: constant.high for constant in constants}
    assert most["hbm_efficiency"] * chip.calibration.hbm_efficiency == pytest.approx(1.0)
    assert most["array_rate"] == 1.0
    stated = constants_of(load_accelerator("h100"))
    assert next(each for each in stated if each.name == "array_rate").low == 0.87


@pytest.mark.parametrize(
    "variation",
    [
        Variation("lane_cycles", 1.2),
        Variation("pe_area", 0.8),
        Variation("hbm_efficiency", 0.9),
        Variation("network_bandwidth", 0.8),
    ],
)
def test_one_constant_alone_is_a_variation(study: Study, variation: Variation) -> None:
    """A draw of one constant gives the numbers of ``study robust``."""
    point = [DesignPoint(enumerate_study(study, top=DESIGNS).top[3].point)]
    alone = varied(study.resolved, variation)
    drawn = drawn_study(study.resolved, {variation.factor: variation.scale})
    assert drawn.area_limit_mm2 == alone.area_limit_mm2
    assert values_under(drawn, study, point) == values_under(alone, study, point)


def test_what_no_bound_knows_is_refused(work: Work) -> None:
    """Another objective; and no designs at all."""
    other = replace(SPEC, objectives=("energy_per_sample",))
    for spec, designs, words in ((other, 1, "another objective"), (SPEC, 0, "top is 0")):
        with pytest.raises(InputError, match=words):
            robust(work, spec, designs, 1)


def test_the_page_says_what_is_not_covered(answer: Robust) -> None:
    """And has the figures of the answer."""
    text = "\n".join(robust_lines({"small": answer}))
    assert "is not covered" in text
    assert f"| small | {DESIGNS} | {DRAWS} | {answer.out} | {answer.best} |" in text
    assert f"{answer.regrets[-1]:.2%} | {answer.evaluated:,} of {answer.of:,} |" in text
    for constant in answer.constants:
        assert f"| {constant.name.replace('_', ' ')} | " in text
