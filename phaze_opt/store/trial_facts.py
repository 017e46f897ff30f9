"""What the answers of a study need of its finished trials: a row for each, read by SQL alone.

A finished trial never changes. Its facts are written with its end, or by the next program that
reads many trials without facts, such as those of an older program; `phaze_opt.study.standing` adds
the trials that have none yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, select
from sqlalchemy.orm import Session

from phaze_opt.store.damage import damages
from phaze_opt.store.storage import Storage, in_parts, inserting
from phaze_opt.store.tables import FactsRow
from phaze_opt.store.trial_rows import TRIAL, VALUE, all_characters, characters, told_value

RANK = (
    FactsRow.value_bin,
    FactsRow.hbm_bytes,
    FactsRow.area_mm2,
    FactsRow.energy_j,
    FactsRow.cost,
)
COSTS = (
    FactsRow.cost,
    FactsRow.cost_1,
    FactsRow.cost_2,
    FactsRow.cost_3,
    FactsRow.cost_4,
    FactsRow.cost_5,
)
_SUMS = ("evaluated", "cached", "schedules", "proven", "needed", "quickly_proven")
_AT_ONCE = 500


@dataclass(frozen=True)
class TrialFacts:
    """The facts of one trial; `phaze_opt.store.tables.FactsRow` says what they are."""

    number: int
    kind: str
    design: str | None
    started_s: float | None
    ended_s: float | None
    violated: str | None
    evaluated: int
    cached: int
    schedules: int
    proven: int
    needed: int
    quickly_proven: int
    value_bin: int | None = None
    hbm_bytes: int | None = None
    area_mm2: float | None = None
    energy_j: float | None = None
    cost: float | None = None
    cost_1: float | None = None
    cost_2: float | None = None
    cost_3: float | None = None
    cost_4: float | None = None
    cost_5: float | None = None


@dataclass(frozen=True)
class Tally:
    """Counts over trials, which add up.

    Attributes
    ----------
    groups
        By kind of trial and violated limit: number of trials, the sums of `_SUMS`, and the lowest
        number of a trial.
    """

    groups: Mapping[tuple[str, str | None], tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, trials: Iterable[TrialFacts]) -> Tally:
        """Count trials one by one."""
        groups: dict[tuple[str, str | None], list[TrialFacts]] = {}
        for trial in trials:
            groups.setdefault((trial.kind, trial.violated), []).append(trial)
        return cls(
            {
                key: (
                    len(group),
                    *(sum(int(getattr(trial, name)) for trial in group) for name in _SUMS),
                    min(trial.number for trial in group),
                )
                for key, group in groups.items()
            }
        )

    def __add__(self, other: Tally) -> Tally:
        groups = dict(self.groups)
        for key, (*more, first) in other.groups.items():
            *sums, before = groups.get(key, (*[0] * len(more), first))
            added = (a + b for a, b in zip(sums, more, strict=True))
            groups[key] = (*added, min(before, first))
        return Tally(groups)

    def count(self, *kinds: str) -> int:
        """Return the number of trials of these kinds."""
        return sum(sums[0] for (kind, _), sums in self.groups.items() if kind in kinds)

    def total(self, name: str) -> int:
        """Return the sum of a column of the trials."""
        place = 1 + _SUMS.index(name)
        return sum(sums[place] for sums in self.groups.values())

    @property
    def violated(self) -> dict[str, int]:
        """Number of trials by the limit that they violate, in the order of their first trials."""
        counts: dict[str, int] = {}
        for (_, limit), sums in sorted(self.groups.items(), key=lambda group: group[1][-1]):
            if limit is not None:
                counts[limit] = counts.get(limit, 0) + sums[0]
        return counts


@dataclass(frozen=True)
class FactsOfStudy:
    """The stored facts of the trials of one study, but for some trials.

    Attributes
    ----------
    storage, name, uid
        Of the study.
    without
        Numbers of trials whose facts are not used: the caller has read these trials themselves.
    """

    storage: Storage
    name: str
    uid: str
    without: frozenset[int] = frozenset()

    def tally(self) -> Tally:
        """Count the trials."""
        sums = (func.sum(getattr(FactsRow, name)) for name in _SUMS)
        columns = (func.count(), *sums, func.min(FactsRow.number))
        query = select(FactsRow.kind, FactsRow.violated, *columns)
        rows = self._read(query.where(self._mine).group_by(FactsRow.kind, FactsRow.violated))
        with damages(self._what):
            return Tally({(kind, limit): tuple(map(int, sums)) for kind, limit, *sums in rows})

    def intervals(self) -> Sequence[Any]:
        """Return start and end of all trials that ended and did not fail."""
        times = (FactsRow.started_s, FactsRow.ended_s)
        known = (FactsRow.kind != "failed", *(time.is_not(None) for time in times))
        return self._read(select(*times).where(self._mine, *known), plain=True)

    def least_cost(self) -> float | None:
        """Return the least cost by the first objective; ``None`` without a feasible trial."""
        first = select(func.min(FactsRow.value_bin)).where(self._ranked).scalar_subquery()
        # No trial of a later bin is better; the index has the trials of the first one.
        query = select(func.min(FactsRow.cost)).where(self._mine, FactsRow.value_bin == first)
        ((cost,),) = self._read(query)
        return None if cost is None else float(cost)

    def best(self) -> list[int]:
        """Return the numbers of the best trials: one of each design that only its values order."""
        first = self._read(select(*RANK).where(self._ranked).order_by(*RANK).limit(1))
        if not first:
            return []
        equal = and_(*(column == value for column, value in zip(RANK, first[0], strict=True)))
        query = select(func.min(FactsRow.number)).where(self._ranked, equal)
        return [number for (number,) in self._read(query.group_by(FactsRow.design))]

    def by_costs(self, objectives: int) -> Sequence[Any]:
        """Return number and costs of the feasible trials, each design once, by their costs."""
        costs = COSTS[:objectives]
        query = select(func.min(FactsRow.number), *costs).where(self._ranked)
        return self._read(query.group_by(*costs, *RANK[1:4], FactsRow.design).order_by(*costs))

    def first_trials(self, study_id: int) -> tuple[Sequence[Any], int]:
        """Return the trials before the first one without facts, and the last of their rows.

        Each has its number, kind and design, and the parts of its rank. There are none, and no row,
        if a row among theirs is that of another trial.

        Parameters
        ----------
        study_id
            Optuna's number of the study.
        """
        columns = (FactsRow.number, FactsRow.kind, FactsRow.design, *RANK)
        rows = self._read(select(*columns).where(self._mine).order_by(FactsRow.number), plain=True)
        first = [row for place, row in enumerate(rows) if row[0] == place]
        own = TRIAL.c.study_id == study_id
        mine = select(func.count(), func.max(TRIAL.c.trial_id)).where(
            own, TRIAL.c.number < len(first)
        )
        ((number, last_row),) = self._read(mine)
        if number != len(first) or last_row is None:
            return (), -1
        up_to = select(func.count()).where(own, TRIAL.c.trial_id <= last_row)
        return (first, last_row) if self._read(up_to) == [(number,)] else ((), -1)

    def told_infeasible(self, study_id: int) -> dict[int, float]:
        """Return what Optuna was told of the infeasible trials as first value, by their numbers."""
        same = and_(FactsRow.number == TRIAL.c.number, self._mine)
        query = (
            select(TRIAL.c.number, VALUE.c.value, VALUE.c.value_type)
            .join_from(TRIAL, FactsRow, same)
            .join(VALUE, and_(VALUE.c.trial_id == TRIAL.c.trial_id, VALUE.c.objective == 0))
            .where(TRIAL.c.study_id == study_id, FactsRow.kind == "infeasible")
        )
        return {number: told_value(value, kind) for number, value, kind in self._read(query)}

    def all(self) -> Iterator[TrialFacts]:
        """Return all facts by number."""
        columns = [getattr(FactsRow, each.name) for each in fields(TrialFacts)]
        for row in self._read(select(*columns).where(self._mine).order_by(FactsRow.number)):
            yield TrialFacts(*row)

    def describe(self, study_id: int) -> bool:
        """Whether all trials of a study but those without facts have the content of that time.

        Parameters
        ----------
        study_id
            Optuna's number of the study.
        """
        with self.storage.reading(consistent=True) as session:
            known = session.scalar(select(func.sum(FactsRow.characters)).where(self._mine)) or 0
            for part in in_parts(_without_facts(session, self.uid, study_id), _AT_ONCE):
                known += sum(characters(session, TRIAL.c.trial_id.in_(part)).values())
            return bool(known == all_characters(session, study_id))

    def forget(self) -> None:
        """Delete all facts; whoever reads the study next writes them anew."""
        with self.storage.writing() as session:
            session.execute(delete(FactsRow).where(FactsRow.study_uid == self.uid))

    @property
    def _mine(self) -> ColumnElement[bool]:
        """Whether facts belong to this study and are used, as a condition of SQL."""
        mine = FactsRow.study_uid == self.uid
        return and_(mine, FactsRow.number.not_in(sorted(self.without))) if self.without else mine

    @property
    def _ranked(self) -> ColumnElement[bool]:
        """Whether facts are of a feasible trial of this study, as a condition of SQL."""
        return and_(self._mine, FactsRow.value_bin.is_not(None))

    @property
    def _what(self) -> str:
        """Subject of the sentence about damaged facts."""
        return f"What is stored of the trials of the study {self.name!r}"

    def _read(self, query: Any, *, plain: bool = False) -> Sequence[Any]:
        """Read rows, or plain tuples of numbers: those of many trials in a fifth of the time."""
        with damages(self._what), self.storage.reading() as session:
            rows = session.connection().execute(query)
            return rows.cursor.fetchall() if plain else rows.all()


def trials_without_facts(storage: Storage, uid: str, study_id: int) -> list[int]:
    """Return the rows of the trials of a study that have no facts, running ones among them."""
    with storage.reading() as session:
        return _without_facts(session, uid, study_id)


def _without_facts(session: Session, uid: str, study_id: int) -> list[int]:
    """Return the same in a transaction."""
    same = and_(FactsRow.study_uid == uid, FactsRow.number == TRIAL.c.number)
    query = select(TRIAL.c.trial_id).outerjoin(FactsRow, same).order_by(TRIAL.c.trial_id)
    missing = query.where(TRIAL.c.study_id == study_id, FactsRow.number.is_(None))
    return list(session.scalars(missing))


def write_facts(session: Session, uid: str, trials: Mapping[int, TrialFacts]) -> None:
    """Write the facts of finished trials, given by their rows, unless they are written."""
    for part in in_parts(trials.items(), _AT_ONCE):
        sizes = characters(session, TRIAL.c.trial_id.in_([row for row, _ in part]))
        rows = [
            {"study_uid": uid, **vars(facts), "characters": sizes.get(row, 0)}
            for row, facts in part
        ]
        statement = inserting(session, FactsRow).on_conflict_do_nothing()
        session.connection().execute(statement, rows)
