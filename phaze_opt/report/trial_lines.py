"""The lines of a table of trials: the best designs, each once, and below them other trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phaze_opt.report.design_columns import SearchedColumns
from phaze_opt.report.study_words import trial_state_words
from phaze_opt.spec.space import DesignPoint
from phaze_opt.study.trials import TrialRecord

_LATEST = 20


@dataclass(frozen=True)
class TrialLine:
    """A trial in the table of trials.

    Attributes
    ----------
    again
        Number of later trials of the same design, which have no line of their own.
    reason
        Why it is not feasible.
    """

    number: int
    again: int
    state: str
    kind: str
    cells: tuple[str, ...]
    reason: str


def ranked_trials(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the feasible trials by the order of designs."""
    ranked = [(trial.rank.key, trial) for trial in records if trial.rank is not None]
    return [trial for _, trial in sorted(ranked, key=lambda pair: (pair[0], pair[1].number))]


def distinct_designs(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the first trial of every feasible design, by the order of designs."""
    first: dict[DesignPoint | None, TrialRecord] = {}
    for trial in ranked_trials(records):
        first.setdefault(trial.point, trial)
    return list(first.values())


def trial_lines(
    records: Sequence[TrialRecord], columns: SearchedColumns, most: int
) -> list[TrialLine]:
    """List the feasible trials by the order of designs, then the latest of the others."""
    trials_of = Counter(trial.point for trial in records if trial.rank is not None)
    others = [trial for trial in reversed(records) if trial.rank is None]
    shown = distinct_designs(records)[: max(most - _LATEST, most - len(others))]
    return [
        TrialLine(
            trial.number,
            trials_of[trial.point] - 1 if trial.rank is not None else 0,
            trial_state_words(trial),
            trial.kind,
            tuple(columns.cells(trial.point, trial.metrics)),
            (trial.metrics.reason or "") if trial.metrics is not None else "",
        )
        for trial in [*shown, *others[: most - len(shown)]]
    ]
