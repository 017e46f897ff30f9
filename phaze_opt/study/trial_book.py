"""The trials of a study for a page that stays open: only new and running ones are read again.

A book keeps of every trial what plots and tables order trials by, and whole trials only where they
are shown.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from phaze_opt.store.stored_study import StoredStudy
from phaze_opt.store.trial_facts import Tally, TrialFacts, trials_without_facts
from phaze_opt.store.trial_rows import states_of
from phaze_opt.study.pareto import front
from phaze_opt.study.standing import (
    Standing,
    busy_s,
    facts_of,
    numbered_trials,
    read_standing,
    trials_of,
)
from phaze_opt.study.trials import TrialRecord

Ranked = tuple[tuple[Any, ...], int, str]
"""The key of the rank of a design, its first trial, and its values as JSON."""

_MOST_KEPT = 5_000
_FINISHED = ("feasible", "infeasible", "failed")


class TrialBook:
    """The trials of a study, as they were when `read` was called last.

    Attributes
    ----------
    numbers, values, areas_mm2
        Of all feasible trials by number: the number, the first value, and the area.
    infeasible, unranked
        Numbers of the infeasible trials, and of all finished ones that are not feasible.
    designs
        Number of feasible trials by design.
    best
        The best designs, at most ``most``, the best first.
    open
        The trials that are not finished.
    """

    def __init__(self, study: StoredStudy, most: int) -> None:
        self._study, self._most = study, most
        self.numbers: list[int] = []
        self.values: list[float] = []
        self.areas_mm2: list[float] = []
        self.infeasible: list[int] = []
        self.unranked: list[int] = []
        self.designs: Counter[str] = Counter()
        self.best: list[Ranked] = []
        self.open: list[TrialRecord] = []
        self._seen: set[int] = set()
        self._intervals = array("d")
        self._tally = Tally()
        self._front: tuple[TrialRecord, ...] = ()
        self._last_row, self._open_rows = -1, set[int]()
        self._kept: dict[int, TrialRecord] = {}
        self._worst: tuple[Any, ...] | None = None
        self._maximise = study.resolved.spec.objective_kinds[0].maximise

    def read(self) -> Standing:
        """Read the trials that are new, or were not finished, and return where the study stands."""
        study = self._study
        states = states_of(study.storage, study.optuna_id, self._last_row, self._open_rows)
        changed: Iterable[int] = states
        if self._last_row < 0:
            # This writes the facts that are missing in an old database.
            self._front = read_standing(study).front
            changed = trials_without_facts(study.storage, study.uid, study.optuna_id)
            self._take(list(study.facts().all()))
        self._last_row = max([self._last_row, *states])
        self._open_rows = {row for row, state in states.items() if not state.is_finished()}
        self.open = []
        for trials in trials_of(study, changed):
            self._take_read(trials)
        return self._standing()

    def trials(self, numbers: Iterable[int]) -> list[TrialRecord]:
        """Return finished trials by their numbers; those that were shown before are not read."""
        numbers = list(numbers)
        missing = [number for number in numbers if number not in self._kept]
        if len(self._kept) > _MOST_KEPT:
            self._kept, missing = {}, numbers
        read = numbered_trials(self._study, dict.fromkeys(missing))
        self._kept |= {trial.number: trial for trial in read}
        return [self._kept[number] for number in numbers]

    @property
    def last(self) -> int:
        """The number of the last trial; -1 if there is none."""
        ends = (self.numbers, self.unranked, [trial.number for trial in self.open])
        return max([max(numbers[-1:], default=-1) for numbers in ends])

    @property
    def total(self) -> int:
        """Number of trials."""
        return len(self._seen) + len(self.open)

    def _take_read(self, trials: Sequence[TrialRecord]) -> None:
        """Take in trials that were read, of which some still run."""
        spec = self._study.resolved.spec
        new = [trial for trial in trials if trial.number not in self._seen]
        finished = [trial for trial in new if trial.kind in _FINISHED]
        self.open += [trial for trial in new if trial.kind not in _FINISHED]
        self._take([facts_of(self._study.resolved, trial) for trial in finished])
        self._kept |= {trial.number: trial for trial in finished}
        if finished and len(spec.objectives) > 1:
            known = {trial.number: trial for trial in (*self._front, *finished)}
            self._front = tuple(front(spec, [known[number] for number in sorted(known)]))

    def _take(self, finished: Sequence[TrialFacts]) -> None:
        """Take in the facts of finished trials."""
        self._tally += Tally.of(finished)
        for facts in finished:
            self._add(facts)
        first: dict[str, Ranked] = {}
        for ranked in sorted(self.best):
            first.setdefault(ranked[2], ranked)
        self.best = list(first.values())[: self._most]
        if len(self.best) == self._most:
            self._worst = self.best[-1][0][:-1]

    def _add(self, facts: TrialFacts) -> None:
        """Take in a finished trial."""
        self._seen.add(facts.number)
        if facts.started_s is not None and facts.ended_s is not None and facts.kind != "failed":
            self._intervals.extend((facts.started_s, facts.ended_s))
        if facts.kind == "infeasible":
            insort(self.infeasible, facts.number)
        if facts.value_bin is None or facts.cost is None or facts.design is None:
            insort(self.unranked, facts.number)
            return
        place = bisect_left(self.numbers, facts.number)
        self.numbers.insert(place, facts.number)
        self.values.insert(place, -facts.cost if self._maximise else facts.cost)
        self.areas_mm2.insert(place, facts.area_mm2 or 0.0)
        self.designs[facts.design] += 1
        rank = (facts.value_bin, facts.hbm_bytes, facts.area_mm2, facts.energy_j, facts.cost)
        if self._worst is None or rank <= self._worst:
            key = (*rank, tuple(json.loads(facts.design)))
            self.best.append((key, facts.number, facts.design))

    def _standing(self) -> Standing:
        """Return where the study stands."""
        running = (facts_of(self._study.resolved, trial) for trial in self.open)
        best = self.trials([self.best[0][1]])[0] if self.best else None
        tally = self._tally + Tally.of(running)
        # A copy: an array does not grow while numpy looks at it.
        intervals = np.array(self._intervals).reshape(-1, 2)
        return Standing(tally, busy_s(intervals), best, self._front)
