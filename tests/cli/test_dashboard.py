"""``phaze-opt dashboard``: what it says before it serves."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from phaze_opt.report.server import PageServer
from tests.cli.conftest import Phaze


@pytest.fixture
def served(phaze: Phaze, small_study: Path, monkeypatch: pytest.MonkeyPatch) -> Phaze:
    """Create a study; a dashboard ends as if by Ctrl-C as soon as it serves."""

    def interrupted(server: PageServer, poll_interval: float = 0.5) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", interrupted)
    phaze("study", "create", str(small_study))
    return phaze


def test_the_address_is_that_of_the_study(served: Phaze) -> None:
    """The line on stderr has the page of the study, or that of all studies; Ctrl-C is no error."""
    small, every = served("dashboard", "small", "--port", "0"), served("dashboard", "--port", "0")
    assert (small.code, every.code) == (0, 0)
    assert re.search(r"http://127\.0\.0\.1:\d+/study/small ", small.sentence)
    assert re.search(r"http://127\.0\.0\.1:\d+/ ", every.sentence)
    assert "warning" not in small.err


def test_an_open_dashboard_is_warned_of(served: Phaze) -> None:
    """Listening for other machines comes with a warning, and with the way of a tunnel."""
    ran = served("dashboard", "--host", "0.0.0.0", "--port", "0")
    assert "warning" in ran.err and "ssh -L" in ran.err and "delete" in ran.err
    reading = served("dashboard", "--host", "0.0.0.0", "--port", "0", "--read-only")
    assert "warning" in reading.err and "delete" not in reading.err


def test_what_cannot_be_served_is_one_sentence(served: Phaze) -> None:
    """An unknown study and a taken port are refused before anything is served."""
    assert served("dashboard", "none").code == 3
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = served("dashboard", "--port", str(taken.getsockname()[1]))
    assert ran.code == 1 and "another --port" in ran.sentence
