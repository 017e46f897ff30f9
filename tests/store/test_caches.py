"""Evaluations and schedules are computed once."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from phaze_opt.codec import to_json
from phaze_opt.evaluation import Evaluation
from phaze_opt.evaluation_json import evaluation_to_json_dict
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.on_demand import deferred
from phaze_opt.passes.layers import LayerEvaluation
from phaze_opt.scheduling.schedule_problem import Schedule, ScheduledOperator
from phaze_opt.store.caches import (
    EvaluationCache,
    ProofEffort,
    ScheduleCache,
    find_evaluations,
    write_evaluation,
)
from phaze_opt.store.leases import sweep_claims
from phaze_opt.store.opening import open_storage
from phaze_opt.store.tables import EvaluationRow, ScheduleRow
from phaze_opt.training import Training
from tests.study.fakes import TOY, toy_evaluator

EVALUATION = toy_evaluator(
    TOY,
    load_accelerator("tpuv4-phaze"),
    load_cluster("tpuv4-ici-flat", 8),
    Training(global_batch=64, microbatch=1, recompute="none", optimizer="sgd"),
    {},
)
SCHEDULE = Schedule((ScheduledOperator("a", 0.0, 1.0, True),), 1.0, "optimal", 1.0, "bound", 0.1)


def test_computed_once_and_found_after(any_url: str) -> None:
    """The second request of any worker finds what the first computed."""
    storage = open_storage(any_url, create=True)
    mine, yours = (EvaluationCache(storage, token, 30.0) for token in ("me", "you"))
    assert mine.get_or_compute("k", lambda: EVALUATION) == (EVALUATION, False)
    assert yours.get_or_compute("k", lambda: pytest.fail("again")) == (EVALUATION, True)
    assert find_evaluations(storage, ["k", "other"]) == {"k": EVALUATION}


def test_two_workers_at_once_compute_once(any_url: str) -> None:
    """Who comes second waits for the one that is computing."""
    storage = open_storage(any_url, create=True)
    computed: list[str] = []
    results: list[Any] = []

    def work(token: str) -> None:
        def compute() -> Evaluation:
            computed.append(token)
            time.sleep(0.2)
            return replace(EVALUATION, throughput_samples_per_s=1.0 + int(token))

        results.append(EvaluationCache(storage, token, 30.0).get_or_compute("k", compute)[0])

    threads = [threading.Thread(target=work, args=(str(index),)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(computed) == 1
    assert [evaluation.throughput_samples_per_s for evaluation in results] == [
        1.0 + int(computed[0])
    ] * 4


def test_a_claim_that_ran_out_is_taken_over(any_url: str) -> None:
    """A point whose worker vanished is computed by another one."""
    storage = open_storage(any_url, create=True)
    with storage.writing() as session:
        session.add(EvaluationRow(key="k", token="gone", until_s=0.0, body=None))
    cache = EvaluationCache(storage, "me", 30.0)
    assert cache.get_or_compute("k", lambda: EVALUATION) == (EVALUATION, False)


def test_claims_of_the_gone_are_swept(any_url: str) -> None:
    """Those that are over, and only those; who was only stalled still stores its result."""
    storage = open_storage(any_url, create=True)
    gone, alive = EvaluationCache(storage, "gone", 30.0), EvaluationCache(storage, "alive", 30.0)

    def sweep() -> Evaluation:
        alive._claim("held", None)
        with storage.writing() as session:
            over = update(EvaluationRow).where(EvaluationRow.token == "gone")
            session.execute(over.values(until_s=0.0))
        sweep_claims(storage)
        with storage.reading() as session:
            assert session.scalars(select(EvaluationRow.key)).all() == ["held"]
        return EVALUATION

    assert gone.get_or_compute("k", sweep) == (EVALUATION, False)
    assert find_evaluations(storage, ["k", "held"]) == {"k": EVALUATION}


def test_an_error_frees_the_claim(any_url: str) -> None:
    """When computing fails, the next one may try."""
    storage = open_storage(any_url, create=True)

    def fail() -> Evaluation:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        EvaluationCache(storage, "me", 30.0).get_or_compute("k", fail)
    cache = EvaluationCache(storage, "you", 30.0)
    assert cache.get_or_compute("k", lambda: EVALUATION) == (EVALUATION, False)


def test_renewal_keeps_a_claim(sqlite_url: str) -> None:
    """A worker that renews its lease is not overtaken."""
    storage = open_storage(sqlite_url, create=True)
    cache = EvaluationCache(storage, "me", 30.0)
    assert cache._claim("k", None)
    with storage.writing() as session:
        session.execute(update(EvaluationRow).values(until_s=0.0))
    cache.renew_lease("me")
    other = EvaluationCache(storage, "you", 30.0)
    assert not other._claim("k", None)


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    """Return the JSON of an evaluation, with something else in it."""
    record = evaluation_to_json_dict(EVALUATION)
    change(record)
    return json.dumps(record)


@pytest.mark.parametrize(
    "body",
    [
        *("nonsense", "[1]", '{"x": NaN}', '{"x":' * 10_000, "3", "", "null", '{"x": 1}'),
        # Nearly an evaluation.
        changed(lambda record: record.pop("layers")),
        changed(lambda record: record.update(layers="many")),
        changed(lambda record: record.update(mfu="0.5")),
        changed(lambda record: record.update(area_mm2=float("inf"))),
        changed(lambda record: record.update(area_mm2=None)).replace("null", "1e999"),
        changed(lambda record: record.update(feasible=False)),
        changed(lambda record: record.update(placement=None)),
        changed(lambda record: record.update(throughput_samples_per_s=-1.0)),
        changed(lambda record: record["placement"].update(stages=[{}])),
        changed(lambda record: record["placement"]["stages"][0].update(memory_bytes=[])),
        changed(lambda record: record.update(odd=1)),
    ],
)
def test_hostile_evaluations_are_computed_anew(sqlite_url: str, body: str) -> None:
    """A stored row that is not an evaluation is as good as none."""
    storage = open_storage(sqlite_url, create=True)
    with storage.writing() as session:
        session.add(EvaluationRow(key="k", token=None, until_s=None, body=body))
    assert find_evaluations(storage, ["k"]) == {}
    cache = EvaluationCache(storage, "me", 30.0)
    assert cache.get_or_compute("k", lambda: EVALUATION) == (EVALUATION, False)
    assert find_evaluations(storage, ["k"]) == {"k": EVALUATION}


@pytest.mark.parametrize(
    "body",
    [
        write_evaluation(EVALUATION),
        changed(lambda record: record["placement"]["stages"][0]["memory_bytes"].pop("total")),
        changed(lambda record: record.pop("energy_j_per_batch")),
        changed(lambda record: record.update(bound_by_share={"hbm": []})),
    ],
)
def test_what_follows_from_the_fields_is_not_read(sqlite_url: str, body: str) -> None:
    """A stored evaluation is read from its fields; sums and shares are computed again."""
    storage = open_storage(sqlite_url, create=True)
    with storage.writing() as session:
        session.add(EvaluationRow(key="k", token=None, until_s=None, body=body))
    evaluations = find_evaluations(storage, ["k"])
    assert evaluations == {"k": EVALUATION}
    assert evaluation_to_json_dict(evaluations["k"]) == evaluation_to_json_dict(EVALUATION)


def test_numbers_that_json_does_not_have_are_not_written() -> None:
    """Neither NaN nor infinity reaches a database."""
    with pytest.raises(ValueError, match="JSON compliant"):
        write_evaluation(replace(EVALUATION, time_breakdown_s={"forward": math.nan}))


def test_what_is_deferred_is_found_before_it_is_stored(sqlite_url: str) -> None:
    """Its schedules belong to the evaluation, and where it fails, the claim is free again."""
    storage = open_storage(sqlite_url, create=True)
    cache, schedules = EvaluationCache(storage, "me", 30.0), ScheduleCache(storage)

    def layers() -> tuple[LayerEvaluation, ...]:
        schedules["s"] = SCHEDULE
        return EVALUATION.layers

    def fails() -> tuple[LayerEvaluation, ...]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get_or_compute("k", lambda: replace(EVALUATION, layers=deferred(fails)), schedules)
    result = cache.get_or_compute(
        "k", lambda: replace(EVALUATION, layers=deferred(layers)), schedules
    )
    assert result == (EVALUATION, False)
    assert find_evaluations(storage, ["k"]) == {"k": EVALUATION}
    with storage.reading() as session:
        row = session.get(EvaluationRow, "k")
        assert row is not None and json.loads(row.schedules or "") == ["s"]
        assert session.get(ScheduleRow, "s") is not None


def test_schedules_survive_the_process(any_url: str) -> None:
    """A flushed schedule is found by another worker; one that is only new is not."""
    storage = open_storage(any_url, create=True)
    mine = ScheduleCache(storage)
    mine["a"] = SCHEDULE
    assert "a" not in ScheduleCache(storage)
    mine.flush()
    mine["a"] = SCHEDULE
    mine.flush()
    assert ScheduleCache(storage)["a"] == SCHEDULE
    assert list(mine) == ["a"] and len(mine) == 1
    del mine["a"]
    assert mine["a"] == SCHEDULE


@pytest.mark.parametrize(
    "body",
    [
        *('{"operators": "rm -rf"}', "[" * 10_000, "null", "7", ""),
        to_json(replace(SCHEDULE, makespan_s=0.5)).decode(),
        to_json(replace(SCHEDULE, bound_s=-1.0)).decode(),
        to_json(SCHEDULE).decode().replace("1.0", "1e999"),
    ],
)
def test_hostile_schedules_are_not_used(sqlite_url: str, body: str) -> None:
    """A stored schedule that is damaged, or contradicts itself, counts as none and is replaced."""
    storage = open_storage(sqlite_url, create=True)
    with storage.writing() as session:
        session.add(ScheduleRow(key="a", body=body))
    cache = ScheduleCache(storage)
    assert cache.get("a") is None
    cache["a"] = SCHEDULE
    cache.flush()
    assert ScheduleCache(storage).get("a") == SCHEDULE


def test_effort_of_proofs_is_counted(sqlite_url: str) -> None:
    """Every schedule asked for counts once, as quick unless a long search proved it, or none."""
    cache = ScheduleCache(open_storage(sqlite_url, create=True))
    searched = replace(SCHEDULE, method="branch-and-bound", solve_s=0.5)
    for key, schedule in {
        "by a list": replace(SCHEDULE, method="list", solve_s=1.0),
        "by a short search": replace(searched, solve_s=0.01),
        "by a long search": searched,
        "not at all": replace(searched, status="feasible", solve_s=0.01),
    }.items():
        assert cache.get(key) is None
        cache[key] = schedule
        assert cache.get(key) is not None
    assert cache.take_effort() == ProofEffort(needed=4, quick=2)
    assert cache.take_effort() == ProofEffort(needed=0, quick=0)
    # What was found counts as it did when it was solved.
    assert cache["by a long search"] and cache["by a list"]
    assert cache.take_effort() == ProofEffort(needed=2, quick=1)
