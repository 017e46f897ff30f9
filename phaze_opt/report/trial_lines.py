"""The lines of a table of trials: the best designs, each once, and below them other trials."""

from __future__ import annotations

from dataclasses import dataclass

from phaze_opt.report.design_columns import SearchedColumns
from phaze_opt.report.study_words import trial_state_words
from phaze_opt.report.ties import Tie, ties
from phaze_opt.study.trial_book import TrialBook

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
    tie
        Its place among designs that are as good.
    """

    number: int
    again: int
    state: str
    kind: str
    cells: tuple[str, ...]
    reason: str
    tie: Tie


def trial_lines(book: TrialBook, columns: SearchedColumns, most: int) -> list[TrialLine]:
    """List the feasible trials by the order of designs, then the latest of the others."""
    others = len(book.unranked) + len(book.open)
    best = book.best[: max(most - _LATEST, most - others)]
    more = most - len(best)
    running = [trial for trial in book.open if trial.rank is None]
    rest = [*book.trials(book.unranked[-more:] if more else ()), *running]
    rest.sort(key=lambda trial: -trial.number)
    again = {number: book.designs[design] - 1 for _, number, design in best}
    shown = book.trials(again)
    lines = [*shown, *rest[:more]]
    values = [
        None if trial.rank is None or trial.metrics is None else trial.metrics.values
        for trial in lines
    ]
    return [
        TrialLine(
            trial.number,
            again.get(trial.number, 0),
            trial_state_words(trial),
            trial.kind,
            tuple(columns.cells(trial.point, trial.metrics)),
            (trial.metrics.reason or "") if trial.metrics is not None else "",
            tie,
        )
        for trial, tie in zip(lines, ties(values), strict=True)
    ]
