"""Runs a study: baselines, tickets, one worker here or several processes, the proof of the best."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from phaze_opt.errors import InputError
from phaze_opt.garbage import KeptSoFar
from phaze_opt.limits import MOST_TRIALS, MOST_WORKERS, check_size
from phaze_opt.spec.objectives import Measured
from phaze_opt.spec.space import DesignPoint, params_of
from phaze_opt.store.caches import EvaluationCache, ScheduleCache
from phaze_opt.store.failures import DatabaseError, LostConnectionError, patiently
from phaze_opt.store.leases import LeaseKeeper, expire_dead_workers, new_token
from phaze_opt.store.opening import open_storage, reading_once
from phaze_opt.store.presence import present
from phaze_opt.store.stored_study import StoredStudy, find_study
from phaze_opt.store.tables import LONGEST_LEASE_S
from phaze_opt.store.ticket import TicketCounts
from phaze_opt.store.trial_storage import RunningTrials
from phaze_opt.study.baselines import (
    baseline_inputs,
    find_baselines,
    find_reference,
    why_not_found,
)
from phaze_opt.study.best_design import best_design
from phaze_opt.study.lasting_executors import POLL_S, dask_executor
from phaze_opt.study.neighbourhood import evaluated_steps
from phaze_opt.study.objective import Evaluator, Objective
from phaze_opt.study.processes import StopNow, StopSignals, WorkerJob, WorkerProcesses
from phaze_opt.study.proving import prove_best
from phaze_opt.study.standing import prepare_trials, read_standing
from phaze_opt.study.trials import Metrics
from phaze_opt.study.watching import ShowStudy, Watcher
from phaze_opt.study.worker import TrialCallback, Worker
from phaze_opt.units import counted


@dataclass(frozen=True)
class Progress:
    """The state of a run.

    Attributes
    ----------
    total
        Target number of complete trials.
    best_value
        Best value so far; ``None`` before the first feasible trial, and with several objectives.
    unit
        Unit of this value.
    """

    total: int
    counts: TicketCounts
    best_value: float | None
    unit: str


@dataclass(frozen=True)
class RunOutcome:
    """The end of a run.

    Attributes
    ----------
    total
        Target number of complete trials.
    exit_code
        130 or 143 if a signal ended the run, else ``None``.
    failures
        Reasons of failed trials, each once.
    is_proven
        Whether the run ended because no remaining point can be better than the best.
    """

    total: int
    counts: TicketCounts
    exit_code: int | None
    failures: tuple[str, ...] = ()
    is_proven: bool = False

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or ``study stop`` ended the run before its target."""
        missing = self.counts.done < self.total and not self.failures and not self.is_proven
        return self.exit_code is not None or missing

    def __str__(self) -> str:
        done = self.counts.done
        beyond = f"; {self.total} were asked for" if done > self.total else ""
        if self.is_proven:
            return (
                f"{counted(done, 'trial')} complete: the best is proven, no other design is better"
            )
        return f"{done:,} of {counted(max(done, self.total), 'trial')} complete{beyond}"


@dataclass(frozen=True)
class StudyRun:
    """The common arguments of all parts of a run; see `run_study`."""

    study: StoredStudy
    evaluator: Evaluator
    total: int
    lease_s: float
    stop: StopSignals
    show: ShowStudy | None = None

    def objective(self, token: str, reference: Sequence[Measured] = ()) -> Objective:
        """Return the objective, with the caches of the database."""
        return Objective(
            self.study.resolved,
            self.study.workloads(),
            EvaluationCache(self.study.storage, token, self.lease_s),
            ScheduleCache(self.study.storage),
            self.evaluator,
            reference,
        )


def ignore_progress(progress: Progress) -> None:
    """Ignore the progress of a run."""


def run_study(
    study: StoredStudy,
    evaluator: Evaluator,
    trials: int | None,
    workers: int,
    on_progress: Callable[[Progress], None],
    lease_s: float,
    show: ShowStudy | None = None,
    dask: str | None = None,
) -> RunOutcome:
    """Run until the study has ``trials`` complete trials in total.

    Parameters
    ----------
    evaluator
        Evaluates a point.
    trials, workers, on_progress, lease_s, show, dask
        See `phaze_opt.study.study.Study.run`.

    Raises
    ------
    NotFoundError
        If the study was deleted during the run.
    """
    total = study.resolved.spec.search.trials if trials is None else trials
    check_size("trials", total, MOST_TRIALS)
    check_size("workers", workers, MOST_WORKERS)
    if not 0.0 < lease_s <= LONGEST_LEASE_S / 2:
        raise InputError(f"lease_s is {lease_s:g}, but it must be in (0, {LONGEST_LEASE_S / 2:g}].")
    office = study.office(lease_s)

    spec = study.resolved.spec
    unit = spec.objective_kinds[0].unit if len(spec.runs) == 1 else f"× {spec.reference}"

    def report() -> int:
        counts = office.counts()
        on_progress(Progress(total, counts, study.best_value(), unit))
        return counts.done + counts.failed

    with StopSignals(raise_on_repeat=workers == 1) as stop, suppress(StopNow):
        run = StudyRun(study, evaluator, total, lease_s, stop, show)
        if not patiently(partial(_is_done, run)):
            with present(study, new_token(), lease_s):
                if dask is not None:
                    _run_on_dask(run, dask, report)
                else:
                    watched = on_progress is not ignore_progress
                    _run_trials(run, workers, report, is_watched=watched)
        if patiently(partial(_is_done, run)) and not stop.requested:
            patiently(partial(_prove_best, run, new_token()))
            patiently(partial(_evaluate_steps, run))
    with suppress(DatabaseError):
        study.check_exists()
        Watcher(study, show).finish()
    counts, proven = patiently(office.counts), patiently(office.is_proven)
    missing = counts.done < total and not stop.requested and not proven
    failures = tuple(patiently(office.reasons)) if missing else ()
    return RunOutcome(total, counts, stop.exit_code, failures, proven)


def worker_main(job: WorkerJob, stop: StopSignals, url: str | None = None) -> None:
    """Open a storage, by default that of the environment, and work on a study as a worker."""
    study = patiently(lambda: find_study(job.name, open_storage(url)))
    run = StudyRun(study, job.evaluator, job.total, job.lease_s, stop, job.show)
    _work_on(run, lambda number, metrics: None, is_alone=False)


def _run_trials(
    run: StudyRun, workers: int, report: Callable[[], int], *, is_watched: bool
) -> None:
    """Prepare the tickets, then work in this process, or in processes that start meanwhile."""
    prepare = partial(_prepare, run, new_token())
    if workers == 1:

        def on_trial(number: int, metrics: Metrics) -> None:
            if is_watched:
                report()

        if patiently(prepare):
            patiently(report)
            _work_on(run, on_trial, is_alone=True)
        return
    job = WorkerJob(worker_main, run.study.name, run.total, run.lease_s, run.evaluator, run.show)
    with WorkerProcesses(job, run.study.storage, workers, run.stop) as processes:
        if patiently(prepare):
            patiently(report)
            processes.run(report)


def _run_on_dask(run: StudyRun, address: str, report: Callable[[], int]) -> None:
    """Prepare the tickets, then let a worker work in every thread of a dask cluster.

    Signals reach this process only: it asks the workers by the database to begin no trial more.
    """
    storage = run.study.storage
    job = WorkerJob(worker_main, run.study.name, run.total, run.lease_s, run.evaluator, run.show)
    url = storage.url.render_as_string(hide_password=False)
    with dask_executor(address) as (executor, workers):
        if not patiently(partial(_prepare, run, new_token())):
            return
        work = partial(worker_main, job, StopSignals(), url)
        tasks, asked = [executor.submit(work) for _ in range(workers)], False
        while sum(task.is_done() for task in tasks) < workers:
            with suppress(LostConnectionError):
                report()
            if run.stop.requested and not asked:
                patiently(partial(run.study.office(run.lease_s).request_stop, True))
                asked = True
            time.sleep(POLL_S)
        errors = [error for task in tasks if (error := task.error()) is not None]
        if len(errors) == workers:
            raise errors[0]


def _work_on(run: StudyRun, on_trial: TrialCallback, *, is_alone: bool) -> None:
    """Work on a study as a worker until it is done."""
    worker = patiently(partial(_new_worker, run, is_alone))
    keeper = LeaseKeeper([worker.office, worker.objective.evaluations], worker.token, run.lease_s)
    with keeper, KeptSoFar() as kept:

        def count(number: int, metrics: Metrics) -> None:
            # After a trial, all modules that trials need are imported.
            kept.begin()
            on_trial(number, metrics)

        worker.work(run.total, run.stop, count)


def _new_worker(run: StudyRun, is_alone: bool) -> Worker:
    """Make a worker with a new token."""
    token = new_token()
    reading = replace(run.study, storage=reading_once(run.study.storage))
    return Worker(
        storage=run.study.storage,
        optuna_study=reading.optuna_study,
        study_id=run.study.optuna_id,
        trials=cast(RunningTrials, reading.storage.optuna),
        resolved=run.study.resolved,
        office=run.study.office(run.lease_s),
        objective=run.objective(token, find_reference(run.study.resolved, run.study.storage)),
        token=token,
        watcher=Watcher(reading, run.show),
        is_alone=is_alone,
    )


def _is_done(run: StudyRun) -> bool:
    """Whether the study has its target, or its best is proven."""
    office = run.study.office(run.lease_s)
    return office.counts().done >= run.total or office.is_proven()


def _prepare(run: StudyRun, token: str) -> bool:
    """Evaluate the baselines and issue the tickets; False if a signal came before the end."""
    study, office = run.study, run.study.office(run.lease_s)
    prepare_trials(study)
    office.request_stop(False)
    expire_dead_workers(study.storage)
    office.set_target(run.total)
    evaluate_baselines(run, token)
    if run.stop.requested:
        return False
    office.issue(run.total, baseline_params(study))
    return True


def evaluate_baselines(run: StudyRun, token: str) -> None:
    """Evaluate all baselines under every training option, unless they are evaluated."""
    resolved = run.study.resolved
    if len(find_baselines(resolved, run.study.storage)) == len(resolved.baselines):
        return
    objective = run.objective(token)
    with LeaseKeeper([objective.evaluations], token, run.lease_s):
        for baseline in resolved.baselines:
            for inputs in baseline_inputs(resolved, baseline).values():
                if not run.stop.requested:
                    objective.evaluate(inputs)


def _prove_best(run: StudyRun, token: str) -> None:
    """Solve the open passes of the best design further, unless they are solved."""
    evaluations = EvaluationCache(run.study.storage, token, run.lease_s)
    with LeaseKeeper([evaluations], token, run.lease_s):
        prove_best(run.study, evaluations)


def _evaluate_steps(run: StudyRun) -> None:
    """Evaluate the designs one step from the best design, if a dashboard shows them."""

    def evaluate() -> None:
        best = best_design(run.study, read_standing(run.study))
        if best is not None:
            evaluated_steps(run.study, run.evaluator, best)

    Watcher(run.study, run.show).prepare(evaluate)


def baseline_params(study: StoredStudy) -> list[dict[str, Any]]:
    """Return the parameters of the baselines in the space, which are the first trials."""
    space = study.resolved.spec.space
    first_trials: list[dict[str, Any]] = []
    for baseline in find_baselines(study.resolved, study.storage):
        for run in baseline.runs:
            # Several workloads may be at their best under different options.
            if run is None:
                continue
            chip = run.design.accelerator
            if why_not_found(study.resolved, chip, run.values) is None:
                params = params_of(space, DesignPoint(tuple(run.values.items())))
                if params not in first_trials:
                    first_trials.append(params)
    return first_trials
