"""Detects rows that this program did not write: other programs may write to a shared database.

Nothing read from a database is ever executed. A damaged row is refused in one sentence before
anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import MetaData, column, delete, select, table

from phaze_opt.errors import InputError, PhazeError
from phaze_opt.spec.space import Space, distributions
from phaze_opt.store.storage import Storage

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

DAMAGES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that reading raises where a row holds another type, size or word than expected."""

_LONGEST_REASON = 200

_TRIALS = table("trials", column("trial_id"), column("number"), column("study_id"))


class DamagedError(InputError):
    """Stored rows that cannot be read; exit code 1, because the user's input is correct."""

    exit_code = 1


@contextmanager
def damages(what: str) -> Iterator[None]:
    """Turn every error that reading a damaged row raises into one sentence.

    Parameters
    ----------
    what
        The beginning of the sentence: ``"The stored study 'a'"``.

    Raises
    ------
    DamagedError
        In place of every error that damaged rows lead to.
    """
    try:
        yield
    except InputError as error:
        raise DamagedError(str(error)) from None
    except PhazeError:
        raise
    except DAMAGES as error:
        raise DamagedError(f"{what} is damaged ({_reason(error)}).") from error


def read_all_trials(storage: Storage, study_id: int, what: str) -> list[FrozenTrial]:
    """Read all trials of a study by number.

    Raises
    ------
    DamagedError
        Naming the first trial that cannot be read.
    """
    try:
        trials = storage.optuna.get_all_trials(study_id, deepcopy=False)
        for trial in trials:
            if not isinstance(trial.number, int):
                raise TypeError(f"its number is {trial.number!r}")
        return sorted(trials, key=lambda trial: trial.number)
    except DAMAGES as error:
        number = _first_damaged(storage, study_id)
        raise DamagedError(f"Trial {number} of {what} is damaged ({_reason(error)}).") from error


def check_trial(trial: FrozenTrial, space: Space) -> None:
    """Refuse a trial from which a sampler could not learn.

    Raises
    ------
    ValueError
        If its values are not numbers, or a parameter has another range than in the study's space.
    """
    if not all(isinstance(value, float) for value in trial.values or ()):
        raise ValueError(f"its value is {trial.values}")
    for name, axis in distributions(space).items():
        stored = trial.distributions.get(name, axis)
        if stored != axis:
            raise ValueError(f"{name} is one of {stored}, but in the study of {axis}")


def delete_unread(storage: Storage, study_id: int) -> None:
    """Delete a study from Optuna's tables without reading its rows (Optuna itself reads them)."""
    metadata = MetaData()
    with storage.writing() as session:
        metadata.reflect(session.connection(), only=lambda name, _: not name.startswith("phaze_"))
        trials = metadata.tables["trials"]
        own = select(trials.c.trial_id).where(trials.c.study_id == study_id)
        for each in reversed(metadata.sorted_tables):
            if "study_id" in each.c:
                session.execute(delete(each).where(each.c.study_id == study_id))
            elif "trial_id" in each.c:
                session.execute(delete(each).where(each.c.trial_id.in_(own)))


def _first_damaged(storage: Storage, study_id: int) -> object:
    """Find the first trial that cannot be read by itself."""
    query = select(_TRIALS.c.trial_id, _TRIALS.c.number).where(_TRIALS.c.study_id == study_id)
    with storage.reading() as session:
        rows = session.execute(query.order_by(_TRIALS.c.trial_id)).all()
    for trial_id, number in rows:
        try:
            if not isinstance(storage.optuna.get_trial(trial_id).number, int):
                return repr(number)
        except DAMAGES:
            return number
    return "list"


def _reason(error: BaseException) -> str:
    """Write an error in a few words."""
    return f"{type(error).__name__}: {error}"[:_LONGEST_REASON].rstrip(" .")
