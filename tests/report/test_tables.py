"""Tables for the terminal."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from phaze_opt.report.note import note_of
from phaze_opt.report.tables import pairs_table, rows_table, studies_table, study_table
from tests.search.fakes import toy_study

HOSTILE = "\x1b[2J[red]x[/red]<script>\r../\n$(rm)![a](b)"


def printed(table: object) -> str:
    """Print as to a file."""
    stream = io.StringIO()
    Console(file=stream, width=200).print(table)
    return stream.getvalue()


def test_hostile_names_are_shown_not_run(tmp_path: Path) -> None:
    """A name with escape characters, markup or a script is only text, on terminal and page."""
    study = toy_study(f"sqlite:///{tmp_path / 'a.db'}", model=HOSTILE)
    study.run(3)
    summary = study.summary()
    for table in (
        study_table(summary),
        studies_table([summary]),
        pairs_table(HOSTILE, {"a": HOSTILE}),
        rows_table([{"a": HOSTILE}]),
    ):
        text = printed(table)
        assert "\x1b" not in text and "\r" not in text
        assert "[red]" in text
    note = note_of(summary)
    assert "<script" not in note and "![a]" not in note and "\n$" not in note


def test_no_rows_no_table() -> None:
    """An empty list prints nothing, and does not fail."""
    assert printed(rows_table([])).strip() == ""
    assert printed(studies_table([])).split()[0] == "study"
