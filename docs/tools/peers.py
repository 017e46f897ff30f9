"""Predictions of other models beside ours and what was measured.

``docs/peers`` holds theirs: a CSV file for each, with version and command of every row. Runs of
built-in tables are named by table and case; those of SimuMax are runs that its authors measured,
as a file for ``phaze-opt validate training --csv``, on a chip that is calibrated on its operators.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import chdir
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from docs.tools.every_row import every_row
from docs.tools.tables import plain, table
from phaze_opt.units import format_seconds
from phaze_opt.validation.measured import ValidationRow
from phaze_opt.validation.own_runs import validate_own_runs

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "peers"
RUNS = FOLDER / "simumax_runs.csv"


class PeerRow(NamedTuple):
    """A run that another model predicted too.

    Attributes
    ----------
    peer, version, table, case
        The model, and the run.
    measured_s, peer_s, own_s
        Seconds per batch: measured, of the other model, ours.
    """

    peer: str
    version: str
    table: str
    case: str
    measured_s: float
    peer_s: float
    own_s: float

    @property
    def peer_error(self) -> float:
        """Signed relative error of the other model."""
        return self.peer_s / self.measured_s - 1.0

    @property
    def own_error(self) -> float:
        """Signed relative error of ours."""
        return self.own_s / self.measured_s - 1.0


@cache
def peer_rows() -> tuple[PeerRow, ...]:
    """Return all runs that another model predicted, with our predictions of today."""
    with chdir(ROOT):  # from where the file names its chip
        own = validate_own_runs(RUNS.relative_to(ROOT))
    known = {(RUNS.name, row.case): row for measured in own for row in measured.rows}
    known |= {
        (each.table, each.row.case): each.row for each in every_row() if each.group == "training"
    }
    return tuple(_read(known))


def _read(known: Mapping[tuple[str, str], ValidationRow]) -> Iterator[PeerRow]:
    """Read the files of all others."""
    for name in ("calculon.csv", "simumax.csv"):
        with (FOLDER / name).open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                own = known[row["table"], row["case"]]
                names = row["peer"], row["version"], row["table"], row["case"]
                yield PeerRow(*names, own.measured, float(row["predicted_s"]), own.predicted)


def peers_table() -> str:
    """Write the mean errors of others and ours, and where ours are not smaller."""
    lines, worse = [], []
    for peer, name in dict.fromkeys((row.peer, row.table) for row in peer_rows()):
        rows = [row for row in peer_rows() if (row.peer, row.table) == (peer, name)]
        theirs = fmean(abs(row.peer_error) for row in rows)
        ours = fmean(abs(row.own_error) for row in rows)
        means = f"{theirs:.1%}", f"{ours:.1%}"
        lines.append((f"{peer}, {rows[0].version}", name, str(len(rows)), *means))
        if ours >= theirs:
            worse.append(f"{peer} on {name}")
    said = f"Not better than {', '.join(worse)}.\n" if worse else "Better on all of them.\n"
    head = ("model", "runs", "rows", "its mean abs. error", "ours")
    return table(head, lines, "<<>>>") + "\n" + said


def peer_rows_table() -> str:
    """Write every run that another model predicted."""
    lines = [
        (
            row.peer,
            plain(row.case),
            format_seconds(row.measured_s),
            format_seconds(row.peer_s),
            f"{row.peer_error:+.1%}",
            format_seconds(row.own_s),
            f"{row.own_error:+.1%}",
        )
        for row in peer_rows()
    ]
    head = ("model", "run", "measured", "its prediction", "error", "ours", "error")
    return table(head, lines, "<<>>>>>")
