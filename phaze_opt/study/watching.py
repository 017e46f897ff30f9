"""Passes the trials of a run to the dashboard.

`phaze_opt.report.publishing` shows them; it stands in a room to the right, so that a run gets it as
an argument. An error of the dashboard must not harm a trial.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from optuna.exceptions import UpdateFinishedTrialError

from phaze_opt.errors import NotFoundError
from phaze_opt.printing import print_error
from phaze_opt.store.failures import DatabaseError
from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.study.trials import Metrics

if TYPE_CHECKING:
    from optuna.trial import Trial


class Show(Protocol):
    """Shows the trials of a worker."""

    def telling(self, trial: Trial, metrics: Metrics) -> None:
        """Show a trial that is evaluated, but still runs."""

    def told(self) -> None:
        """Show that the study has a further trial."""

    def finish(self) -> None:
        """Show that the run has ended."""


ShowStudy = Callable[[StoredStudy], Show]
"""Makes the `Show` of a worker; a function of a module, so that it can be sent to processes."""


class Watcher:
    """Passes trials on; the first error is printed, and nothing is passed on after it.

    Parameters
    ----------
    study
        The study of the run.
    show
        Makes the receiver; ``None`` for no dashboard.
    """

    def __init__(self, study: StoredStudy, show: ShowStudy | None) -> None:
        self._study, self._make = study, show
        self._show: Show | None = None

    def telling(self, trial: Trial, metrics: Metrics) -> None:
        """Pass on an evaluated trial before Optuna gets its values."""
        self._safely(lambda show: show.telling(trial, metrics))

    def told(self) -> None:
        """Pass on that a trial has ended."""
        self._safely(lambda show: show.told())

    def prepare(self, action: Callable[[], None]) -> None:
        """Do an action that only the dashboard needs."""
        self._safely(lambda show: action())

    def finish(self) -> None:
        """Pass on that the run has ended."""
        self._safely(lambda show: show.finish(), then="")

    def _safely(self, action: Callable[[Show], None], then: str = " The search goes on.") -> None:
        """Show something; print other errors than those that the caller handles.

        The caller handles a lost database, a deleted study, and a trial that another worker closed.
        """
        if self._make is None:
            return
        try:
            if self._show is None:
                self._show = self._make(self._study)
            action(self._show)
        except (DatabaseError, NotFoundError, UpdateFinishedTrialError):
            raise
        except Exception as error:
            self._make = None
            name = type(error).__name__
            print_error(f"The dashboard is not kept up to date: {name}: {error}.{then}")
