"""The study, as programs and the command line use it: create, open, run, ask for the answer."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from phaze_opt.codec import from_json
from phaze_opt.errors import ConflictError, InputError, NotFoundError
from phaze_opt.search.baselines import BaselineResult, find_baselines
from phaze_opt.search.frozen import ResolvedStudy, resolve
from phaze_opt.search.objective import Evaluator, Objective, evaluate_point
from phaze_opt.search.results import (
    BestDesign,
    StudySummary,
    TrialRecord,
    best_design,
    read_trial,
    summarise,
)
from phaze_opt.search.running import Progress, RunOutcome, ignore_progress, run_study
from phaze_opt.search.spec import StudySpec, check_study_name
from phaze_opt.search.store.caches import EvaluationCache, ScheduleCache
from phaze_opt.search.store.damage import DamagedError, check_trial, damages, read_all_trials
from phaze_opt.search.store.failures import database_errors
from phaze_opt.search.store.leases import DEFAULT_LEASE_S
from phaze_opt.search.store.storage import Storage, open_storage
from phaze_opt.search.store.studies import (
    UID_KEY,
    delete_study,
    find_row,
    store_frozen,
    study_uids,
    uid_of,
    undone_on_error,
    unpack_workload,
)
from phaze_opt.search.store.tables import WorkloadRow
from phaze_opt.search.store.tickets import TicketOffice
from phaze_opt.workload.graph import Workload

_CREATION_S = 5.0
"""For how long another process may be about to finish the creation of a study."""

METRIC = "throughput_samples_per_s"


@dataclass
class Study:
    """A study in a database.

    Attributes
    ----------
    resolved
        What was frozen when it was created.
    evaluator
        Evaluates one point; replaced in tests.
    """

    storage: Storage
    name: str
    uid: str
    resolved: ResolvedStudy
    evaluator: Evaluator = field(default=evaluate_point, repr=False)

    @classmethod
    def create(
        cls,
        spec: StudySpec,
        storage: Storage | str | None = None,
        *,
        name: str | None = None,
        exist_ok: bool = False,
        workload: Workload | None = None,
        cost_model_version: str | None = None,
    ) -> Self:
        """Freeze a spec, with its captured workload, into a database.

        Parameters
        ----------
        storage
            Open database, or its URL; see `resolve_url`.
        name
            Instead of the spec's.
        exist_ok
            Return a study of this name that has the same hash.
        workload, cost_model_version
            Instead of the captured model and of this program's version.

        Raises
        ------
        ConflictError
            If a study of this name exists (with ``exist_ok``: with another hash).
        InputError
            If the spec names something unknown.
        """
        if not isinstance(storage, Storage):
            storage = open_storage(storage, create=True)
        if name is not None:
            check_study_name(name)
            spec = replace(spec, name=name)
        workload = capture(spec) if workload is None else workload
        resolved = resolve(spec, workload, cost_model_version or current_version())
        uid = str(uuid.uuid4())
        with database_errors(storage.shown):
            try:
                made = optuna.create_study(
                    storage=storage.optuna, study_name=spec.name, direction="maximize"
                )
            except DuplicatedStudyError:
                return cls._existing(spec.name, storage, resolved, exist_ok)
            with undone_on_error(storage, spec.name, uid):
                store_frozen(storage, uid, resolved, workload, spec.name)
                with warnings.catch_warnings():
                    # Optuna calls it experimental; the versions that we pin have it.
                    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                    made.set_metric_names([METRIC])
                made.set_user_attr(UID_KEY, uid)
        return cls(storage, spec.name, uid, resolved)

    @classmethod
    def _existing(
        cls, name: str, storage: Storage, resolved: ResolvedStudy, exist_ok: bool
    ) -> Self:
        """Return the study that is there already, if that was asked for and it is the same."""
        if not exist_ok:
            raise ConflictError(
                f"The study {name!r} exists already in {storage.shown}; choose another --name, "
                "continue it with 'study run', or pass --exist-ok."
            )
        end_s = time.monotonic() + _CREATION_S
        while study_uids(storage).get(name) is None and time.monotonic() < end_s:
            time.sleep(0.05)
        study = cls.open(name, storage)
        if study.resolved.hash != resolved.hash:
            raise ConflictError(
                f"The study {name!r} in {storage.shown} was created from another spec, model or "
                "cost-model version; choose another --name or delete it."
            )
        return study

    @classmethod
    def open(cls, name: str, storage: Storage | str | None = None) -> Self:
        """Open a study by name, in an open database or in that of a URL (see `resolve_url`).

        Raises
        ------
        NotFoundError
            If there is none.
        """
        if not isinstance(storage, Storage):
            storage = open_storage(storage)
        uid = uid_of(name, storage)
        row = None if uid is None else find_row(storage, uid)
        if row is None:
            raise InputError(f"The study {name!r} in {storage.shown} was not made by phaze-opt.")
        with damages(f"The stored study {name!r}"):
            resolved = from_json(row.resolved, ResolvedStudy, f"stored study {name!r}")
        return cls(storage, name, row.uid, resolved)

    @property
    def optuna_study(self) -> optuna.Study:
        """The trials."""
        with self._reading():
            return optuna.load_study(study_name=self.name, storage=self.storage.optuna)

    def workload(self) -> Workload:
        """Return the captured workload that was stored with the study.

        Raises
        ------
        DamagedError
            If it is missing, or something else.
        """
        with self.storage.reading() as session:
            row = session.get(WorkloadRow, self.resolved.workload_hash)
        if row is None:
            raise DamagedError(f"The workload of the study {self.name!r} is missing.")
        with damages(f"The stored workload of the study {self.name!r}"):
            return unpack_workload(row.body, self.name)

    def office(self, lease_s: float = DEFAULT_LEASE_S) -> TicketOffice:
        """Return the tickets of the study."""
        return TicketOffice(self.storage, self.uid, lease_s)

    def run(
        self,
        trials: int | None = None,
        *,
        workers: int = 1,
        on_progress: Callable[[Progress], None] = ignore_progress,
        lease_s: float = DEFAULT_LEASE_S,
    ) -> RunOutcome:
        """Run until the study has so many complete trials in total.

        Parameters
        ----------
        trials
            In total; by default what the spec says.
        workers
            Processes; one runs in this process.
        on_progress
            Called after trials.
        lease_s
            After which a worker that gives no sign of life loses its trial.

        Raises
        ------
        ConflictError
            If the study was created with another version of the cost model.
        DamagedError
            If rows of the study cannot be read; nothing is changed then.
        InputError
            If a number is not positive.
        """
        self._check_version()
        return run_study(self, trials, workers, on_progress, lease_s)

    def objective(self, token: str, lease_s: float) -> Objective:
        """Return the objective, with the caches of the database."""
        return Objective(
            self.resolved,
            self.workload(),
            EvaluationCache(self.storage, token, lease_s),
            ScheduleCache(self.storage),
            self.evaluator,
        )

    def _check_version(self) -> None:
        """Refuse to mix the numbers of two cost models."""
        if self.resolved.cost_model_version != current_version():
            raise ConflictError(
                f"The study {self.name!r} was created with cost-model version "
                f"{self.resolved.cost_model_version}, but this program has {current_version()}; "
                f"'phaze-opt study copy {self.name} NEW --current-version' starts it anew."
            )

    def best_value(self) -> float | None:
        """Return the highest throughput so far."""
        number = self.optuna_id
        with self._reading():
            try:
                trial = self.storage.optuna.get_best_trial(number)
            except (ValueError, KeyError):
                return None
            return trial.values[0] if trial.values and trial.values[0] > 0 else None

    @property
    def optuna_id(self) -> int:
        """Optuna's number of the study, which a rename in the dashboard changes."""
        with self._reading():
            return self.storage.optuna.get_study_id_from_name(self.name)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn what Optuna raises into one sentence."""
        with database_errors(self.storage.shown), damages(f"The study {self.name!r}"):
            try:
                yield
            except KeyError:
                raise NotFoundError(
                    f"The study {self.name!r} was deleted or renamed meanwhile."
                ) from None

    def trials(self) -> list[TrialRecord]:
        """Return all trials by number.

        Raises
        ------
        DamagedError
            Naming the first trial that cannot be read.
        """
        return [self._read(trial) for trial in self._stored_trials()]

    def check(self) -> None:
        """Read what a run or a copy reads, before it changes anything.

        Raises
        ------
        DamagedError
            If rows of the study are not what this program writes.
        """
        what = f"the study {self.name!r}"
        for trial in self._stored_trials():
            self._read(trial)
            with damages(f"Trial {trial.number} of {what}"):
                check_trial(trial, self.resolved.spec.space)
        with self._reading():
            if self.optuna_study.directions != [StudyDirection.MAXIMIZE]:
                raise ValueError("it must have one value, which is maximised")
        self.office().check(what)
        self.workload()

    def _stored_trials(self) -> list[FrozenTrial]:
        """Read the trials as Optuna has them."""
        with database_errors(self.storage.shown):
            what = f"the study {self.name!r}"
            return read_all_trials(self.storage, self.optuna_id, what)

    def _read(self, trial: FrozenTrial) -> TrialRecord:
        """Read one trial."""
        with damages(f"Trial {trial.number} of the study {self.name!r}"):
            return read_trial(self.resolved, trial)

    def best(self) -> BestDesign | None:
        """Return the best feasible design by the order of designs; ``None`` where there is none."""
        return best_design(self.trials(), self.storage, self.baselines())

    def baselines(self) -> list[BaselineResult]:
        """Return the baselines that are evaluated."""
        return find_baselines(self.resolved, self.storage)

    def summary(self) -> StudySummary:
        """Return the state of the study in numbers."""
        trials = self.trials()
        best = best_design(trials, self.storage, self.baselines())
        office = self.office()
        return summarise(self.name, self.resolved, trials, best, office.counts(), office.reasons())

    def stop(self) -> None:
        """Ask all workers, wherever they are, to begin no further trial."""
        self.office().request_stop(True)

    def delete(self) -> None:
        """Delete the study with its trials and tickets; evaluations are shared, and stay."""
        delete_study(self.name, self.storage)


def current_version() -> str:
    """Return the version of this program's cost model."""
    from phaze_opt.evaluation import COST_MODEL_VERSION

    return COST_MODEL_VERSION


def check_names(spec: StudySpec) -> ResolvedStudy:
    """Look up every name of a spec, the model's too, without capturing it.

    Raises
    ------
    InputError
        If one is unknown.
    """
    from phaze_opt.workload.zoo import widths

    allowed = widths(spec.model)
    for width in spec.tensor_parallel:
        if width not in allowed:
            raise InputError(
                f"tensor_parallel holds {width}, but {spec.model} can be split over "
                f"{', '.join(map(str, allowed))} devices."
            )
    shape_only = Workload(model=spec.model, sequence=1, parameters=0, variants=())
    return resolve(spec, shape_only, current_version())


def capture(spec: StudySpec) -> Workload:
    """Capture the model at every microbatch and width that the study may use."""
    from phaze_opt.workload.zoo import load_workload

    return load_workload(
        spec.model,
        tensor_parallel=spec.tensor_parallel,
        microbatch=spec.space.microbatch.values,
        sequence_parallel=spec.sequence_parallel,
        sequence=spec.sequence,
    )
