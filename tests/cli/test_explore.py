"""``phaze-opt explore``: what it says before it serves, and which controls its page has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from phaze_opt.cli.controls import controls
from phaze_opt.cli.explore import page_controls
from phaze_opt.cli.explored import PointAnswers

from phaze_opt.report.answering import AnsweringProcess
from phaze_opt.report.server import PageServer
from tests.cli.conftest import Phaze


@pytest.fixture
def served(phaze: Phaze, monkeypatch: pytest.MonkeyPatch) -> Phaze:
    """Serve nothing: the page ends as if by Ctrl-C, and no process is started."""

    def interrupted(server: PageServer, poll_interval: float = 0.5) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", interrupted)
    monkeypatch.setattr(AnsweringProcess, "start", lambda process: None)
    return phaze


def test_it_says_where_the_page_is(served: Phaze) -> None:
    """On stderr; an address for other machines comes with a warning."""
    ran = served("explore", "--port", "0")
    assert ran.code == 0 and re.search(r"http://127\.0\.0\.1:\d+/ ", ran.sentence)
    assert "warning" not in ran.err
    everywhere = served("explore", "--port", "0", "--host", "0.0.0.0")
    assert "warning" in everywhere.err and "ssh -L" in everywhere.err


def test_files_are_read_before_it_serves(served: Phaze, tmp_path: Path) -> None:
    """One that is missing or wrong is refused."""
    assert served("explore", "--accelerator", "none.toml").code == 3
    (tmp_path / "wrong.toml").write_text("num_tc = 'a'\n", encoding="utf-8")
    assert served("explore", "--accelerator", "wrong.toml").code == 2
    assert served("explore", "--model", "none.json").code in (2, 3)


def test_the_page_has_every_option(tmp_path: Path) -> None:
    """A named file stands first, and is what the page begins with."""
    made = page_controls(PointAnswers((("accelerator", ("mine.toml",)),)))
    assert [control.name for control in made] == [control.name for control in controls()]
    by_name = {control.name: control for control in made}
    assert by_name["accelerator"].choices[0] == by_name["accelerator"].default == "mine.toml"
    assert "h100" in by_name["accelerator"].choices
    assert "llama3-8b" in by_name["model"].choices
