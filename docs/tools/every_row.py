"""Every measured row beside its prediction: pages, a CSV file and drawings of the site.

`every_row` predicts all of them once; the rest writes them down, by chip, precision and kind.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from statistics import fmean
from typing import NamedTuple

from docs.tools.tables import plain, table
from phaze_opt.choices import ValidationGroup
from phaze_opt.units import format_bytes, format_number, format_seconds
from phaze_opt.validation.measured import ValidationRow
from phaze_opt.validation.registry import GROUPS, validate
from phaze_opt.validation.runs import validate_run_times

ROWS_FILE = "accuracy/rows.csv"
_PRECISION = re.compile(r"\b(fp8-block|mxfp8|nvfp4|fp8|bf16)\b")
_WRITTEN: Mapping[str, Callable[[float], str]] = {
    "s": format_seconds,
    "B": format_bytes,
    "ratio": "{:.3f}".format,
}
_MOST = 1.0
"""Largest error that a drawing tells apart."""
_LEFT, _WIDTH, _LINE = 130.0, 700.0, 18.0


class MeasuredRow(NamedTuple):
    """A row with the table that it is in.

    Attributes
    ----------
    group, table, on
        The group and the name of its table, and the chip or the network.
    precision
        Of its products; ``16 bits`` where nobody says which.
    unit
        Of what was measured.
    row
        What was measured and predicted.
    """

    group: ValidationGroup
    table: str
    on: str
    precision: str
    unit: str
    row: ValidationRow

    @property
    def within(self) -> bool | None:
        """Whether what was measured lies in the range that is predicted, if there is one."""
        low, high = self.row.predicted_range or (0.0, 0.0)
        if low == high:
            return None
        return low <= self.row.measured <= high


@cache
def every_row() -> tuple[MeasuredRow, ...]:
    """Predict every measured row; ranges are those of training runs."""
    ranged = {(own.name, own.accelerator): own for own in validate_run_times(ranges=True)}
    found = []
    for group in GROUPS:
        for measured in validate(group).tables:
            own = ranged.get((measured.name, measured.accelerator), measured)
            named = _PRECISION.search(measured.name)
            for row in own.rows:
                said = row.precision or (named[0] if named else "")
                precision = "16 bits" if said in ("", "16-bit") else said
                found.append(
                    MeasuredRow(group, own.name, own.accelerator, precision, own.unit, row)
                )
    return tuple(found)


def by_kind_table() -> str:
    """Write the errors by kind, chip and precision, with what ranges hold and hosts bind."""
    grouped: dict[tuple[str, str, str], list[MeasuredRow]] = {}
    for each in every_row():
        grouped.setdefault((each.group, each.on, each.precision), []).append(each)
    lines = []
    for key, members in sorted(grouped.items()):
        errors = [each.row.error for each in members]
        ranged = [each.within for each in members if each.within is not None]
        hosts = sum(each.row.bound == "host" for each in members)
        lines.append(
            (
                *key,
                format_number(len(members)),
                f"{fmean(map(abs, errors)):.1%}",
                f"{fmean(errors):+.1%}",
                f"{max(errors, key=abs):+.1%}",
                f"{sum(ranged)} of {len(ranged)}" if ranged else "",
                str(hosts) if hosts else "",
            )
        )
    head = ("kind", "on", "precision", "rows", "mean abs. error", "bias", "worst")
    return table((*head, "in range", "host-bound"), lines, "<<<>>>>>>")


def releases_table() -> str:
    """Write what neighbouring releases measured of one set-up, beside the prediction."""
    lines = []
    for each, others in _set_ups():
        times_s = [each.row.measured, *(other.row.measured for other in others)]
        low_s, high_s = min(times_s), max(times_s)
        low, high = each.row.predicted_range or (each.row.predicted, each.row.predicted)
        lines.append(
            (
                plain(each.row.case),
                each.on,
                str(len(times_s)),
                f"{format_seconds(low_s)} to {format_seconds(high_s)}",
                f"{high_s / low_s - 1.0:.1%}",
                format_seconds(each.row.predicted),
                f"{format_seconds(low)} to {format_seconds(high)}",
                f"{each.row.error:+.1%}",
            )
        )
    head = ("set-up", "on", "releases", "measured", "spread")
    return table((*head, "predicted", "range", "error"), lines, "<<>>>>>>")


def _set_ups() -> Iterable[tuple[MeasuredRow, list[MeasuredRow]]]:
    """Yield the training runs that later or earlier releases measured once more, with those."""
    timed = [each for each in every_row() if each.group == "training"]
    for each in timed:
        repeats = [
            other
            for other in timed
            if other.row.repeats == each.row.case
            and (other.table, other.on) == (each.table, each.on)
        ]
        if repeats:
            yield each, repeats


def rows_csv() -> str:
    """Write every row as CSV; times in seconds, sizes in bytes."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    head = ("kind", "table", "on", "precision", "case", "unit", "measured", "predicted", "error")
    writer.writerow((*head, "low", "high", "bound", "repeats", "assumed"))
    for each in every_row():
        row = each.row
        numbers = (f"{value:.6g}" for value in (row.measured, row.predicted, row.error))
        ends = [f"{value:.6g}" for value in row.predicted_range or ()] or ["", ""]
        own = each.group, each.table, each.on, each.precision, row.case, each.unit
        writer.writerow((*own, *numbers, *ends, row.bound, row.repeats, row.assumed))
    return stream.getvalue()


def _page(group: ValidationGroup) -> Callable[[], str]:
    """Return what writes the page of a group."""

    def written() -> str:
        own = [each for each in every_row() if each.group == group]
        lines = [
            f"# Every row: {group}\n",
            f"From `phaze-opt validate {group}`; [what the tables are](../accuracy.md).\n",
            f"![errors by chip; blue: 16 bits, orange: fewer](errors-{group}.svg)\n",
        ]
        for name in dict.fromkeys((each.table, each.on) for each in own):
            members = [each for each in own if (each.table, each.on) == name]
            lines.append(f"## {name[0]} on {name[1]}\n")
            lines.append(_rows_table(members))
        return "\n".join(lines)

    return written


def _rows_table(members: Sequence[MeasuredRow]) -> str:
    """Write the rows of one table."""
    ranged = any(each.row.predicted_range for each in members)
    lines = []
    for each in members:
        row, write = each.row, _WRITTEN[each.unit]
        low_high = (
            "" if row.predicted_range is None else " to ".join(map(write, row.predicted_range))
        )
        said = [row.assumed, f"repeats {row.repeats}" if row.repeats else ""]
        lines.append(
            (
                plain("; ".join(filter(None, (row.case, *said)))),
                each.precision,
                row.bound,
                write(row.measured),
                write(row.predicted),
                *((low_high,) if ranged else ()),
                f"{row.error:+.1%}",
            )
        )
    numbers = ("measured", "predicted", *(("range",) if ranged else ()), "error")
    return table(("case", "precision", "bound by", *numbers), lines, "<<<" + ">" * len(numbers))


def _drawing(group: ValidationGroup) -> Callable[[], str]:
    """Return what draws the errors of a group: a line for each chip, a dot for each row."""

    def drawn() -> str:
        own = [each for each in every_row() if each.group == group]
        chips = sorted({each.on for each in own})
        height = _LINE * (len(chips) + 2)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20:g} '
            f'{height:g}" font-family="sans-serif" font-size="11">',
            '<rect width="100%" height="100%" fill="white"/>',
        ]
        for error in (-0.5, -0.2, -0.1, 0.0, 0.1, 0.2, 0.5):
            x, colour = _x(error), "#444444" if error == 0.0 else "#DDDDDD"
            parts.append(f'<path d="M{x:.1f} 18V{height - 4:g}" stroke="{colour}"/>')
            parts.append(f'<text x="{x:.1f}" y="12" text-anchor="middle">{error:+.0%}</text>')
        for place, chip in enumerate(chips):
            y = _LINE * (place + 1.8)
            parts.append(f'<text x="4" y="{y + 4:.1f}">{escape(chip)}</text>')
            for each in own:
                if each.on == chip:
                    fill = "#0072B2" if each.precision in ("16 bits", "bf16") else "#D55E00"
                    parts.append(
                        f'<circle cx="{_x(each.row.error):.1f}" cy="{y:.1f}" r="2.5" '
                        f'fill="{fill}" fill-opacity="0.4"/>'
                    )
        return "\n".join([*parts, "</svg>\n"])

    return drawn


def _x(error: float) -> float:
    """Return where an error is drawn; larger ones stand at the ends."""
    return _LEFT + _WIDTH * (0.5 + 0.5 * min(max(error, -_MOST), _MOST) / _MOST)


ROW_PAGES: Mapping[str, Callable[[], str]] = {
    f"accuracy/{group}.md": _page(group) for group in GROUPS
}
ROW_FILES: Mapping[str, Callable[[], str]] = {
    ROWS_FILE: rows_csv,
    **{f"accuracy/errors-{group}.svg": _drawing(group) for group in GROUPS},
}
"""Pages, and other files, by path in the site."""
