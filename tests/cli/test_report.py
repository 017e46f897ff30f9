"""``phaze-opt report`` and ``phaze-opt plot``, and the commands that a report names."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from phaze_opt.report.images import BROWSER_VARIABLE
from phaze_opt.report.reproducing import reproduce_commands
from phaze_opt.report.study_view import view_of
from phaze_opt.study.study import load_study
from phaze_opt.units import format_number
from tests.cli.conftest import Phaze


@pytest.fixture
def ran(phaze: Phaze, small_study: Path) -> Phaze:
    """Run the small study."""
    phaze("study", "create", str(small_study))
    phaze("study", "run", "small")
    return phaze


def test_the_commands_give_the_best_design_again(ran: Phaze) -> None:
    """Evaluated alone, the best design has the throughput that the study found."""
    best = ran("study", "best", "small", "--json").json
    commands = reproduce_commands(load_study("small").summary())
    # A shell joins the lines of a command in the same way.
    *_, chip, point = [command.replace("\\\n", "") for command in commands]
    assert ran(*shlex.split(chip)[1:]).code == 0
    again = ran(*shlex.split(point)[1:], "--json").json
    assert again["throughput_samples_per_s"] == best["values"][0]


def test_reports_and_plots_are_written(ran: Phaze, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each format has the answer; a file without a known ending is refused, so is a wrong kind."""
    best = ran("study", "best", "small", "--json").json
    answer = f"{format_number(best['values'][0])} samples/s"
    for arguments, path in (
        (("--output", "a.html"), "a.html"),
        (("--output", "a.md"), "a.md"),
        (("--format", "markdown", "--output", "b"), "b"),
    ):
        written = ran("report", "small", *arguments)
        assert (written.code, written.out) == (0, "")
        assert answer in Path(path).read_text(encoding="utf-8")
    files = {name for name, _ in view_of(load_study("small")).files}
    assert {"breakdown.csv", "pipeline.html", "schedules.html", "schedules.trace.json"} <= files
    refused = ran("report", "small", "--output", "a.pdf")
    assert refused.code == 2 and ".html or .md" in refused.sentence
    assert ran("plot", "small", "area", "-o", "area.html").code == 0
    assert "chip area" in Path("area.html").read_text(encoding="utf-8")
    assert ran("plot", "small", "colours", "-o", "a.html").code == 2
    assert ran("plot", "small", "area", "-o", "area.gif").code == 2
    assert ran("report", "none", "-o", "a.html").code == 3
    monkeypatch.setenv(BROWSER_VARIABLE, "no-such-browser")
    missing = ran("plot", "small", "area", "-o", "area.png")
    assert missing.code == 1 and "Chromium" in missing.sentence
    assert not Path("area.png").exists()
