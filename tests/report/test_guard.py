"""What the dashboard refuses before its pages see it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.report.guard import guarded, is_local

LOCAL = {"HTTP_HOST": "127.0.0.1:8080"}
OWN = {**LOCAL, "HTTP_ORIGIN": "http://127.0.0.1:8080"}


def inner(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer anything, with headers that let others read and frame it."""
    headers = [
        ("Access-Control-Allow-Origin", "*"),
        ("Content-Security-Policy", "default-src 'self';"),
    ]
    start_response("200 OK", headers)
    return [b"answered"]


def ask(
    environ: dict[str, Any], *, host: str = "127.0.0.1", read_only: bool = False, body: bytes = b""
) -> tuple[int, dict[str, str], bytes]:
    """Send a request through the guard, and return status, headers and body of the answer."""
    started: dict[str, Any] = {}

    def start(status: str, headers: list[tuple[str, str]], *error: Any) -> None:
        started.update(status=int(status[:3]), headers=dict(headers))

    plain = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "wsgi.input": io.BytesIO(body)}
    if body:
        plain |= {"CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": "application/json"}
    content = b"".join(guarded(inner, host, read_only=read_only)({**plain, **environ}, start))
    return started["status"], started["headers"], content


def status(environ: dict[str, Any], **options: Any) -> int:
    """Return the status of the answer."""
    return ask(environ, **options)[0]


@pytest.mark.parametrize(
    "name",
    ["127.0.0.1:8080", "localhost", "LOCALHOST:9", "[::1]:8080", "[::1]", "127.0.0.1"],
)
def test_local_names_are_answered(name: str) -> None:
    """Under each name of this machine, in any case, with any port: a tunnel changes it."""
    assert status({"HTTP_HOST": name}) == 200


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io"]
)
def test_foreign_names_are_refused(name: str) -> None:
    """A name that its owner points to this machine gets no answer."""
    assert status({"HTTP_HOST": name}) == 403


@pytest.mark.parametrize(
    "name",
    [
        "",
        "me@localhost",
        "localhost:port",
        "localhost:0",
        "localhost:65536",
        "localhost:80:80",
        "[::1",
        "local host",
        "localhost/a",
        "lokälhost",
    ],
)
def test_malformed_names_are_bad_requests(name: str) -> None:
    """User information, and what is no port, is not a host."""
    assert status({"HTTP_HOST": name}) == 400


def test_a_server_everywhere_is_known_by_addresses_only() -> None:
    """Bound to all addresses, it answers under each address, but under no other's name."""
    for host in ("0.0.0.0", "::"):
        assert status({"HTTP_HOST": "192.168.1.7:8080"}, host=host) == 200
        assert status({"HTTP_HOST": "evil.example"}, host=host) == 403
    assert status({"HTTP_HOST": "lab.example"}, host="Lab.Example") == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:8080", 200),
        ("https://127.0.0.1:8080", 200),
        (None, 403),
        ("null", 403),
        ("http://evil.example", 403),
        ("http://127.0.0.1:9090", 403),
        ("http://localhost:8080", 403),
        ("file://127.0.0.1:8080", 403),
        ("http://me@127.0.0.1:8080", 400),
    ],
)
def test_only_own_pages_write(method: str, origin: str | None, expected: int) -> None:
    """A change is taken from a page of the same host and port, and from nowhere else."""
    headers = {} if origin is None else {"HTTP_ORIGIN": origin}
    asked = {**LOCAL, "REQUEST_METHOD": method, **headers}
    assert status(asked, body=b"{}") == expected
    assert status({**OWN, "REQUEST_METHOD": method}, read_only=True) == 403


@pytest.mark.parametrize(
    "wrong",
    [
        {"PATH_INFO": "/\xff"},
        {"PATH_INFO": "/a\x00"},
        {"PATH_INFO": "api"},
        {"PATH_INFO": "/" + 9_000 * "a"},
        {"QUERY_STRING": "after=x"},
        {"QUERY_STRING": "a=1&after=-1"},
        {"QUERY_STRING": "after=" + 5_000 * "9"},
        {"CONTENT_LENGTH": "x"},
        {"CONTENT_LENGTH": "-1"},
        {"CONTENT_LENGTH": str(10**40)},
        {"HTTP_TRANSFER_ENCODING": "chunked"},
        {"REQUEST_METHOD": "BREW"},
    ],
    ids=str,
)
def test_malformed_requests(wrong: dict[str, str]) -> None:
    """What no browser sends is a bad request, said in one sentence."""
    code, _, body = ask({**LOCAL, **wrong})
    assert code == 400
    assert json.loads(body)["reason"].endswith(".")


@pytest.mark.parametrize("body", [b"{", b"[]", b"1", b"\xff", b"[" * 100_000])
def test_malformed_bodies(body: bytes) -> None:
    """A body that claims to be JSON must be one object."""
    assert status({**OWN, "REQUEST_METHOD": "POST"}, body=body) == 400


class Stream:
    """A body of zeros that counts how much of it is read at once."""

    def __init__(self, length: int) -> None:
        self.left, self.most = length, 0

    def read(self, size: int) -> bytes:
        """Give some of it."""
        taken = min(size, self.left)
        self.left, self.most = self.left - taken, max(self.most, taken)
        return bytes(taken)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"HTTP_HOST": "evil.example"}, 403),
        ({"HTTP_ORIGIN": "http://evil.example"}, 403),
        ({"HTTP_ORIGIN": ""}, 403),
        ({"read_only": True}, 403),
        ({"REQUEST_METHOD": "GET"}, 413),
        ({"PATH_INFO": "/api/studies"}, 413),
        ({"REQUEST_METHOD": "PUT"}, 413),
    ],
    ids=str,
)
def test_no_body_is_held_of_whoever_is_refused(wrong: dict[str, Any], code: int) -> None:
    """Host, origin and ``--read-only`` come before the body, of which at most 1 MiB is read.

    What still comes in is taken and thrown away, so that the sender hears the answer.
    """
    length = 2**25
    stream = Stream(length)
    asked = {
        **OWN,
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/api/artifacts/1",
        "CONTENT_LENGTH": str(length),
        "CONTENT_TYPE": "application/json",
        "wsgi.input": stream,
        **wrong,
    }
    assert status(asked, read_only=bool(asked.pop("read_only", False))) == code
    assert (stream.left, stream.most) == (0, 2**16)


def test_only_files_are_large() -> None:
    """One long text may be uploaded; as many values would take many times their bytes."""
    upload = {**OWN, "REQUEST_METHOD": "POST", "PATH_INFO": "/api/artifacts/1/2"}
    file = b'{"file": "data:text/plain;base64,' + 2**21 * b"A" + b'", "filename": "a"}'
    assert status(upload, body=file) == 200
    assert status({**upload, "PATH_INFO": "/api/studies"}, body=file) == 413
    assert status({**upload, "CONTENT_LENGTH": str(2**28)}) == 413
    assert status(upload, body=b'{"file": [' + 2**20 * b"{}," + b"{}]}") == 413


def test_what_is_no_json_is_not_passed_on() -> None:
    """A form of another page needs no leave of the browser; no body is an empty object."""
    seen: list[tuple[bytes, str]] = []

    def inside(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        seen.append((body, environ["CONTENT_TYPE"]))
        return inner(environ, start_response)

    def code(body: bytes, content_type: str) -> int:
        asked = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "wsgi.input": io.BytesIO(body)}
        stated = {"CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": content_type}
        started: list[str] = []
        guarded(inside, "127.0.0.1")(
            {**OWN, **asked, **stated}, lambda status, *_: started.append(status)
        )
        return int(started[0][:3])

    assert code(b"", "") == code(b"", "text/plain") == 200
    assert code(b'{"a": 1}', "Application/JSON; charset=utf-8") == 200
    assert seen == [
        *2 * [(b"{}", "application/json")],
        (b'{"a": 1}', "application/json"),
    ]
    assert code(b"a=1", "application/x-www-form-urlencoded") == code(b"{}", "text/plain") == 415


def test_answers_cannot_be_framed_or_read_by_others() -> None:
    """Every answer forbids frames and guessing of types, and none may be read across sites."""
    for environ in (LOCAL, {"HTTP_HOST": "evil.example"}):
        _, headers, _ = ask(environ)
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers
    assert ask(LOCAL)[1]["Content-Security-Policy"].startswith("default-src 'self';frame")


def test_artifacts_are_in_a_sandbox() -> None:
    """A page that someone uploaded runs no script."""
    policy = ask({**LOCAL, "PATH_INFO": "/artifacts/1/a"})[1]["Content-Security-Policy"]
    assert "sandbox" in policy and "script-src" not in policy


def test_an_error_behind_it_is_one_sentence() -> None:
    """No traceback reaches the browser or the terminal."""

    def broken(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        raise RuntimeError("secret")

    violations: list[str] = []
    answer = guarded(broken, "127.0.0.1")(
        {**LOCAL, "REQUEST_METHOD": "GET", "PATH_INFO": "/"},
        lambda status, headers, *error: violations.append(status),
    )
    assert violations == ["500 Internal Server Error"] and b"secret" not in b"".join(answer)


@given(st.text(max_size=40), st.text(max_size=40), st.binary(max_size=40), st.text(max_size=40))
def test_any_request_gets_an_answer(host: str, path: str, body: bytes, origin: str) -> None:
    """Whatever a request holds, the guard answers it or passes it on."""
    environ = {"HTTP_HOST": host, "PATH_INFO": path, "HTTP_ORIGIN": origin}
    for method in ("GET", "POST", path):
        assert status({**environ, "REQUEST_METHOD": method}, body=body) in (200, 400, 403, 413)


def test_which_hosts_are_local() -> None:
    """Only a loopback address needs no warning."""
    assert all(map(is_local, ("127.0.0.1", "localhost", "::1", "[::1]", "127.1.2.3")))
    assert not any(map(is_local, ("0.0.0.0", "::", "192.168.1.7", "lab.example")))
