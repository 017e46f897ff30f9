"""The end of a run solves the open passes of the best design further."""

from __future__ import annotations

import signal
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from phaze_opt.evaluation import Evaluation
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.scheduled import ScheduleProof
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.sharing.copying import copy_study
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import SearchSpec, WorkloadSpec
from phaze_opt.store.opening import open_storage
from phaze_opt.study.proving import pass_proofs, proofs_of
from phaze_opt.study.study import Study, create_study
from phaze_opt.study.summary import summary_to_json_dict
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload
from tests.study.fakes import TOY, open_evaluator, quick_study, toy_evaluator, toy_spec


class Prover:
    """Stands for the cost model that solves passes further, and counts its calls."""

    def __init__(self) -> None:
        self.calls: list[bool] = []
        self.closes = True
        self.interrupts = 0

    def __call__(
        self,
        workload: Workload,
        accelerator: Accelerator,
        cluster: Cluster,
        training: Training,
        placement: str,
        *,
        cache: MutableMapping[str, Schedule],
        prove: bool,
    ) -> Evaluation:
        """Close the open pass of the toy, or leave a smaller gap."""
        self.calls.append(prove)
        for _ in range(self.interrupts):
            signal.raise_signal(signal.SIGINT)
        evaluation = toy_evaluator(workload, accelerator, cluster, training, cache)
        (layer,) = evaluation.layers
        proof = ScheduleProof("optimal", 1.0, 0.0, "cp-sat")
        if not self.closes:
            proof = ScheduleProof("feasible", 0.99, 0.01, "cp-sat")
        return replace(evaluation, layers=(replace(layer, backward_schedule=proof),))


@pytest.fixture
def prover() -> Iterator[Prover]:
    """Put the counting prover in the place of the cost model."""
    with patch("phaze_opt.study.proving.evaluate", Prover()) as stand_in:
        yield stand_in


def open_study(url: str) -> Study:
    """Create a study whose search leaves passes open."""
    study = quick_study(url)
    study.evaluator = open_evaluator
    return study


def shown_proofs(study: Study) -> Any:
    """Return what the JSON of the summary says of the best design's passes."""
    return summary_to_json_dict(study.summary())["best"]["pass_proofs"]


def test_the_end_of_a_run_proves_once(any_url: str, prover: Prover) -> None:
    """The summary says how many passes are proven and how; the trial keeps its value."""
    study = open_study(any_url)
    study.run(2)
    assert prover.calls == [True]
    proofs = shown_proofs(study)
    assert (proofs["passes"], proofs["proven"], proofs["gap"]) == (2, 2, 0.0)
    assert proofs["methods"]["cp-sat"] == 1
    assert proofs["effort"] > 0
    best = study.best()
    assert best is not None and best.evaluation is not None and None not in best.further
    assert [proof.status for proof in proofs_of(best.evaluation)] == ["optimal", "feasible"]
    assert best.metrics.value == best.evaluation.throughput_samples_per_s
    study.run(2)
    assert len(prover.calls) == 1


def test_workers_in_processes_end_with_a_proof(
    sqlite_url: str, prover: Prover, forked_workers: None
) -> None:
    """The program that started them solves; what is still open has its gap."""
    prover.closes = False
    study = open_study(sqlite_url)
    study.run(3, workers=2)
    assert len(prover.calls) == 1
    proofs = shown_proofs(study)
    assert (proofs["proven"], proofs["gap"]) == (1, 0.01)


def test_an_interrupted_proof_is_made_by_the_next_run(sqlite_url: str, prover: Prover) -> None:
    """The first Ctrl-C lets it end, the second gives it up; nothing half is stored."""
    study = open_study(sqlite_url)
    prover.interrupts = 2
    assert study.run(2).exit_code == 130
    assert shown_proofs(study)["effort"] is None
    prover.interrupts = 1
    assert study.run(2).exit_code == 130
    assert shown_proofs(study)["proven"] == 2
    assert study.run(2).exit_code is None
    assert len(prover.calls) == 2


def test_a_stopped_run_proves_nothing(sqlite_url: str, prover: Prover) -> None:
    """Its best design may still change."""
    study = open_study(sqlite_url)
    study.run(3, on_progress=lambda progress: study.stop() if progress.counts.done == 1 else None)
    assert not prover.calls
    assert shown_proofs(study)["effort"] is None
    study.run(3)
    assert len(prover.calls) == 1


def test_every_workload_is_proven(sqlite_url: str, prover: Prover) -> None:
    """A design for several workloads has what is proven of each."""
    spec = toy_spec(
        model=None,
        workloads=(WorkloadSpec("one"), WorkloadSpec("two")),
        space=Space.phaze(microbatch=(2, 2), recompute=["none"]),
        search=SearchSpec(sampler="random", trials=2, seed=7),
    )
    storage = open_storage(sqlite_url, create=True)
    study = create_study(spec, storage, workload=(TOY, replace(TOY, parameters=20)))
    study.evaluator = open_evaluator
    study.run()
    assert len(prover.calls) == 2
    shown = summary_to_json_dict(study.summary())["best"]
    proofs = [workload["pass_proofs"] for workload in shown["workloads"]]
    assert [proof["proven"] for proof in proofs] == [2, 2]
    assert shown["pass_proofs"] == proofs[0]


def test_nothing_open_needs_no_proof(sqlite_url: str, prover: Prover) -> None:
    """What the fast methods have proven is proven."""
    study = quick_study(sqlite_url)
    study.run(2)
    assert not prover.calls
    assert shown_proofs(study)["proven"] == shown_proofs(study)["passes"] == 2


def test_a_copy_has_the_proof(sqlite_url: str, tmp_path: Path, prover: Prover) -> None:
    """In another database too."""
    study = open_study(sqlite_url)
    study.run(2)
    copy = copy_study(
        study, "copy", open_storage(f"sqlite:///{tmp_path / 'other.db'}", create=True)
    )
    assert shown_proofs(copy) == shown_proofs(study)


def test_the_effort_is_that_of_whom_it_was_spent_by() -> None:
    """Open passes that only the search has seen have no effort."""
    cluster, chip = load_cluster("tpuv4-ici-flat", 8), load_accelerator("tpuv4-lanes")
    searched = open_evaluator(TOY, chip, cluster, Training(64, 1), {})
    proofs = pass_proofs(searched, None)
    assert (proofs.proven, proofs.gap, proofs.effort) == (1, 0.1, None)
    assert pass_proofs(searched, searched).effort is not None
