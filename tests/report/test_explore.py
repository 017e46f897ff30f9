"""The server of the what-if page: what it answers and what it refuses."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from phaze_opt.report.explore import PageControl, make_explorer

CONTROLS = [
    PageControl("model", "model", "text", "Which <model>.", ("a", "b"), "a", True),
    PageControl("zero", "zero", "whole", "", (), "0", False),
    PageControl("copies", "copies", "switch", "", (), "", False),
    PageControl("proof", "proof", "switch", "", (), "true", False),
]

Ask = Callable[..., tuple[int, Any]]


def answer(question: str) -> tuple[bool, bytes]:
    """Give the question back."""
    return "wrong" not in question, json.dumps({"asked": question}).encode()


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Serve a page, and return what asks the server."""
    server, pages = make_explorer(CONTROLS, {"glb_mib": 64.0}, answer, "first", "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def send(path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        got = connection.getresponse()
        content = got.read()
        connection.close()
        is_json = "json" in got.headers.get("Content-Type", "")
        return got.status, json.loads(content) if is_json and content else content

    yield send
    server.shutdown()
    server.server_close()
    pages.close()


def test_every_option_has_a_control_for_both_runs(ask: Ask) -> None:
    """With its default, and a switch of three states where there is none; texts are harmless."""
    code, page = ask("/")
    text = page.decode()
    assert code == 200
    for control in CONTROLS:
        assert text.count(f'data-option="{control.name}"') == 2
    assert "Which &lt;model&gt;." in text and "<model>" not in text
    assert text.count('data-size="glb_mib"') == 2 and "GLB [MiB]" in text
    assert text.count('<option value="">–</option>') == 2
    assert text.count("checked") == 2


def test_the_query_goes_to_what_answers(ask: Ask) -> None:
    """As it is; an improper one is the mistake of whoever asks."""
    assert ask("/ask/numbers/me?model=a&b.model=b") == (
        200,
        {"asked": "numbers?model=a&b.model=b"},
    )
    assert ask("/ask/reasons/me?x=wrong") == (400, {"asked": "reasons?x=wrong"})


def test_strangers_are_refused(ask: Ask) -> None:
    """Foreign names, pages of other sites, changes, and addresses that there are not."""
    assert ask("/", Host="evil.example")[0] == 403
    assert ask("/ask/numbers/me", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask("/ask/numbers/me", Sec_Fetch_Site="same-origin")[0] == 200
    assert ask("/", method="POST")[0] == 403
    assert ask("/ask/numbers/me", method="DELETE")[0] == 403
    paths = ("/ask/files/me", "/ask/numbers/", f"/ask/numbers/{'a' * 99}", "/etc/passwd", "/x")
    for path in (*paths, "/phaze/../explore.py", "/phaze/page.js", "/phaze/gantt.html"):
        assert ask(path)[0] == 404, path
    assert ask(f"/ask/numbers/me?{'a' * 9_000}")[0] == 400
    assert ask("/ask/numbers/me%00")[0] == 400


def test_the_page_loads_only_from_its_server(ask: Ask) -> None:
    """Its scripts and styles are there, and its policy allows no others."""
    _, page = ask("/")
    for name in ("page.css", "explore.css", "explore.js", "figures.js", "plotly.js"):
        assert f"/phaze/{name}".encode() in page
        assert ask(f"/phaze/{name}")[0] == 200
