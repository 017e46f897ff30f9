"""The study of programs and the command line: create, load, run, return the best design."""

from __future__ import annotations

import importlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import optuna

from phaze_opt.checked import Named, check_fields, checked
from phaze_opt.choices import PlotKind
from phaze_opt.errors import ConflictError, InputError, NotFoundError
from phaze_opt.printing import DrawsPlots, PrintsAsTables
from phaze_opt.spec.freezing import freeze
from phaze_opt.spec.frozen import ResolvedStudy, current_version, documents_of
from phaze_opt.spec.study_spec import StudySpec, check_study_name, read_spec
from phaze_opt.store.leases import DEFAULT_LEASE_S
from phaze_opt.store.opening import open_storage
from phaze_opt.store.storage import Storage
from phaze_opt.store.stored_study import StoredStudy, find_study, new_study
from phaze_opt.store.studies import delete_study, study_uids
from phaze_opt.study.baselines import BaselineResult, find_baselines
from phaze_opt.study.best_design import BestDesign, best_design
from phaze_opt.study.objective import Evaluator, evaluate_point, evaluator_of
from phaze_opt.study.running import Progress, RunOutcome, ignore_progress, run_study
from phaze_opt.study.standing import read_standing
from phaze_opt.study.summary import StudySummary, summarise
from phaze_opt.study.trials import TrialRecord, each_trial, trial_to_json_dict
from phaze_opt.study.watching import ShowStudy
from phaze_opt.workload.graph import Workload

_CREATION_S = 5.0
"""Longest time to wait until another process has finished the creation of a study."""


@dataclass(repr=False)
class Study(StoredStudy, PrintsAsTables, DrawsPlots):
    """A study in a database, from `create_study` or `load_study`; prints as its state.

    Attributes
    ----------
    evaluator
        Evaluates a point; replaced in tests.
    """

    evaluator: Evaluator = field(default=evaluate_point)

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        return f"Study({self.name!r}, {self.storage.shown!r})"

    @checked
    def run(
        self,
        trials: int | None = None,
        *,
        workers: int = 1,
        on_progress: Callable[[Progress], None] = ignore_progress,
        lease_s: float = DEFAULT_LEASE_S,
        show: ShowStudy | None = None,
        dask: str | None = None,
    ) -> RunOutcome:
        """Run until the study has ``trials`` complete trials in total.

        Parameters
        ----------
        trials
            Number of complete trials; by default the number in the spec.
        workers
            Number of processes; a single worker runs in this process.
        on_progress
            Called after trials.
        lease_s
            Seconds without a heartbeat after which a worker loses its trial to others; at most 300.
        show
            Updates the dashboard of the study in every worker, as the command line does with
            `phaze_opt.report.publishing.Publisher`.
        dask
            Address of a dask scheduler, whose workers replace the processes on this machine; they
            reach the database by its URL.

        Raises
        ------
        ConflictError
            If the study was created with another version of the cost model.
        DamagedError
            If rows of the study cannot be read; then nothing is changed.
        InputError
            If a number is not positive, or the lease too long; if ``dask`` is given with several
            ``workers``, is not installed, or has no scheduler.
        """
        self.check_version()
        if dask is not None and workers != 1:
            raise InputError(
                f"workers is {workers}, but the workers are those of the dask cluster {dask}: "
                "leave one of them out."
            )
        return run_study(self, self.evaluator, trials, workers, on_progress, lease_s, show, dask)

    def check_version(self) -> None:
        """Refuse a study of another cost model.

        Raises
        ------
        ConflictError
            If the study was created with another version.
        """
        if self.resolved.cost_model_version != current_version():
            raise ConflictError(
                f"The study {self.name!r} was created with cost-model version "
                f"{self.resolved.cost_model_version}, but this program has {current_version()}; "
                f"'phaze-opt study copy {self.name} NEW --current-version' starts it anew."
            )

    def best(self) -> BestDesign | None:
        """Return the best feasible design by the order of designs; ``None`` if there is none."""
        return best_design(self, read_standing(self))

    def trials(self) -> list[TrialRecord]:
        """Return all trials by number.

        Raises
        ------
        DamagedError
            If a trial cannot be read; the sentence names the first.
        """
        return list(self.each_trial())

    def each_trial(self, numbers: Iterable[int] | None = None) -> Iterator[TrialRecord]:
        """Yield all trials by number, few at a time; see `phaze_opt.study.trials.each_trial`."""
        return each_trial(self, numbers)

    def to_pandas(self) -> Any:
        """Return all trials as the rows of a ``pandas.DataFrame``, with the keys of ``--json``.

        Raises
        ------
        InputError
            If pandas, which only this method needs, is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise InputError(
                "A data frame needs pandas; 'pip install pandas' adds it, and trials() gives the "
                "trials without it."
            ) from None
        return pandas.DataFrame.from_records(map(trial_to_json_dict, self.each_trial()))

    def plot(self, kind: PlotKind = "history") -> Any:
        """Draw it as its page does, as a ``plotly.graph_objects.Figure`` that a notebook shows.

        Parameters
        ----------
        kind
            ``history``, ``area``, ``parallel``, ``breakdown`` or ``importance``, as
            ``phaze-opt plot`` takes it.

        Raises
        ------
        InputError
            If there is no such plot.
        """
        return self._drawn(kind)

    def baselines(self) -> list[BaselineResult]:
        """Return the evaluated baselines, each at its best."""
        return find_baselines(self.resolved, self.storage)

    def summary(self) -> StudySummary:
        """Return the state of the study in numbers."""
        return summarise(self)

    def stop(self) -> None:
        """Ask all workers, on all machines, to begin no further trial."""
        self.office().request_stop(True)

    def delete(self) -> None:
        """Delete the study with its trials and tickets; shared evaluations stay."""
        delete_study(self.name, self.storage)


@checked
def create_study(
    spec: StudySpec | Annotated[Named, "the path of a study file"],
    storage: Storage | str | None = None,
    *,
    name: str | None = None,
    exist_ok: bool = False,
    workload: Workload | Named | Sequence[Workload | Named] | None = None,
) -> Study:
    """Freeze a spec with its captured workloads, and store it in a database.

    Parameters
    ----------
    spec
        A spec, or the path of a study file.
    storage
        Open database, or its URL; by default the environment variable ``PHAZE_STORAGE``, else
        ``sqlite:///phaze.db``. A missing SQLite file is made.
    name
        Name of the study; by default the name in the spec.
    exist_ok
        Whether to return an existing study with this name and an equal hash.
    workload
        A workload, or the name or path of a model, that replaces the model of the spec; several in
        the order of `phaze_opt.spec.freezing.captures`.

    Raises
    ------
    ConflictError
        If a study of this name exists (with ``exist_ok``: with another hash).
    InputError
        If the spec names something unknown.
    """
    if not isinstance(spec, StudySpec):
        spec = read_spec(Path(spec))
    if name is not None:
        check_study_name(name)
        spec = replace(spec, name=name)
    given = [workload] if isinstance(workload, Workload | str | os.PathLike) else workload
    resolved, workloads = freeze(spec, given)
    documents = documents_of(resolved, workloads)
    if not isinstance(storage, Storage):
        # Opened last: a refused spec makes no file.
        storage = open_storage(storage, create=True)
    try:
        with new_study(storage, spec.name, resolved, documents) as stored:
            _name_the_metrics(stored.optuna_study, spec)
    except ConflictError:
        if exist_ok:
            return _existing(spec.name, storage, resolved)
        raise ConflictError(
            f"The study {spec.name!r} exists already in {storage.shown}; choose another --name, "
            "continue it with 'study run', or pass --exist-ok."
        ) from None
    return study_of(stored)


@checked
def load_study(name: str, storage: Storage | str | None = None) -> Study:
    """Load a study by name from an open database or a URL (see `create_study`).

    Raises
    ------
    NotFoundError
        If there is no such study.
    InputError
        If another program made the study, or its row cannot be read.
    """
    if not isinstance(storage, Storage):
        storage = open_storage(storage)
    return study_of(find_study(name, storage))


def study_of(stored: StoredStudy) -> Study:
    """Return a stored study as a study that can run."""
    evaluator = evaluator_of(stored.resolved)
    return Study(stored.storage, stored.name, stored.uid, stored.resolved, evaluator=evaluator)


def list_summaries(storage: Storage) -> tuple[list[StudySummary], dict[str, str]]:
    """Return the state of all studies, and by name the errors of those that cannot be read."""
    summaries: list[StudySummary] = []
    unreadable: dict[str, str] = {}
    for name, uid in study_uids(storage).items():
        if uid is None:
            continue
        try:
            summaries.append(summarise(find_study(name, storage)))
        except (InputError, NotFoundError) as error:
            unreadable[name] = str(error)
    return summaries, unreadable


def _existing(name: str, storage: Storage, resolved: ResolvedStudy) -> Study:
    """Return the existing study with a name, if its hash equals that of the new study."""
    end_s = time.monotonic() + _CREATION_S
    while study_uids(storage).get(name) is None and time.monotonic() < end_s:
        time.sleep(0.05)
    study = load_study(name, storage)
    if study.resolved.hash != resolved.hash:
        raise ConflictError(
            f"The study {name!r} in {storage.shown} was created from another spec, model or "
            "cost-model version; choose another --name or delete it."
        )
    return study


def _name_the_metrics(study: optuna.Study, spec: StudySpec) -> None:
    """Give the values of the trials their names in the dashboard."""
    with warnings.catch_warnings():
        # Optuna marks the method as experimental; the pinned versions have it.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(spec.metric_names))
