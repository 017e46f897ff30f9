"""How a run shows its trials to people.

`phaze_opt.report.publishing` shows them, and stands to the right: a run is given what it calls.
What goes wrong while something is shown must not harm a trial.
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
    """Shows the trials of one worker."""

    def telling(self, trial: Trial, metrics: Metrics) -> None:
        """Take a trial that is evaluated, but still runs."""

    def told(self) -> None:
        """Take note that the study has one more trial."""

    def finish(self) -> None:
        """Take note that the run has ended."""


ShowStudy = Callable[[StoredStudy], Show]
"""Makes what shows the trials of a worker; a function of a module, so that processes get it."""


class Watcher:
    """Passes trials on, until showing them fails: then says so once, and goes on without.

    Parameters
    ----------
    study
        The study that is run.
    show
        ``None`` where nobody watches.
    """

    def __init__(self, study: StoredStudy, show: ShowStudy | None) -> None:
        self._study, self._make = study, show
        self._show: Show | None = None

    def telling(self, trial: Trial, metrics: Metrics) -> None:
        """Pass on a trial before it is told."""
        self._safely(lambda show: show.telling(trial, metrics))

    def told(self) -> None:
        """Pass on that a trial was told."""
        self._safely(lambda show: show.told())

    def prepare(self, action: Callable[[], None]) -> None:
        """Do what only those need who look at the study."""
        self._safely(lambda show: action())

    def finish(self) -> None:
        """Pass on that the run has ended."""
        self._safely(lambda show: show.finish(), then="")

    def _safely(self, action: Callable[[Show], None], then: str = " The search goes on.") -> None:
        """Show something; a lost database, or a trial that another worker closed, is not new.

        Nor is a study that was deleted: with it the search ends.
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
