"""How fast trials, tickets and enumeration-like writes are; nothing passes or fails by time."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze_opt.search.samplers import sampler_for
from phaze_opt.search.space import distributions
from phaze_opt.search.spec import SearchSpec, read_spec
from phaze_opt.search.store.storage import open_storage
from phaze_opt.search.study import create_study
from phaze_opt.search.worker import suggest
from tests.search.fakes import TOY, toy_spec, toy_study
from tests.search.test_samplers import negative_value

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
    """Trials of BERT-Large from nothing, baselines included: 60 per round, one worker."""
    names = iter(range(1000))
    spec = read_spec(QUICKSTART)

    def run() -> None:
        storage = open_storage(f"sqlite:///{tmp_path / f'{next(names)}.db'}", create=True)
        study = create_study(dataclasses.replace(spec), storage)
        assert study.run().counts.done == spec.search.trials

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


@pytest.mark.parametrize("name", ["random", "tpe", "climb", "nsga2"])
def test_ask_after_200_trials(benchmark: BenchmarkFixture, name: Any) -> None:
    """One proposal with 200 finished trials in memory."""
    import optuna

    space = read_spec(QUICKSTART).space
    study = optuna.create_study(direction="maximize")
    study.sampler = sampler_for("random", 0, 0, negative_value)
    for k in range(200):
        trial = study.ask(distributions(space))
        study.tell(trial, float(k % 17))
    numbers = iter(range(10_000))

    def ask() -> None:
        study.sampler = sampler_for(name, 0, next(numbers), negative_value)
        suggest(study.ask(), space)

    benchmark.pedantic(ask, rounds=20)
