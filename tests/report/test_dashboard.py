"""The dashboard on a study, its note, and what it refuses."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.errors import PhazeError
from phaze_opt.report.dashboard import make_server, note_of, save_note
from phaze_opt.search.study import Study
from tests.search.fakes import toy_study

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Run a short toy study."""
    made = toy_study(f"sqlite:///{tmp_path_factory.mktemp('dashboard') / 'a.db'}")
    made.run(8)
    return made


def serve(study: Study, *, read_only: bool) -> Iterator[Ask]:
    """Serve a study, and yield what asks the server."""
    server = make_server(study.storage, "127.0.0.1", 0, read_only=read_only)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask(path: str, method: str = "GET", host: str | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        headers = {} if host is None else {"Host": host}
        connection.request(method, path, body="{}", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        is_json = "json" in answer.headers.get("Content-Type", "")
        return answer.status, json.loads(body) if is_json else body

    yield ask
    server.shutdown()
    server.server_close()


@pytest.fixture
def ask(study: Study) -> Iterator[Ask]:
    """Return what asks a dashboard that may be written."""
    yield from serve(study, read_only=False)


@pytest.fixture
def ask_read_only(study: Study) -> Iterator[Ask]:
    """Return what asks a dashboard that may only be read."""
    yield from serve(study, read_only=True)


def test_study_is_shown_with_its_answer(study: Study, ask: Ask) -> None:
    """The dashboard lists the study, crowns its best trial, and shows the answer in words."""
    save_note(study)
    code, listed = ask("/api/studies")
    assert code == 200
    (entry,) = listed["study_summaries"]
    assert entry["study_name"] == "toy"
    _, detail = ask(f"/api/studies/{entry['study_id']}?after=0")
    assert len(detail["trials"]) == 8
    best = study.best()
    assert best is not None
    assert f"{best.metrics.value:,.0f} samples/s" in detail["note"]["body"]
    fastest = max(each.metrics.value for each in study.trials() if each.metrics is not None)
    crowned = max(detail["trials"], key=lambda trial: trial["values"][0])
    assert crowned["values"][0] == fastest


def test_note_is_written_once(study: Study, ask: Ask) -> None:
    """A note that did not change is not written again."""
    save_note(study)
    versions = []
    for _ in range(2):
        _, listed = ask("/api/studies")
        _, detail = ask(f"/api/studies/{listed['study_summaries'][0]['study_id']}?after=0")
        versions.append(detail["note"]["version"])
        save_note(study)
    assert versions[0] == versions[1]


def test_note_of_an_empty_study(tmp_path: Path) -> None:
    """Before the first trial the note says so."""
    empty = toy_study(f"sqlite:///{tmp_path / 'a.db'}")
    assert "Nothing feasible was found yet." in note_of(empty.summary())


def test_reading_only_refuses_changes(study: Study, ask_read_only: Ask) -> None:
    """With ``--read-only`` a browser can look but not delete."""
    assert ask_read_only("/api/studies")[0] == 200
    code, answer = ask_read_only("/api/studies/1", method="DELETE")
    assert (code, answer["reason"]) == (403, "This dashboard is read-only.")
    assert len(study.trials()) == 8


def test_foreign_names_are_refused(ask: Ask) -> None:
    """A page that lets its own name point to this machine gets no answer."""
    assert ask("/api/studies", host="evil.example:80")[0] == 403
    assert ask("/api/studies", host="localhost:1234")[0] == 200


def test_a_taken_port_is_one_sentence(study: Study) -> None:
    """A port that another program uses is named."""
    server = make_server(study.storage, "127.0.0.1", 0)
    with pytest.raises(PhazeError, match="another --port"):
        make_server(study.storage, "127.0.0.1", server.server_port)
    server.server_close()
