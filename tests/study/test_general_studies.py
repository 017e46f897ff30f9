"""Studies beyond one workload and one objective: constraints, solved options, fronts."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation
from phaze_opt.report.specs import difference_tables
from phaze_opt.report.studies import best_tables, study_tables, trials_table
from phaze_opt.spec.constraints import run_violation
from phaze_opt.spec.space import DesignPoint, Space, all_points, params_of
from phaze_opt.spec.study_spec import AreaSpec, ConstraintSpec, SearchSpec, StudySpec, WorkloadSpec
from phaze_opt.store.caches import EvaluationCache, ScheduleCache
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.study.best_design import best_to_json_dict
from phaze_opt.study.difference import compare_studies
from phaze_opt.study.objective import Objective
from phaze_opt.study.study import Study, create_study
from phaze_opt.study.summary import summary_to_json_dict
from phaze_opt.study.trial_choice import choose_trials
from phaze_opt.study.trials import TrialRecord, metrics_from_plain
from phaze_opt.units import GIB
from tests.study.fakes import TOY, toy_evaluator, toy_spec

SMALL = Space(
    num_tc=(2, 16), pe_x=(32, 128), pe_vc="pe_x", glb_mib=[16, 64], hbm_gib=32, microbatch=[2, 8]
)
"""48 points, of which some are above the area limit and some do not fit."""


def general_evaluator(*args: Any) -> Evaluation:
    """Let larger models be slower, ZeRO cost a little, and power follow the speed."""
    workload, _, _, training, _ = args
    evaluation = toy_evaluator(*args)
    if not evaluation.feasible:
        return evaluation
    factor = 10.0 / workload.parameters * (1.0 + 0.1 * training.zero * (training.microbatch - 2))
    speed = evaluation.throughput_samples_per_s * factor
    return replace(
        evaluation,
        throughput_samples_per_s=speed,
        time_per_batch_s=training.global_batch / speed,
        power_w_per_device=speed / 100.0,
        energy_by_level_j={"hbm": speed**0.5},
    )


def study_of(url: str, captured: Sequence[Any] = (TOY,), **changes: Any) -> Study:
    """Create a study of the toy workloads on the small space."""
    spec = toy_spec(**({"space": SMALL} | changes))
    study = create_study(spec, url, workload=list(captured))
    study.evaluator = general_evaluator
    return study


def run_everywhere(study: Study) -> list[TrialRecord]:
    """Run every point of the space."""
    space = study.resolved.spec.space
    points = [params_of(space, point) for point in all_points(space)]
    study.office().set_target(len(points))
    study.office().issue(len(points), points)
    study.run(len(points))
    return study.trials()


@pytest.fixture
def url(tmp_path: Any) -> str:
    """Return the URL of a database that does not exist yet."""
    return f"sqlite:///{tmp_path / 'a.db'}"


def test_a_front_is_exact_where_all_points_are_evaluated(url: str) -> None:
    """The front of throughput and area is that of a comparison of all pairs."""
    study = study_of(url, objectives=("throughput", "area"), baselines=())
    trials = run_everywhere(study)
    feasible = [trial for trial in trials if trial.kind == "feasible"]
    assert len(trials) == SMALL.points > len(feasible) > 0

    def values(trial: TrialRecord) -> tuple[float, float]:
        assert trial.metrics is not None
        return trial.metrics.values[0], trial.metrics.values[1]

    def dominated(trial: TrialRecord) -> bool:
        speed, area = values(trial)
        return any(
            other[0] >= speed and other[1] <= area and other != (speed, area)
            for other in map(values, feasible)
        )

    expected = {values(trial) for trial in feasible if not dominated(trial)}
    best = study.best()
    assert best is not None
    assert len(best.front) == len(expected) == len({values(trial) for trial in best.front})
    assert {values(trial) for trial in best.front} == expected
    # Of equal designs the first in the order of designs stands for all.
    for trial in best.front:
        equal = [other for other in feasible if values(other) == values(trial)]
        ranks = [other.rank.key for other in equal if other.rank is not None]
        assert trial.rank is not None and trial.rank.key == min(ranks)
    plain = best_to_json_dict("toy", best)
    assert plain["objectives"] == ["throughput_samples_per_s", "area_mm2"]
    assert len(plain["front"]) == len(expected)
    assert all(design["params"].keys() == plain["params"].keys() for design in plain["front"])
    for table in (best_tables(best), study_tables(study), trials_table(best.spec, trials)):
        assert table


def test_infeasible_points_lose_in_every_objective(url: str) -> None:
    """In a study of opposite directions no infeasible trial has a value as good as a feasible."""
    names = ("throughput", "energy_per_sample", "power", "throughput_per_area", "tokens")
    study = study_of(url, objectives=names, baselines=())
    trials = run_everywhere(study)
    for at, kind in enumerate(study.resolved.spec.objective_kinds):
        feasible, infeasible = (
            [
                trial.metrics.values[at]
                for trial in trials
                if trial.metrics and trial.kind == kind_name
            ]
            for kind_name in ("feasible", "infeasible")
        )
        if kind.maximise:
            assert max(infeasible) < min(feasible)
        else:
            assert min(infeasible) > max(feasible)


def test_several_workloads_are_relative_to_a_baseline(url: str) -> None:
    """The value is the mean of the ratios; every workload takes the best solved options."""
    large = replace(TOY, model="large", parameters=50)
    study = study_of(
        url,
        [TOY, large],
        model=None,
        workloads=(WorkloadSpec("toy"), WorkloadSpec("large", weight=3.0, global_batch=32)),
        space=Space(num_tc=(1, 16), microbatch={"solve": [1, 2]}, zero={"solve": [0, 1]}),
        search=SearchSpec(sampler="random", trials=12),
    )
    study.run()
    best = study.best()
    assert best is not None
    phaze = best.baselines[0]
    assert phaze.name == "tpuv4-phaze" and phaze.values == (1.0,)
    speeds = [run.throughput_samples_per_s for run in best.metrics.runs]
    reference = [run.measured.throughput_samples_per_s for run in phaze.runs if run is not None]
    ratios = [speed / other for speed, other in zip(speeds, reference, strict=True)]
    mean = (ratios[0] * ratios[1] ** 3) ** 0.25
    assert len(best.metrics.values) == 1
    assert best.metrics.value == pytest.approx(mean)
    assert best.ratio(phaze) == pytest.approx(mean)
    # Without ZeRO a microbatch of 1 is the fastest in this cost model.
    assert [run.chosen for run in best.metrics.runs] == [{"microbatch": 1, "zero": 0}] * 2
    plain = summary_to_json_dict(study.summary())["best"]
    assert [run["workload"] for run in plain["workloads"]] == ["toy", "large"]
    assert plain["params"]["num_tc"] == best.point["num_tc"]
    assert "large" in str(best) and "large" in str(study)


def test_a_reference_that_does_not_train_every_workload_is_named(url: str) -> None:
    """Values relative to nothing are refused before the first trial."""
    spec: dict[str, Any] = {
        "model": None,
        "workloads": (WorkloadSpec("toy"), WorkloadSpec("other")),
        "space": Space(num_tc=(1, 4), microbatch=8),
    }
    study = study_of(url, [TOY, replace(TOY, model="other")], **spec)
    with pytest.raises(InputError, match=r"'tpuv4-phaze', to which .* relative_to"):
        study.run(2)


def test_solved_options_are_the_best_of_all(url: str) -> None:
    """An evaluation with solved options is the best of the evaluations with each of them."""
    solved = study_of(url, space=Space(num_tc=(1, 4), microbatch={"solve": [1, 2, 4, 8]}))
    solved.run(3)
    single = study_of(url, name="single", space=Space(num_tc=(1, 4), microbatch=[1, 2, 4, 8]))
    run_everywhere(single)
    best, other = solved.best(), single.best()
    assert best is not None and other is not None
    assert best.metrics.values == other.metrics.values
    assert best.metrics.runs[0].chosen == {"microbatch": other.point["microbatch"]}
    assert best.params["microbatch"] == other.params["microbatch"]


def objective_of(url: str, **changes: Any) -> Objective:
    """Return the objective of a study of the toy workload."""
    study = study_of(url, **changes)
    return Objective(
        study.resolved,
        [TOY],
        EvaluationCache(study.storage, "me", 30.0),
        ScheduleCache(study.storage),
        general_evaluator,
    )


POINT = DesignPoint.of(num_tc=8, pe_x=64, pe_vc=64, glb_mib=16, hbm_gib=32, microbatch=2)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"max_power_w": 1.0}, "average power per device of .* W is above the limit of 1 W"),
        ({"max_hbm_gib": 16}, "HBM of 32 GiB is above the limit of 16 GiB"),
        ({"max_devices": 4}, "devices in use of 8 devices is above"),
        ({"max_time_per_batch_s": 1e-6}, "time per batch of .* is above"),
    ],
)
def test_constraints(url: str, limits: dict[str, Any], sentence: str) -> None:
    """A point that does not keep a limit is infeasible by its relative excess."""
    metrics = objective_of(url, constraints=ConstraintSpec(**limits))(POINT)
    assert not metrics.feasible and metrics.violation > 0
    assert metrics.limit in ("power", "HBM", "devices", "time")
    assert metrics.reason is not None
    with pytest.raises(InputError, match=sentence):
        raise InputError(metrics.reason)
    generous: dict[str, Any] = dict.fromkeys(limits, 1024)
    kept = objective_of(url, name="kept", constraints=ConstraintSpec(**generous))(POINT)
    assert kept.feasible


def test_a_memory_margin_is_kept_by_the_placement(url: str) -> None:
    """The placement sees a smaller memory; the chip's area and price stay."""
    seen: list[Any] = []

    def spy(*args: Any) -> Evaluation:
        seen.append(args[1])
        return general_evaluator(*args)

    objective = objective_of(url, constraints=ConstraintSpec(min_memory_margin=0.25))
    metrics = replace(objective, evaluator=spy)(POINT)
    assert metrics.feasible
    assert seen[0].usable_memory_bytes == pytest.approx(0.75 * 0.94 * 32 * GIB)


def test_points_that_are_no_designs_are_infeasible(url: str) -> None:
    """What cannot be built, or excludes itself, is told as infeasible; the trial does not fail."""
    space = Space(glb_bytes=[1024, 2**24], pe_x=(2, 64), microbatch=[1, 64], global_batch=[8, 64])
    objective = objective_of(url, space=space, area=AreaSpec(max_mm2=1e4), microbatch=1)
    tiny = {"glb_bytes": 1024, "pe_x": 64, "microbatch": 1, "global_batch": 64}
    no_area = objective(DesignPoint.of(**tiny))
    assert not no_area.feasible and no_area.area_mm2 is None
    assert no_area.limit == "chip"
    excluded = {**tiny, "glb_bytes": 2**24, "microbatch": 64, "global_batch": 8}
    assert "microbatch is 64" in str(objective(DesignPoint.of(**excluded)).reason)
    assert objective(DesignPoint.of(**{**tiny, "glb_bytes": 2**24})).feasible


def test_the_worst_violation_is_told() -> None:
    """Of several limits that are not kept the one that is exceeded most is the reason."""
    evaluation = replace(
        general_evaluator(TOY, *_arguments()), power_w_per_device=300.0, time_per_batch_s=10.0
    )
    limits = ConstraintSpec(max_power_w=100.0, max_time_per_batch_s=9.0)
    violation = run_violation(
        StudySpec("study", "bert-large", "flat-4GiB", 8, 8, constraints=limits), evaluation
    )
    assert violation is not None
    assert violation.excess == pytest.approx(2.0) and "power" in violation.reason
    assert violation.limit == "power"


def _arguments() -> tuple[Any, ...]:
    """Return a chip, a cluster, a training run and no schedules."""
    from phaze_opt.hardware.presets import load_accelerator
    from phaze_opt.network.presets import load_cluster
    from phaze_opt.training import Training

    return load_accelerator("tpuv4-phaze"), load_cluster("tpuv4-ici-flat", 8), Training(64), {}


def test_differences_are_named(url: str) -> None:
    """Two studies differ in what their specs say and in what they found."""
    first = study_of(url)
    second = study_of(url, name="other", global_batch=32, space=Space(num_tc=[1, 2]))
    first.run(4)
    difference = compare_studies(first, second)
    keys = {changed.key: (changed.first, changed.second) for changed in difference.spec}
    assert keys["spec.global_batch"] == (64, 32)
    assert "spec.space.pe_vc" in keys and "spec.name" not in keys
    assert {changed.key for changed in difference.best} >= {"throughput_samples_per_s", "num_tc"}
    assert difference_tables(difference)
    same = compare_studies(first, first)
    assert (same.spec, same.best) == ((), ())


def test_trials_are_chosen_and_sorted(url: str) -> None:
    """Conditions, keys and limits choose among the rows of trials."""
    study = study_of(url, search=SearchSpec(sampler="random", trials=20, seed=3))
    study.run()
    trials = study.trials()
    where = ["state=feasible", "num_tc>=4"]
    chosen = list(choose_trials(study.each_trial, where=where, sort="-value", limit=3))
    points = [trial.point for trial in trials if trial.kind == "feasible"]
    expected = sum(1 for point in points if point is not None and int(point["num_tc"]) >= 4)
    assert len(chosen) == min(3, expected) > 0
    values = [trial.metrics.value for trial in chosen if trial.metrics is not None]
    assert values == sorted(values, reverse=True)
    assert list(choose_trials(study.each_trial)) == trials
    every = list(choose_trials(study.each_trial, sort="-value"))
    # Equal values stay in the order of their numbers.
    by_value = sorted(trials, key=lambda trial: trial.metrics.value, reverse=True)  # type: ignore[union-attr]
    assert every == by_value and list(study.each_trial([3, 1])) == [trials[3], trials[1]]
    assert list(choose_trials(study.each_trial, where=where)) == sorted(
        (trial for trial in every if trial.kind == "feasible" and trial.point["num_tc"] >= 4),  # type: ignore
        key=lambda trial: trial.number,
    )
    frame = study.to_pandas()
    assert list(frame["number"]) == [trial.number for trial in trials]
    for where, sentence in ((["num_tc~3"], "cannot be read"), (["num_tcs=3"], "'num_tc'")):
        with pytest.raises(InputError, match=sentence):
            list(choose_trials(study.each_trial, where=where))
    for limit, sentence in ((0, "at least 1"), (10**40, "at most 10,000,000")):
        with pytest.raises(InputError, match=sentence):
            choose_trials(study.each_trial, limit=limit)


def test_trials_are_read_some_at_a_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who needs the first ones reads no others."""
    study = study_of(url, search=SearchSpec(sampler="random", trials=8, seed=3))
    study.run()
    monkeypatch.setattr("phaze_opt.store.stored_study._AT_ONCE", 3)
    parts = []
    read = StoredStudy.some_trials

    def some_trials(self: StoredStudy, *conditions: Any) -> Any:
        parts.append(len(trials := read(self, *conditions)))
        return trials

    monkeypatch.setattr(StoredStudy, "some_trials", some_trials)
    first, second = choose_trials(study.each_trial, limit=2)
    assert (first.number, second.number, parts) == (0, 1, [3])
    assert [trial.number for trial in study.each_trial()] == list(range(8))
    assert parts == [3, 3, 3, 2]


def test_without_pandas_a_sentence_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data frame is an extra."""
    load = importlib.import_module

    def without(name: str) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return load(name)

    monkeypatch.setattr("phaze_opt.study.study.importlib.import_module", without)
    with pytest.raises(InputError, match="needs pandas"):
        study_of(url).to_pandas()


def test_trials_of_older_programs_are_read() -> None:
    """Metrics of one workload, as they were written before there were several."""
    old: dict[str, Any] = {
        "feasible": True,
        "reason": None,
        "violation": 0.0,
        "throughput_samples_per_s": 5.0,
        "area_mm2": 3.0,
        "energy_j_per_batch": 2.0,
        "evaluation_key": "abc",
        "cached": False,
        "proven_schedules": 1,
        "schedules": 2,
        "evaluate_s": 0.1,
    }
    metrics = metrics_from_plain(old)
    assert metrics is not None
    assert (metrics.values, metrics.evaluation_key, metrics.energy_j_per_batch) == (
        (5.0,),
        "abc",
        2,
    )
    too_large = {**old, "feasible": False, "reason": "large", "violation": 0.5}
    metrics = metrics_from_plain({**too_large, "evaluation_key": None})
    assert metrics is not None and metrics.values == (-0.5,) and metrics.runs == ()


def test_studies_of_older_programs_are_read(url: str) -> None:
    """A frozen study with one workload, and the keys that specs had then."""
    from sqlalchemy import select

    from phaze_opt.codec import from_json, to_json
    from phaze_opt.store.tables import StudyRow
    from phaze_opt.study.study import load_study

    study = study_of(url, space=Space.phaze())
    with study.storage.writing() as session:
        row = session.scalars(select(StudyRow)).one()
        plain = from_json(row.resolved, dict, "study")
        plain["workload_hash"] = plain.pop("workload_hashes")[0]
        del plain["clusters"]
        kept = ("name", "model", "cluster", "devices", "global_batch", "space", "search")
        plain["spec"] = {key: plain["spec"][key] for key in kept}
        row.resolved = to_json(plain).decode()
    opened = load_study("toy", url)
    assert opened.resolved.workload_hashes == study.resolved.workload_hashes
    assert opened.workloads() == (TOY,)
    assert opened.resolved.spec == StudySpec(
        "toy", "toy", "tpuv4-ici-flat", 8, 64, search=study.resolved.spec.search
    )
