"""How fast trials, tickets and enumeration-like writes are; nothing passes or fails by time."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import pytest
from optuna.trial import TrialState
from pytest_benchmark.fixture import BenchmarkFixture

from phaze_opt.spec.sampler_options import SamplerName
from phaze_opt.spec.space import distributions
from phaze_opt.spec.study_spec import SearchSpec, read_spec
from phaze_opt.store.opening import open_storage
from phaze_opt.study.samplers.by_name import Samplers
from phaze_opt.study.samplers.grid import Grid
from phaze_opt.study.study import create_study
from tests.study.fakes import TOY, toy_spec, toy_study
from tests.study.spaces import hill, negative_value

QUICKSTART = Path(__file__).parents[2] / "studies" / "quickstart.toml"
TRIALS = 60


def test_cached_trials(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Trials whose evaluations are all in the database: 60 per round."""
    study = toy_study(f"sqlite:///{tmp_path / 'a.db'}", search=SearchSpec("random", TRIALS, 1))
    study.run()
    names = iter(range(1000))

    def again() -> None:
        copy = create_study(
            toy_spec(search=SearchSpec("random", TRIALS, 1)),
            study.storage,
            name=f"copy{next(names)}",
            workload=TOY,
        )
        copy.run()
        assert copy.summary().cached_share == 1.0

    benchmark.pedantic(again, rounds=3)


def test_uncached_trials_of_the_quickstart(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """BERT-Large from nothing until the best is proven, baselines included, with one worker."""
    names = iter(range(1000))
    spec = read_spec(QUICKSTART)

    def run() -> None:
        storage = open_storage(f"sqlite:///{tmp_path / f'{next(names)}.db'}", create=True)
        study = create_study(dataclasses.replace(spec), storage)
        assert study.run().is_proven

    benchmark.pedantic(run, rounds=1, warmup_rounds=1)


def test_claim_and_finish(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """A ticket's way through the office: claim, assign, finish."""
    office = toy_study(f"sqlite:///{tmp_path / 'a.db'}").office()
    office.issue(2000)

    def one() -> None:
        ticket = office.claim("me", 2000)
        assert ticket is not None
        office.assign(ticket, ticket.k)
        office.finish(ticket)

    benchmark.pedantic(one, rounds=200)


@pytest.mark.parametrize(
    ("name", "trials"),
    [
        (name, trials)
        for name in get_args(SamplerName)
        if name != "bound"  # whose points come with the tickets
        # Beyond 400 trials a Gaussian process takes minutes.
        for trials in ((100, 400) if name == "gp" else (100, 1000, 3000))
    ],
)
def test_ask(benchmark: BenchmarkFixture, name: SamplerName, trials: int) -> None:
    """One more proposal of a worker that has asked before, with so many finished trials."""
    import optuna

    axes = distributions(read_spec(QUICKSTART).space)
    grid = Grid.of(axes)
    draws = Samplers("random", 0, axes, negative_value)
    samplers = Samplers(name, 0, axes, negative_value)
    study = optuna.create_study(direction="maximize")
    for ticket in range(trials):
        # The trials before the last 100 come from elsewhere, so that the benchmark starts soon.
        source = samplers if ticket >= trials - 100 and name != "gp" else draws
        study.sampler = source.for_ticket(ticket)
        trial = study.ask(axes)
        study.tell(trial, hill(grid, trial.params))
    tickets = iter(range(trials, 10_000))

    def ask() -> optuna.Trial:
        study.sampler = samplers.for_ticket(next(tickets))
        return study.ask(axes)

    def prepare() -> None:
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(trial.number, state=TrialState.FAIL)

    benchmark.pedantic(
        ask, setup=prepare, rounds=3 if name == "gp" else 20, warmup_rounds=1, iterations=1
    )
