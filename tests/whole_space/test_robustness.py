"""Other constants of the cost model: the same enumeration, and nothing mixed up."""

from __future__ import annotations

import pytest

from phaze_opt.evaluation import evaluate
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.report.layout import LINE, to_text
from phaze_opt.report.robustness import robustness_tables
from phaze_opt.spec.run_inputs import run_inputs
from phaze_opt.spec.space import DesignPoint, Space, numbered_point
from phaze_opt.spec.study_spec import AreaSpec, StudySpec
from phaze_opt.spec.variations import Variation, variations_of, varied
from phaze_opt.study.objective import evaluation_key
from phaze_opt.study.study import Study, create_study, load_study
from phaze_opt.whole_space.engine import EngineJob, engine_of
from phaze_opt.whole_space.enumerating import enumerate_study
from phaze_opt.whole_space.robustness import (
    robustness_of_study,
    robustness_to_json_dict,
    study_under,
)
from tests.whole_space.enumerations import RUN
from tests.whole_space.test_exhaustive import answer

VARIATIONS = variations_of(load_accelerator("tpuv4-phaze"))
SMALL = {
    "model": "gpt:layers=2,hidden=512,heads=8,sequence=512,vocab=4096",
    "space": Space("tpuv4-phaze", num_tc=(2, 8), num_vc=(4, 8), pe_vc=[128, 512], glb_mib=[16, 64]),
    "area": AreaSpec(model="phaze-22nm", max_mm2=250.0),
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Create a study of a small space, with the real cost model."""
    folder = tmp_path_factory.mktemp("robustness")
    spec = StudySpec(**({"name": "small"} | RUN | SMALL))
    return create_study(spec, f"sqlite:///{folder / 'a.db'}")


@pytest.mark.parametrize("variation", VARIATIONS, ids=str)
def test_bounds_hold_under_every_variation(study: Study, variation: Variation) -> None:
    """The varied study's top is that of all its points."""
    other = study_under(study, variation)
    enumeration = enumerate_study(other, top=3)
    assert answer(enumeration) == answer(enumerate_study(other, top=3, bounds=False))
    assert enumeration.points > enumeration.evaluated
    # A process elsewhere, which knows only the names, evaluates the same.
    job = EngineJob(str(study.storage.url), study.name, other.evaluator, variation=variation)
    best = enumeration.top[0]
    (metrics,) = engine_of(job).evaluate([DesignPoint(best.point)])
    assert (metrics.values, metrics.area_mm2) == (best.metrics.values, best.metrics.area_mm2)


def test_each_constant_moves_what_it_is(study: Study) -> None:
    """Slower lanes, a slower network and HBM cost time; larger elements cost area alone."""
    point = numbered_point(study.resolved.spec.space, 0)
    (workload,) = study.workloads()
    times_s, areas_mm2 = {}, {}
    for variation in (Variation("pe_area", 1.0), *VARIATIONS):
        resolved = varied(study.resolved, variation)
        (inputs,) = run_inputs(resolved, 0, resolved.design(point))
        evaluation = evaluate(
            workload,
            inputs.accelerator,
            inputs.cluster,
            inputs.training,
            (2, 8, 1),
            lane_rate=resolved.lane_rate,
        )
        times_s[variation] = evaluation.time_per_batch_s or 0.0
        areas_mm2[variation] = resolved.area_if_known_mm2(inputs.accelerator)
    nominal = Variation("pe_area", 1.0)
    for variation in VARIATIONS:
        if variation.factor == "pe_area":
            assert times_s[variation] == times_s[nominal]
            larger = (areas_mm2[variation] or 0.0) > (areas_mm2[nominal] or 0.0)
            assert larger == (variation.scale > 1.0)
            continue
        assert areas_mm2[variation] == areas_mm2[nominal]
        slower = times_s[variation] > times_s[nominal]
        assert times_s[variation] != times_s[nominal]
        assert slower == ((variation.scale > 1.0) == (variation.factor == "lane_cycles"))


def test_keys_hold_what_decides(study: Study) -> None:
    """No variation shares an evaluation with another one, or with the study, unless it may."""
    point = numbered_point(study.resolved.spec.space, 0)
    keys, hashes = {}, set()
    for variation in VARIATIONS:
        resolved = varied(study.resolved, variation)
        (inputs,) = run_inputs(resolved, 0, resolved.design(point))
        keys[variation] = evaluation_key(resolved, inputs)
        hashes.add(resolved.hash)
    (inputs,) = run_inputs(study.resolved, 0, study.resolved.design(point))
    own = evaluation_key(study.resolved, inputs)
    # An evaluation knows nothing of the area budget.
    shared = [variation for variation, key in keys.items() if key == own]
    assert [variation.factor for variation in shared] == ["pe_area", "pe_area"]
    assert len({*keys.values()}) == len(VARIATIONS) - 1
    assert len(hashes | {study.resolved.hash}) == len(VARIATIONS) + 1


def test_an_efficiency_stays_below_one(study: Study) -> None:
    """A factor that would exceed what is physical is cut there, and the answer says so."""
    other = varied(study.resolved, Variation("hbm_efficiency", 1.2))
    assert other.base.calibration.hbm_efficiency == 1.0
    assert other.nominal == study.resolved


def test_answers_in_words_and_json(study: Study) -> None:
    """The counts are those of the variants; the table fits 80 columns."""
    done: list[int] = []
    robustness = robustness_of_study(study, on_variant=lambda number, words: done.append(number))
    assert done == [*range(len(VARIATIONS) + 1)]
    plain = robustness_to_json_dict(study, robustness)
    assert (plain["of"], plain["stays"]) == (
        8,
        sum(variant["stays"] for variant in plain["variants"]),
    )
    for variant in plain["variants"]:
        assert variant["stays"] == (variant["changes"] == {})
        assert variant["loss"] is None or variant["loss"] > -1e-3
        if variant["stays"]:
            assert variant["loss"] == 0.0
    applied = [
        variant["applied"] for variant in plain["variants"] if variant["factor"] == "hbm_efficiency"
    ]
    assert applied == pytest.approx([0.8, 1.0 / 0.85])
    text = to_text(robustness_tables(study, robustness))
    assert all(len(line) <= LINE + 1 for line in text.split("\n"))
    # Asked again, everything is taken from what is stored.
    again = robustness_of_study(load_study("small", study.storage))
    assert robustness_to_json_dict(study, again) == plain


def test_a_chip_that_states_a_range_is_varied_to_its_ends() -> None:
    """The HBM as far as chips of the name differ, and the arrays too; the rest by a fifth."""
    chip = load_accelerator("b200")
    ends = {(variation.factor, variation.scale) for variation in variations_of(chip)}
    own = chip.calibration
    assert {("array_rate", own.array_rate_low), ("array_rate", own.array_rate_high)} <= ends
    assert {scale for factor, scale in ends if factor == "hbm_efficiency"} == {
        own.hbm_rate_low,
        own.hbm_rate_high,
    }
    assert ("lane_cycles", 0.8) in ends
