"""Sizes of the HBM that change nothing are no points of their own for the sampler ``bound``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from phaze_opt.bounds.needless_memory import NeedlessMemory
from phaze_opt.bounds.space_chips import allowed_chips
from phaze_opt.bounds.study_bounds import StudyBounds
from phaze_opt.spec.space import Space, all_points
from phaze_opt.spec.study_spec import SearchSpec, StudySpec
from phaze_opt.study.study import create_study
from phaze_opt.whole_space.enumerating import enumerate_study
from tests.whole_space.enumerations import objective_of

SMALL = StudySpec(
    name="small",
    model="gpt:layers=4,hidden=256,heads=4,sequence=128,vocab=1000",
    cluster="tpuv4-ici-flat",
    devices=4,
    global_batch=16,
    optimizer="adam",
    space=Space(
        "tpuv4-lanes",
        num_tc=4,
        hbm_gib=[0.03125, 0.0625, 0.125, 0.5],
        microbatch=[1, 4],
        zero={"solve": [0, 1]},
    ),
    baselines=("tpuv4-lanes",),
    search=SearchSpec("bound", trials=24),
)


def test_what_is_left_out_is_as_fast_as_with_less(tmp_path: Path) -> None:
    """Each point that is left out has exactly the values of the next smaller size."""
    study = create_study(SMALL, f"sqlite:///{tmp_path / 'a.db'}")
    study.run(1)
    objective = objective_of(study)
    bounds = StudyBounds(study.resolved, study.workloads())
    needless = NeedlessMemory(study.resolved, bounds, allowed_chips(study.resolved))
    sizes, left_out, binding = study.resolved.spec.space.values_of("hbm_gib"), 0, 0
    for point in all_points(study.resolved.spec.space):
        at = sizes.index(point["hbm_gib"])
        if at == 0:
            assert not needless.has(point)
            continue
        smaller = replace(point, values=tuple({**point.by_name, "hbm_gib": sizes[at - 1]}.items()))
        same = objective(smaller).values == objective(point).values
        if needless.has(point):
            left_out += 1
            assert same
        binding += not same
    assert left_out and binding


def test_a_proof_takes_one_trial_of_tied_points(tmp_path: Path) -> None:
    """Beside the baseline no trial has more memory than it can fill, and the proof holds."""
    space = Space("tpuv4-lanes", num_tc=[4, 8], hbm_gib=[1, 4, 8, 16], microbatch=[1, 4])
    study = create_study(replace(SMALL, space=space), f"sqlite:///{tmp_path / 'a.db'}")
    assert study.run().is_proven
    assert {trial.point["hbm_gib"] for trial in study.trials() if trial.point is not None} == {1}
    best = study.best()
    assert best is not None and best.point.values == enumerate_study(study).top[0].point
