"""One step from the best design on each axis: which points these are, and what is known of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.evaluation import Evaluation
from phaze_opt.sharing.copying import copy_study
from phaze_opt.spec.space import Space, numbered_point
from phaze_opt.spec.study_spec import SearchSpec, WorkloadSpec
from phaze_opt.store.caches import EvaluationCache, ScheduleCache
from phaze_opt.store.opening import open_storage
from phaze_opt.study.best_design import BestDesign
from phaze_opt.study.neighbourhood import DesignStep, evaluated_steps, known_steps, points_around
from phaze_opt.study.objective import Objective
from phaze_opt.study.study import Study, create_study
from phaze_opt.study.trials import Metrics
from tests.store.test_read_only import as_a_user, folder, hashes
from tests.study.fakes import TOY, reopened, toy_evaluator, toy_spec, toy_study

__all__ = ["folder"]  # a fixture

SPACE = Space(
    "tpuv4-lanes",
    num_tc=(1, 64),
    pe_x=[64, 128],
    pe_vc="pe_x",
    hbm_gib=[16, 32],
    microbatch=(1, 8),
    recompute=["none"],
)


class Counting:
    """The toy cost model, which counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *args: Any) -> Evaluation:
        """Count, and evaluate."""
        self.calls += 1
        return toy_evaluator(*args)


class Shown:
    """Shows nothing."""

    def __init__(self, *args: object) -> None: ...

    def telling(self, *args: object) -> None:
        """Take a trial."""

    told = finish = telling


def searched_study(url: str, trials: int = 6, **changes: Any) -> tuple[Study, BestDesign, Counting]:
    """Return a study that has run, its best design, and what counts evaluations from now on."""
    study = toy_study(url, **({"space": SPACE} | changes))
    study.run(trials)
    study.evaluator = counting = Counting()
    best = study.best()
    assert best is not None
    return study, best, counting


@pytest.fixture
def searched(tmp_path: Path) -> Iterator[tuple[Study, BestDesign, Counting]]:
    """Return a study of a few random trials."""
    yield searched_study(f"sqlite:///{tmp_path / 'study.db'}")


@given(st.integers(0, SPACE.points - 1))
def test_a_step_changes_one_axis_by_one(number: int) -> None:
    """Every axis goes both ways, to the next value or beyond its end; what follows it follows."""
    point = numbered_point(SPACE, number)
    steps = list(points_around(SPACE, point))
    names = ["num_tc", "pe_x", "microbatch", "hbm_gib"]
    assert sorted(name for name, _, _ in steps) == sorted(names * 2)
    for name, up, there in steps:
        values = SPACE.values_of(name)
        at = values.index(point[name]) + (1 if up else -1)
        if there is None:
            assert at in (-1, len(values))
            continue
        assert there[name] == values[at]
        assert there["pe_vc"] == there["pe_x"]
        changed = {axis for axis, value in there.values if value != point[axis]}
        assert changed - {"pe_vc"} == {name}


def test_what_is_missing_is_evaluated_once(searched: tuple[Study, BestDesign, Counting]) -> None:
    """The steps are those of the objective; asked again, also by those who only read, all known."""
    study, best, counting = searched
    before = known_steps(study, best)
    missing = [step for step in before if step.value is not None and step.metrics is None]
    assert missing and counting.calls == 0
    steps = evaluated_steps(study, study.evaluator, best)
    assert counting.calls == len(missing)
    ends = [step for step in steps if step.metrics is None]
    assert all(step.value is None for step in ends)
    objective = Objective(
        study.resolved,
        (TOY,),
        EvaluationCache(study.storage, "test", 30.0),
        ScheduleCache(study.storage),
        toy_evaluator,
    )
    points = [there for _, _, there in points_around(SPACE, best.point)]
    for step, point in zip(steps, points, strict=True):
        if point is not None:
            assert timeless(step.metrics) == timeless(objective(point))
    limits = {step.metrics.limit for step in steps if step.metrics is not None}
    assert limits & {"area", "chip"}
    calls = counting.calls
    assert plain(known_steps(study, best)) == plain(steps)
    assert plain(evaluated_steps(study, study.evaluator, best)) == plain(steps)
    assert counting.calls == calls


def timeless(metrics: Metrics | None) -> Metrics | None:
    """Leave out what depends on who evaluated first."""
    if metrics is None:
        return None
    return replace(
        metrics, evaluate_s=0.0, cached=True, needed_schedules=0, quickly_proven_schedules=0
    )


def plain(steps: tuple[DesignStep, ...]) -> list[DesignStep]:
    """Return steps without what depends on who evaluated first."""
    return [replace(step, metrics=timeless(step.metrics)) for step in steps]


def test_a_run_that_is_shown_evaluates_them(tmp_path: Path) -> None:
    """At its end; a copy in another database knows them too."""
    study = toy_study(f"sqlite:///{tmp_path / 'study.db'}", space=SPACE)
    study.run(6, show=Shown)
    best = study.best()
    assert best is not None
    steps = known_steps(study, best)
    assert all(step.metrics is not None for step in steps if step.value is not None)
    copy = copy_study(study, "copy", open_storage(f"sqlite:///{tmp_path / 'b.db'}", create=True))
    assert plain(known_steps(copy, best)) == plain(steps)


def test_a_file_that_cannot_be_written_has_them_too(folder: Path) -> None:
    """They are evaluated, and the file stays as it is."""
    url = f"sqlite:///{folder / 'study.db'}"
    study, best, _ = searched_study(url)
    study.storage.close()
    (folder / "study.db").chmod(0o444)
    folder.chmod(0o555)
    before = hashes(folder)

    def evaluated() -> str:
        read = reopened(url)
        steps = evaluated_steps(read, toy_evaluator, best)
        return json.dumps([step.metrics is not None for step in steps if step.value is not None])

    inside = [there for _, _, there in points_around(SPACE, best.point) if there is not None]
    assert json.loads(as_a_user(evaluated)) == [True] * len(inside)
    assert hashes(folder) == before


def test_another_cost_model_evaluates_nothing(searched: tuple[Study, BestDesign, Counting]) -> None:
    """Its numbers would not belong to those of the study."""
    study, best, counting = searched
    old = replace(study, resolved=replace(study.resolved, cost_model_version="0"))
    steps = evaluated_steps(old, counting, best)
    assert counting.calls == 0
    assert {step.metrics.limit for step in steps if step.metrics is not None} <= {"area", "chip"}


def test_values_of_several_workloads_are_relative(tmp_path: Path) -> None:
    """As those of the trials are; without the baseline nothing is said."""
    models = (WorkloadSpec("toy"), WorkloadSpec("toy", name="other"))
    spec = toy_spec(
        model=None, workloads=models, space=SPACE, search=SearchSpec("random", trials=6, seed=7)
    )
    storage = open_storage(f"sqlite:///{tmp_path / 'study.db'}", create=True)
    study = create_study(spec, storage, workload=(TOY, replace(TOY, parameters=20)))
    study.evaluator = toy_evaluator
    study.run()
    best = study.best()
    assert best is not None
    for step in evaluated_steps(study, study.evaluator, best):
        if step.metrics is not None and step.metrics.feasible and step.axis == "num_tc":
            expected = step.metrics.runs[0].throughput_samples_per_s
            own = best.metrics.runs[0].throughput_samples_per_s
            assert step.metrics.value / best.metrics.value == pytest.approx(expected / own)
    assert known_steps(study, replace(best, baselines=())) == ()
