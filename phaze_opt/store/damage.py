"""Detects rows that this program did not write: other programs may write to a shared database.

The program never executes data of a database. It refuses a damaged row in one sentence before it
changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import MetaData, delete, select

from phaze_opt.errors import InputError, PhazeError
from phaze_opt.spec.space import Space, distributions
from phaze_opt.store.storage import Storage
from phaze_opt.store.trial_rows import TRIAL, read_trials

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
"""Errors that reading raises if a row holds an unexpected type, size or word."""

_LONGEST_REASON = 200


class DamagedError(InputError):
    """Stored rows are damaged; exit code 1, because the user's input is correct."""

    exit_code = 1


@contextmanager
def damages(what: str) -> Iterator[None]:
    """Turn every error of reading a damaged row into one sentence.

    Parameters
    ----------
    what
        Subject of the sentence: ``"The stored study 'a'"``.

    Raises
    ------
    DamagedError
        In place of every such error.
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
    """Read all trials of a study, sorted by number.

    Raises
    ------
    DamagedError
        If a trial cannot be read; the sentence names the first.
    """
    try:
        trials = storage.optuna.get_all_trials(study_id, deepcopy=False)
        for trial in trials:
            check_number(trial)
        return sorted(trials, key=lambda trial: trial.number)
    except DAMAGES as error:
        number = _first_damaged(storage, TRIAL.c.study_id == study_id)
        raise DamagedError(f"Trial {number} of {what} is damaged ({_reason(error)}).") from error


def read_some_trials(storage: Storage, what: str, *conditions: Any) -> list[FrozenTrial]:
    """Read trials by conditions on the columns of Optuna's table, in the order of their rows.

    Raises
    ------
    DamagedError
        If a trial cannot be read; the sentence names the first.
    """
    try:
        with storage.reading() as session:
            return read_trials(session.connection(), *conditions)
    except DAMAGES as error:
        number = _first_damaged(storage, *conditions)
        raise DamagedError(f"Trial {number} of {what} is damaged ({_reason(error)}).") from error


def check_number(trial: FrozenTrial) -> None:
    """Refuse a trial whose number is none.

    Raises
    ------
    TypeError
        In that case.
    """
    if not isinstance(trial.number, int):
        raise TypeError(f"its number is {trial.number!r}")


def check_trial(trial: FrozenTrial, space: Space) -> None:
    """Refuse a trial that samplers cannot use.

    Raises
    ------
    ValueError
        If a value is not a number, or a parameter has another range than in the study's space.
    """
    if not all(isinstance(value, float) for value in trial.values or ()):
        raise ValueError(f"its value is {trial.values}")
    for name, axis in distributions(space).items():
        stored = trial.distributions.get(name, axis)
        if stored != axis:
            raise ValueError(f"{name} is one of {stored}, but in the study of {axis}")


def delete_unread(storage: Storage, study_id: int) -> None:
    """Delete a study from Optuna's tables without reading its rows, which Optuna would read."""
    metadata = MetaData()
    with storage.writing() as session:
        metadata.reflect(session.connection(), only=lambda name, _: not name.startswith("phaze_"))
        trials = metadata.tables["trials"]
        own = select(trials.c.trial_id).where(trials.c.study_id == study_id)
        for rows in reversed(metadata.sorted_tables):
            if "study_id" in rows.c:
                session.execute(delete(rows).where(rows.c.study_id == study_id))
            elif "trial_id" in rows.c:
                session.execute(delete(rows).where(rows.c.trial_id.in_(own)))


def _first_damaged(storage: Storage, *conditions: Any) -> object:
    """Return the number of the first trial that cannot be read; ``"list"`` if each can be read."""
    query = select(TRIAL.c.trial_id, TRIAL.c.number).where(*conditions)
    with storage.reading() as session:
        rows = session.execute(query.order_by(TRIAL.c.trial_id)).all()
    for trial_id, number in rows:
        try:
            if not isinstance(storage.optuna.get_trial(trial_id).number, int):
                return repr(number)
        except DAMAGES:
            return number
    return "list"


def _reason(error: BaseException) -> str:
    """Return the type and the message of an error, shortened."""
    return f"{type(error).__name__}: {error}"[:_LONGEST_REASON].rstrip(" .")
