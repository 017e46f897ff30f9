"""What an enumeration proved of the space of a study, as data and in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from phaze_opt.report.design_columns import SearchedColumns
from phaze_opt.report.reproducing import verify_commands
from phaze_opt.report.ties import Tie, ties
from phaze_opt.spec.objectives import OBJECTIVES
from phaze_opt.spec.space import DesignPoint
from phaze_opt.study.best_design import BestDesign
from phaze_opt.study.study import Study
from phaze_opt.units import counted, format_seconds
from phaze_opt.whole_space.answers import Front
from phaze_opt.whole_space.enumerating import best_of_enumeration, stored_enumeration
from phaze_opt.whole_space.exhaustive import Enumeration
from phaze_opt.whole_space.fronts import stored_front


@dataclass(frozen=True)
class CertifiedAnswer:
    """What an enumeration proved of the space.

    Attributes
    ----------
    optimum
        The best design; ``None`` where nothing is feasible.
    headers, top, ties
        The first designs of the proven order: columns, rows of cells, and which are as good.
    commands
        Lines for a shell that write the certificate and check it.
    """

    found: Enumeration
    optimum: BestDesign | None
    headers: tuple[str, ...]
    top: tuple[tuple[str, ...], ...]
    ties: tuple[Tie, ...]
    commands: tuple[str, ...]

    checked_by = "To check it, on any machine, with nothing but the certificate and this program"

    @property
    def words(self) -> str:
        """What is proven, and how."""
        enumeration = self.found
        best = "no design is feasible" if self.optimum is None else "no other design is better"
        return (
            f"Certified: {best} in cost model version {enumeration.version}. Of "
            f"{enumeration.points:,} designs {enumeration.bounded:,} are bounded below the best "
            f"ones, and {enumeration.evaluated:,} are evaluated, in "
            f"{format_seconds(enumeration.wall_s)}{self._when}."
        )

    @property
    def _when(self) -> str:
        """When it was proven, where that is known."""
        if self.found.finished_s is None:
            return ""
        finished = datetime.fromtimestamp(self.found.finished_s, UTC)
        return f", on {finished:%Y-%m-%d} at {finished:%H:%M} UTC"


@dataclass(frozen=True)
class ProvenFront:
    """The front of the whole space, as people see it.

    Attributes
    ----------
    headers, rows
        Its designs: columns, and rows of cells.
    """

    front: Front
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def words(self) -> str:
        """What is proven, and how."""
        found = self.front.found
        names = [name.replace("_", " ") for name in self.front.objectives]
        return (
            f"Proven: no design of the space is better than one of these "
            f"{counted(len(found.designs), 'design')} in {' and '.join(names)} together, in cost "
            f"model version {self.front.version}. Of {found.points:,} designs "
            f"{found.evaluated:,} are evaluated, in {format_seconds(self.front.wall_s)}."
        )


def proven_front(study: Study) -> ProvenFront | None:
    """Read the stored front of a study's space; ``None`` where there is none."""
    front = stored_front(study)
    if front is None:
        return None
    columns = SearchedColumns(study.resolved.spec, [OBJECTIVES[name] for name in front.objectives])
    rows = [
        columns.cells(DesignPoint(each.design.point), each.design.metrics, each.values)
        for each in front.found.designs
    ]
    return ProvenFront(front, columns.named_headers, tuple(map(tuple, rows)))


def certified_answer(study: Study) -> CertifiedAnswer | None:
    """Read the stored enumeration of a study's space; ``None`` where there is none."""
    enumeration = stored_enumeration(study)
    if enumeration is None:
        return None
    columns = SearchedColumns(study.resolved.spec)
    rows = [columns.cells(DesignPoint(design.point), design.metrics) for design in enumeration.top]
    return CertifiedAnswer(
        enumeration,
        best_of_enumeration(study, enumeration),
        columns.named_headers,
        tuple(map(tuple, rows)),
        tuple(ties([design.metrics.values for design in enumeration.top])),
        tuple(verify_commands(study.name)),
    )
