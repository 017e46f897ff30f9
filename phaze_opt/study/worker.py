"""A worker: claims tickets, asks for points, evaluates and tells, until no ticket is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from phaze_opt.errors import InputError, NotFoundError, PhazeError
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.sampler_options import sampler_options
from phaze_opt.spec.space import Space, distributions, point_of
from phaze_opt.store.enumerations import BoundStore
from phaze_opt.store.failures import DatabaseError, database_errors, patiently
from phaze_opt.store.storage import Storage
from phaze_opt.store.ticket import Ticket
from phaze_opt.store.tickets import MOST_DEATHS, TicketOffice, point_key
from phaze_opt.store.trial_facts import FactsOfStudy, write_facts
from phaze_opt.store.trial_storage import RunningTrials, write
from phaze_opt.study.guided import best_bound_first
from phaze_opt.study.objective import Objective
from phaze_opt.study.past_trials import read_past
from phaze_opt.study.processes import StopNow, StopSignals
from phaze_opt.study.samplers.bound import BestBoundFirst
from phaze_opt.study.samplers.by_name import Samplers
from phaze_opt.study.standing import facts_of
from phaze_opt.study.trials import METRICS_KEY, Metrics, metrics_to_plain, read_trial, trial_cost
from phaze_opt.study.watching import Watcher

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial


CONSTRAINT_KEY = "violation"
DASHBOARD_CONSTRAINTS_KEY = "constraints"
"""Under this key Optuna Dashboard reads whether a trial is feasible."""

_WAIT_S = 0.2
_OFFERED = 8
"""Number of points to offer at once: other workers may take the first points meanwhile."""

TrialCallback = Callable[[int, Metrics], None]


@dataclass
class Worker:
    """A worker on a study.

    Attributes
    ----------
    optuna_study, study_id
        Optuna's object and number of the study; the object gets a new sampler for each trial.
    trials
        The storage of that object.
    token
        Name under which the worker holds tickets and evaluations.
    watcher
        Passes its trials to the dashboard.
    is_alone
        Whether no other worker was started with it.
    samplers
        Samplers by ticket.
    guide
        Points by bound, if the sampler is ``bound``; else ``None``.
    """

    storage: Storage
    optuna_study: Study
    study_id: int
    trials: RunningTrials
    resolved: ResolvedStudy
    office: TicketOffice
    objective: Objective
    token: str
    watcher: Watcher
    is_alone: bool
    samplers: Samplers = field(init=False)
    guide: BestBoundFirst | None = field(init=False)
    _claimed: set[str] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        spec = self.resolved.spec
        search, space = spec.search, distributions(spec.space)
        cost = partial(trial_cost, self.resolved)
        options = sampler_options(spec.sampler, search.options)
        self.samplers = Samplers(spec.sampler, search.seed, space, cost, options)
        self.guide = None
        if spec.sampler == "bound":
            objective, store = self.objective, BoundStore(self.storage)
            self.guide = best_bound_first(
                self.resolved, objective.workloads, objective.reference, store, cost
            )
        self._take_past()

    def _take_past(self) -> None:
        """Take in the trials that are finished; the others are read when they are needed."""
        replay = self.samplers.replay if self.guide is None else self.guide.replay
        if replay is not None:
            name, uid = self.optuna_study.study_name, self.office.study_uid
            facts = FactsOfStudy(self.storage, name, uid)
            past = read_past(self.resolved, facts, self.study_id, replay.grid)
            replay.settle(past.replayed)
            self.trials.skip(self.study_id, past.last_row)

    def work(self, total: int, stop: StopSignals, on_trial: TrialCallback) -> None:
        """Run trials until ``total`` are complete, no ticket is left, or a stop is requested.

        Raises
        ------
        LostConnectionError
            If the database is lost for about a minute.
        """
        left = True
        try:
            while left and not stop.requested:
                left = patiently(partial(self._step, total, stop, on_trial), self._recover)
        except StopNow:
            # The signal may have come between the claim of a ticket and its trial.
            patiently(self._recover)
            raise

    def _step(self, total: int, stop: StopSignals, on_trial: TrialCallback) -> bool:
        """Serve a ticket, or wait for tickets of other workers; False when none is left."""
        if stop.requested:
            return False
        with database_errors(self.storage.shown):
            if not self.office.stop_requested() and not self._is_proven():
                ticket = self._claim(total)
                if ticket is not None:
                    self._serve(ticket, on_trial)
                    return True
                counts = self.office.counts()
                if counts.done < total and counts.left > 0:
                    time.sleep(_WAIT_S)
                    return True
            self._close_orphans()
            return False

    def _claim(self, total: int) -> Ticket | None:
        """Take a ticket, with a point if the sampler offers points."""
        offers = self._offers()
        ticket = self.office.claim(self.token, total, offers)
        if ticket is None:
            # Others may have taken all points that were offered.
            self._claimed = None
        elif self._claimed is not None and ticket.params is not None:
            self._claimed.add(point_key(ticket.params))
        return ticket

    def _is_proven(self) -> bool:
        """Whether no remaining point can be better than the best trial."""
        if self.guide is None:
            return False
        if self.office.is_proven():
            return True
        self.guide.read(self.optuna_study.get_trials(deepcopy=False))
        if not self.guide.is_proven:
            return False
        self.office.mark_proven()
        return True

    def _offers(self) -> list[Mapping[str, Any]] | None:
        """Return the points that a ticket may take; ``None`` if its sampler proposes the point."""
        if self.guide is None:
            return None
        if self._claimed is None:
            self._claimed = self.office.claimed()
        claimed = self._claimed

        def is_claimed(params: Mapping[str, Any]) -> bool:
            return point_key(params) in claimed

        points = self.guide.next_points(_OFFERED, is_claimed)
        if not points and self.office.counts().held == 0:
            # All points that may be better are tried, but a trial failed: nothing will be proven.
            points = self.guide.next_points(_OFFERED, is_claimed, beyond=True)
            if not points:
                return None
        return points

    def _serve(self, ticket: Ticket, on_trial: TrialCallback) -> None:
        """Run the trial of a ticket, after settling the trial of its previous holder."""
        params = ticket.params
        if ticket.last_trial_number is not None:
            last = self._settle(ticket.last_trial_number)
            if last is not None and last.state == TrialState.COMPLETE:
                self.office.finish(ticket)
                return
            if params is None and last is not None and self._is_point(last.params):
                params = last.params
            self.office.remember(ticket, params)
        if ticket.is_deadly:
            point = "" if params is None else f" at {dict(params)}"
            reason = f"{MOST_DEATHS} workers in turn died on trial {ticket.k}{point}."
            self.office.fail(ticket, reason)
            return
        if ticket.rest_s and (ticket.is_witnessed or not self.is_alone):
            self.office.give_back(ticket, ticket.rest_s)
            return
        if params is not None and not self._is_point(params):
            params = None
        self._run_trial(ticket, params, on_trial)

    def _run_trial(self, ticket: Ticket, params: Any, on_trial: TrialCallback) -> None:
        """Ask, evaluate and tell."""
        self.optuna_study.sampler = self.samplers.for_ticket(ticket.k, params)
        trial: Trial | None = None
        try:
            with database_errors(self.storage.shown):
                trial = self._ask(ticket)
                if trial is None:
                    return
                params = suggest(trial, self.resolved.spec.space)
                write(trial)
                metrics = self.objective(point_of(self.resolved.spec.space, params))
                counted = self._tell(ticket, trial, metrics)
        except StopNow:
            self._give_back(ticket, trial.number if trial else None)
            raise
        except DatabaseError:
            raise
        except MemoryError:
            # As if the kernel had killed the worker: other processes may have taken the memory.
            self.office.lose(ticket)
        except Exception as error:
            self._check_study()
            if trial is not None:
                self._close(trial.number)
            sentence = str(error) if isinstance(error, PhazeError) else repr(error)
            self.office.fail(ticket, f"Trial {ticket.k}: {sentence}")
        else:
            if counted:
                on_trial(trial.number, metrics)
                self.watcher.told()

    def _ask(self, ticket: Ticket) -> Trial | None:
        """Make the trial of a ticket; ``None`` where another worker has taken the ticket since."""
        assign = self.office.assign_in
        with self.trials.join(
            lambda session, made: assign(session, ticket, made.number)
        ) as assigned:
            trial = self.optuna_study.ask()
        if not assigned:
            # The trial was made before: somebody has put it in Optuna's queue.
            assigned.append(self.office.assign(ticket, trial.number))
        if not assigned[-1]:
            self._close(trial.number)
            return None
        return trial

    def _tell(self, ticket: Ticket, trial: Trial, metrics: Metrics) -> bool:
        """Finish a trial and its ticket; False where another worker has either of them since."""
        try:
            trial.set_user_attr(METRICS_KEY, metrics_to_plain(metrics))
            trial.set_constraint(CONSTRAINT_KEY, metrics.violation)
            trial.storage.set_trial_system_attr(
                trial._trial_id, DASHBOARD_CONSTRAINTS_KEY, [metrics.violation]
            )
            self.watcher.telling(trial, metrics)
            with self.trials.join(partial(self._finish_in, ticket)) as finished:
                self.optuna_study.tell(trial, list(metrics.values))
        except UpdateFinishedTrialError:
            return False
        except ValueError:
            # Optuna raises this if the trial was closed between its check and its write.
            if self._find(trial.number).state.is_finished():
                return False
            raise
        if not finished:
            return self.office.finish(ticket)
        if finished[-1]:
            self.office.acquit_others(ticket)
        return finished[-1]

    def _finish_in(self, ticket: Ticket, session: Any, trial: FrozenTrial) -> bool:
        """Close a ticket and write the facts of its trial, in the transaction that ends both."""
        facts = facts_of(self.resolved, read_trial(self.resolved, trial))
        write_facts(session, self.office.study_uid, {trial._trial_id: facts})
        return self.office.finish_in(session, ticket)

    def _recover(self) -> None:
        """After a lost connection, settle and give back all tickets of this worker."""
        with database_errors(self.storage.shown):
            # Claims are renewed while this worker lives: the next holder would wait for them.
            self.objective.evaluations.release_claims()
            for ticket in self.office.held_by(self.token):
                self._give_back(ticket, ticket.last_trial_number)

    def _give_back(self, ticket: Ticket, number: int | None) -> None:
        """Open a ticket again, and keep the parameters of its trial."""
        trial = None if number is None else self._settle(number)
        if trial is not None and trial.state == TrialState.COMPLETE:
            self.office.finish(ticket)
            return
        params = trial.params if trial is not None and self._is_point(trial.params) else None
        self.office.remember(ticket, params or ticket.params)
        self.office.give_back(ticket)

    def _check_study(self) -> None:
        """Check that the study still exists.

        Raises
        ------
        NotFoundError
            If it was deleted, or renamed in the dashboard, which makes a new study.
        """
        try:
            self.storage.optuna.get_study_name_from_id(self.study_id)
        except KeyError:
            raise NotFoundError(
                f"The study {self.optuna_study.study_name!r} was deleted or renamed while it ran."
            ) from None

    def _settle(self, number: int) -> FrozenTrial | None:
        """Close the trial of a previous holder unless it is finished; return it if it exists."""
        try:
            self._close(number)
            return self._find(number)
        except KeyError:
            return None

    def _close(self, number: int) -> None:
        """Set a trial to FAIL unless it is finished."""
        storage = self.storage.optuna
        try:
            trial_id = storage.get_trial_id_from_study_id_trial_number(self.study_id, number)
            storage.set_trial_state_values(trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            return

    def _close_orphans(self) -> None:
        """Close running trials without a ticket: their worker died before it wrote the number."""
        running = self.storage.optuna.get_all_trials(
            self.study_id, deepcopy=False, states=(TrialState.RUNNING,)
        )
        if not running:
            return
        # Read after the trials, so that the holder of each trial has written its number.
        named = self.office.running_trials()
        if named is None:
            return
        for trial in running:
            if trial.number not in named:
                self._close(trial.number)

    def _find(self, number: int) -> FrozenTrial:
        """Read a trial from the database."""
        storage = self.storage.optuna
        return storage.get_trial(
            storage.get_trial_id_from_study_id_trial_number(self.study_id, number)
        )

    def _is_point(self, params: Mapping[str, Any]) -> bool:
        """Whether parameters of the database are a point of the space."""
        space = self.resolved.spec.space
        try:
            point_of(space, params)
        except InputError:
            return False
        return set(params) == set(distributions(space))


def suggest(trial: Trial, space: Space) -> dict[str, Any]:
    """Let the sampler choose every parameter of a trial."""
    for name, axis in distributions(space).items():
        if isinstance(axis, CategoricalDistribution):
            trial.suggest_categorical(name, axis.choices)
        elif isinstance(axis, IntDistribution):
            trial.suggest_int(name, axis.low, axis.high, step=axis.step)
        elif isinstance(axis, FloatDistribution):
            trial.suggest_float(name, axis.low, axis.high, step=axis.step)
    return trial.params
