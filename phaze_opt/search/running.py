"""Running a study: baselines, tickets, then one worker here or several processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from phaze_opt.errors import InputError
from phaze_opt.search.baselines import evaluate_baselines
from phaze_opt.search.frozen import Baseline
from phaze_opt.search.objective import Evaluator
from phaze_opt.search.processes import WorkerJob, run_processes
from phaze_opt.search.space import contains, params_of
from phaze_opt.search.stopping import StopNow, StopSignals
from phaze_opt.search.store.failures import patiently
from phaze_opt.search.store.leases import LeaseKeeper, expire_dead_workers, new_token
from phaze_opt.search.store.storage import open_storage
from phaze_opt.search.store.tickets import TicketCounts
from phaze_opt.search.worker import TrialCallback, Worker
from phaze_opt.training import Training

if TYPE_CHECKING:
    from phaze_opt.search.study import Study


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes
    ----------
    best_value
        Highest throughput so far; ``None`` where nothing is feasible yet.
    """

    total: int
    counts: TicketCounts
    best_value: float | None


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended.

    Attributes
    ----------
    exit_code
        130 or 143 where a signal ended it, else ``None``.
    failures
        Why trials failed, each reason once.
    """

    total: int
    counts: TicketCounts
    exit_code: int | None
    failures: tuple[str, ...] = ()


def ignore_progress(progress: Progress) -> None:
    """Look away."""


def run_study(
    study: Study,
    trials: int | None,
    workers: int,
    on_progress: Callable[[Progress], None],
    lease_s: float,
) -> RunOutcome:
    """Run until the study has so many complete trials; see `Study.run`."""
    total = study.resolved.spec.search.trials if trials is None else trials
    for what, number in (("trials", total), ("workers", workers)):
        if number < 1:
            raise InputError(f"{what} is {number}, but it must be at least 1.")
    office = study.office(lease_s)

    def report() -> None:
        on_progress(Progress(total, office.counts(), study.best_value()))

    with StopSignals(raise_on_repeat=workers == 1) as stop, suppress(StopNow):
        _run(study, total, workers, lease_s, stop, report)
    counts = patiently(office.counts)
    missing = counts.done < total and not stop.requested
    failures = tuple(patiently(office.reasons)) if missing else ()
    return RunOutcome(total, counts, stop.exit_code, failures)


def worker_main(
    name: str, total: int, lease_s: float, evaluator: Evaluator, stop: StopSignals
) -> None:
    """Open the storage named by the environment, and be one worker of a study."""
    from phaze_opt.search.study import Study

    study = patiently(lambda: Study.open(name, open_storage()))
    study.evaluator = evaluator
    work_on(study, total, lease_s, stop, lambda number, metrics: None)


def work_on(
    study: Study, total: int, lease_s: float, stop: StopSignals, on_trial: TrialCallback
) -> None:
    """Be one worker of a study until it is done."""
    worker = patiently(partial(_new_worker, study, lease_s))
    with LeaseKeeper([worker.office, worker.objective.evaluations], worker.token, lease_s):
        worker.work(total, stop, on_trial)


def _new_worker(study: Study, lease_s: float) -> Worker:
    """Engage a worker under a name of its own."""
    token = new_token()
    return Worker(
        storage=study.storage,
        optuna_study=study.optuna_study,
        study_id=study.optuna_id,
        resolved=study.resolved,
        office=study.office(lease_s),
        objective=study.objective(token, lease_s),
        token=token,
    )


def _run(
    study: Study,
    total: int,
    workers: int,
    lease_s: float,
    stop: StopSignals,
    report: Callable[[], None],
) -> None:
    """Prepare the study, and let the workers begin."""
    prepare = partial(_prepare, study, total, new_token(), lease_s, stop)
    if not patiently(prepare):
        return
    patiently(report)
    if workers == 1:
        work_on(study, total, lease_s, stop, lambda number, metrics: report())
        return
    job = WorkerJob(worker_main, study.name, total, lease_s, study.evaluator)
    run_processes(job, study.storage, workers, stop, report)


def _prepare(study: Study, total: int, token: str, lease_s: float, stop: StopSignals) -> bool:
    """Evaluate the baselines and issue the tickets; False where there is nothing to run."""
    office = study.office(lease_s)
    if office.counts().done >= total:
        return False
    study.check()
    office.request_stop(False)
    expire_dead_workers(study.storage)
    _evaluate_baselines(study, token, lease_s, stop)
    if stop.requested:
        return False
    office.issue(total, _baseline_params(study))
    return True


def _evaluate_baselines(study: Study, token: str, lease_s: float, stop: StopSignals) -> None:
    """Evaluate the baselines, each under every training option, unless that was done."""
    if len(study.baselines()) == len(study.resolved.baselines):
        return
    objective = study.objective(token, lease_s)

    def evaluate(baseline: Baseline, training: Training) -> None:
        if not stop.requested:
            objective.evaluate(baseline.accelerator, training)

    with LeaseKeeper([objective.evaluations], token, lease_s):
        evaluate_baselines(study.resolved, evaluate)


def _baseline_params(study: Study) -> list[dict[str, Any]]:
    """Return the baselines that lie in the space as parameters: they are the first trials."""
    space = study.resolved.spec.space
    return [
        params_of(space, baseline.point)
        for baseline in study.baselines()
        if baseline.point is not None and contains(space, baseline.point)
    ]
