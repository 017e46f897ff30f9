"""Best bound first: no point twice, no point that cannot win, and the best proven."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState

from phaze_opt.errors import InputError
from phaze_opt.evaluation import evaluate
from phaze_opt.report.layout import to_text
from phaze_opt.report.studies import summary_table
from phaze_opt.sharing.copying import copy_study
from phaze_opt.spec.freezing import freeze
from phaze_opt.spec.ordering import value_bin
from phaze_opt.spec.run_inputs import run_inputs
from phaze_opt.spec.space import (
    DesignPoint,
    Space,
    all_points,
    distributions,
    params_of,
    point_of,
)
from phaze_opt.spec.study_spec import ConstraintSpec, SearchSpec, StudySpec
from phaze_opt.store.caches import EvaluationCache, ScheduleCache
from phaze_opt.store.opening import open_storage
from phaze_opt.study import worker as worker_module
from phaze_opt.study.guided import bound_sampler
from phaze_opt.study.objective import Objective
from phaze_opt.study.samplers import likely
from phaze_opt.study.samplers.bound import BestBoundFirst, BoundedParams, BoundSampler
from phaze_opt.study.samplers.grid import Grid
from phaze_opt.study.study import Study, create_study
from phaze_opt.study.summary import summary_to_json_dict
from phaze_opt.study.worker import suggest
from phaze_opt.units import GIB
from phaze_opt.whole_space.enumerating import enumerate_study
from tests.study.fakes import toy_evaluator, toy_study

SIZE = 12
LINE = {"x": IntDistribution(0, SIZE - 1)}


def cost_of(trial: FrozenTrial) -> tuple[float]:
    """Order trials by their values."""
    assert trial.values is not None
    return (trial.values[0],)


def search_of(least: Sequence[float]) -> BestBoundFirst:
    """Return the points of a line, in the order of the least costs."""
    order = sorted(range(len(least)), key=lambda x: least[x])
    return BestBoundFirst(Grid.of(LINE), iter([({"x": x}, (least[x],)) for x in order]), cost_of)


costs = st.lists(st.integers(0, 9), min_size=SIZE, max_size=SIZE)
slacks = st.lists(st.integers(0, 4), min_size=SIZE, max_size=SIZE)


@given(costs, slacks)
@settings(max_examples=40, deadline=None)
def test_alone_it_proves_the_best(costs: list[int], slacks: list[int]) -> None:
    """Under ``optimize`` it stops at the proof, and evaluates only what could have been better."""
    least = [float(cost - slack) for cost, slack in zip(costs, slacks, strict=True)]
    study = optuna.create_study(sampler=BoundSampler(search_of(least)))
    study.optimize(lambda trial: costs[trial.suggest_int("x", 0, SIZE - 1)], n_trials=SIZE + 3)
    tried = [trial.params["x"] for trial in study.trials]
    assert study.best_value == min(costs)
    assert len(tried) == len(set(tried))
    assert {x for x in range(SIZE) if least[x] <= min(costs)} == set(tried)


@given(costs, slacks, st.lists(st.integers(0, 9), max_size=40))
@settings(max_examples=40, deadline=None)
def test_with_ask_and_tell_in_any_order(
    costs: list[int], slacks: list[int], events: list[int]
) -> None:
    """Trials that run at once, or fail, are not proposed again; nothing false is ever proven."""
    least = [float(cost - slack) for cost, slack in zip(costs, slacks, strict=True)]
    search = search_of(least)
    study = optuna.create_study(sampler=BoundSampler(search, seed=1))
    running: list[optuna.Trial] = []
    asked: list[int] = []
    for event in events:
        if not running or (event < 5 and len(asked) < SIZE):
            running.append(study.ask(dict(LINE)))
            asked.append(running[-1].params["x"])
            continue
        trial = running.pop(event % len(running))
        if event == 9:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, costs[trial.params["x"]])
        search.read(study.get_trials())
        done = [trial.params["x"] for trial in study.get_trials(states=(TrialState.COMPLETE,))]
        best = min((costs[x] for x in done), default=99)
        assert search.is_proven == all(least[x] > best for x in range(SIZE) if x not in done)
    assert len(asked[:SIZE]) == len(set(asked[:SIZE]))


@given(costs, slacks, st.lists(st.integers(0, 9), min_size=SIZE, max_size=SIZE), st.data())
@settings(max_examples=40, deadline=None)
def test_guesses_decide_the_order_and_no_proof(
    costs: list[int], slacks: list[int], guesses: list[int], data: st.DataObject
) -> None:
    """Whatever is guessed, all that could be better is tried; the best point looked at is first."""
    least = [float(cost - slack) for cost, slack in zip(costs, slacks, strict=True)]
    feasible = data.draw(st.lists(st.booleans(), min_size=SIZE, max_size=SIZE))
    looked: list[int] = []

    def cost(x: int) -> tuple[float, ...]:
        return (0, costs[x]) if feasible[x] else (1,)

    def look(params: Mapping[str, Any]) -> tuple[float, ...]:
        looked.append(params["x"])
        return cost(params["x"])

    def guess(points: Sequence[Mapping[str, Any]], care: int) -> list[tuple[float, ...]]:
        return [(0, guesses[params["x"]] * care) for params in points]

    order = sorted(range(SIZE), key=lambda x: least[x])
    bounded = [({"x": x}, (0, least[x])) for x in order]

    def new_process() -> BestBoundFirst:
        costs_of = Grid.of(LINE), iter(bounded), lambda trial: cost(trial.params["x"])
        return BestBoundFirst(*costs_of, guess, look)

    few = data.draw(st.sampled_from([(likely.LOOKED_AT, likely.ROUNDS), (3, 1)]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(likely, "LOOKED_AT", few[0])
        patched.setattr(likely, "ROUNDS", few[1])
        search, tried = new_process(), list[int]()
        while not search.is_proven:
            (params,) = search.next_points(1)
            tried.append(params["x"])
            search.read([finished(number, x) for number, x in enumerate(tried)])
        first, again = looked.copy(), new_process()
        for number, x in enumerate(tried):
            again.read([finished(earlier, x) for earlier, x in enumerate(tried[:number])])
            assert again.next_points(1) == [{"x": x}]
    known = [x for x in range(SIZE) if feasible[x]]
    best = min((costs[x] for x in known), default=None)
    assert len(first) == len(set(first)) and len(tried) == len(set(tried))
    assert best is None or any(cost(x) == (0, best) for x in tried)
    assert {x for x in range(SIZE) if best is None or least[x] <= best} <= set(tried)
    seen = [x for x in first if feasible[x]]
    assert not seen or cost(tried[0]) == min(map(cost, seen))


def finished(number: int, x: int) -> FrozenTrial:
    """Return a finished trial of a point on the line."""
    trial = optuna.trial.create_trial(
        params={"x": x}, distributions=dict(LINE), value=0.0, state=TrialState.COMPLETE
    )
    trial.number = number
    return trial


def test_an_error_is_not_the_end_of_the_points() -> None:
    """Bounds that could not be read are asked for again; until then nothing is proven."""

    class Failing:
        def __init__(self) -> None:
            self.left, self.fails = [0, 1, 2], True

        def __iter__(self) -> Iterator[BoundedParams]:
            while self.left:
                if len(self.left) == 2 and self.fails:
                    self.fails = False
                    raise ConnectionError
                x = self.left.pop(0)
                yield {"x": x}, (float(x),)

    search = BestBoundFirst(Grid.of(LINE), Failing(), cost_of)
    with pytest.raises(ConnectionError):
        search.next_points(3)
    assert [params["x"] for params in search.next_points(3)] == [0, 1, 2]
    assert not search.is_proven


TINY = StudySpec(
    name="tiny",
    model="gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128",
    cluster="tpuv4-ici-flat",
    devices=4,
    global_batch=8,
    space=Space(
        "tpuv4-lanes", num_tc=[4, 8], glb_mib=(32, 128), hbm_gib=[16, 32], microbatch=(1, 2)
    ),
    baselines=("tpuv4-lanes",),
    search=SearchSpec("bound", trials=24),
)


def test_a_study_is_proven_before_it_has_its_trials(tmp_path: Path) -> None:
    """Its best is that of the enumeration; a further run does nothing; a copy is proven at once."""
    study = create_study(TINY, f"sqlite:///{tmp_path / 'a.db'}")
    outcome = study.run()
    assert outcome.is_proven and not outcome.is_stopped and outcome.exit_code is None
    assert outcome.counts.done < 24 and "proven" in str(outcome)
    best, enumeration = study.best(), enumerate_study(study)
    assert best is not None and best.point.values == enumeration.top[0].point
    summary = study.summary()
    assert (summary.state, summary.left, summary.next_command) == (
        "proven",
        0,
        "phaze-opt study run tiny",
    )
    assert summary_to_json_dict(summary)["state"] == "proven"
    assert "proven, no other design is better" in to_text(summary_table(summary))
    points = [trial.point for trial in study.trials()]
    assert len(points) == len(set(points)) == outcome.counts.done
    assert study.run(100).counts.done == outcome.counts.done


def test_under_a_limit_of_the_power_the_first_trial_keeps_it(tmp_path: Path) -> None:
    """Points are looked at before they are proposed, and the proof is that of the enumeration."""
    # The fastest chip takes 5.36 W, the fastest one of four cores 5.08 W.
    spec = replace(TINY, baselines=(), constraints=ConstraintSpec(max_power_w=5.2))
    study = create_study(spec, f"sqlite:///{tmp_path / 'a.db'}")
    assert study.run().is_proven
    first, *_ = study.trials()
    assert first.kind == "feasible"
    best, enumeration = study.best(), enumerate_study(study)
    assert best is not None and best.point.values == enumeration.top[0].point
    assert first.point == best.point


def test_alone_in_optuna_it_agrees() -> None:
    """Without workers and tickets, the same space is proven from its values alone."""
    resolved, workloads = freeze(TINY)
    space = resolved.spec.space

    def throughput(point: DesignPoint) -> float:
        (inputs,) = run_inputs(resolved, 0, resolved.design(point))
        evaluation = evaluate(workloads[0], inputs.accelerator, inputs.cluster, inputs.training)
        return evaluation.throughput_samples_per_s

    def value(trial: optuna.Trial) -> float:
        return throughput(point_of(space, suggest(trial, space)))

    study = optuna.create_study(direction="maximize", sampler=bound_sampler(resolved, workloads))
    study.optimize(value, n_trials=24)
    tried = {str(trial.params) for trial in study.trials}
    assert len(tried) == len(study.trials) <= 24
    assert value_bin(study.best_value) == value_bin(max(map(throughput, all_points(space))))


def toy_guide(study: Study) -> Callable[..., BestBoundFirst]:
    """Return what makes a guide of a toy study, with bounds a few bins above the values."""
    elsewhere = open_storage("sqlite:///" + str(study.storage.url.database) + ".guide", create=True)
    objective = Objective(
        study.resolved,
        study.workloads(),
        EvaluationCache(elsewhere, "me", 30.0),
        ScheduleCache(elsewhere),
        toy_evaluator,
    )
    space = study.resolved.spec.space
    points: list[BoundedParams] = []
    for point in all_points(space):
        metrics = objective(point)
        if metrics.feasible:
            value, hbm_bytes, area_mm2 = metrics.rank(study.resolved, point).key[:3]
            least = (0, value - 3, hbm_bytes, area_mm2)
            points.append((params_of(space, point), least))
    points.sort(key=lambda bounded: bounded[1])
    grid = Grid.of(distributions(space))
    return lambda *arguments: BestBoundFirst(grid, iter(points), arguments[-1])


def guided_toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str = "toy") -> Study:
    """Create a toy study with the sampler ``bound``."""
    space = Space(num_tc=(1, 8), pe_x=(64, 128), hbm_gib=[32, 80], microbatch=[1, 2, 8])
    search = SearchSpec("bound", trials=48)
    study = toy_study(f"sqlite:///{tmp_path / name}.db", space=space, search=search)
    monkeypatch.setattr(worker_module, "best_bound_first", toy_guide(study))
    return study


def test_a_stopped_study_goes_on_to_the_same_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run in parts, or in one go, a study has the same trials, each point once."""
    whole, parts = (guided_toy(tmp_path, monkeypatch, name) for name in ("whole", "parts"))
    for total in (1, 4, 9, 48):
        parts.run(total)
    assert whole.run().is_proven and parts.summary().state == "proven"
    points = [[trial.point for trial in study.trials()] for study in (whole, parts)]
    assert points[0] == points[1] and len(set(points[0])) == len(points[0]) < 48
    best, enumeration = whole.best(), enumerate_study(whole, bounds=False)
    assert best is not None and best.point.values == enumeration.top[0].point
    copied = copy_study(parts, "copied", parts.storage)
    copied.evaluator = toy_evaluator
    assert copied.run().is_proven and len(copied.trials()) == len(points[0])


def test_a_failed_trial_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a point that could be better was not evaluated, the study goes on to its trials."""
    study = guided_toy(tmp_path, monkeypatch)

    def failing(*arguments: Any) -> Any:
        if arguments[1].num_tc == 8 and arguments[1].hbm_bytes == 80 * GIB:
            raise RuntimeError("the cost model stumbled")
        return toy_evaluator(*arguments)

    study.evaluator = failing
    outcome = study.run(30)
    assert outcome.failures and not outcome.is_proven
    assert outcome.counts.done + outcome.counts.failed == 30
    points = [trial.point for trial in study.trials()]
    assert len(points) == len(set(points))


def test_workers_never_try_a_point_twice(tmp_path: Path, forked_workers: None) -> None:
    """Two processes share the points, and stop at the proof."""
    study = create_study(TINY, f"sqlite:///{tmp_path / 'a.db'}")
    outcome = study.run(workers=2)
    assert outcome.is_proven and outcome.counts.done < 24
    points = [trial.point for trial in study.trials()]
    assert len(points) == len(set(points)) == outcome.counts.done


def test_what_it_cannot_search_is_refused() -> None:
    """Several objectives are refused when the spec is read, those without a bound too."""
    with pytest.raises(InputError, match="bound searches for one objective"):
        replace(TINY, objectives=("throughput", "area"))
    with pytest.raises(InputError, match="No bound is known for the objective power"):
        replace(TINY, objectives=("power",))
