"""Keeps strangers away from the dashboard, which has no login: a thin layer of WSGI.

A page of another site can make a browser talk to a server on this machine: under a name of its own
that points here (DNS rebinding), or by sending a form or JSON across. The guard therefore answers
only under the names that the server has, takes writes only from pages that it served itself, lets
no page put one of ours into a frame, and answers what is no proper request with 400.
"""

from __future__ import annotations

import io
import ipaddress
import json
import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Headers = list[tuple[str, str]]

BAD_REQUEST = "400 Bad Request"
FORBIDDEN = "403 Forbidden"
TOO_LARGE = "413 Content Too Large"
NO_JSON = "415 Unsupported Media Type"
FAILED = "500 Internal Server Error"

_READING = ("GET", "HEAD", "OPTIONS")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_WILDCARDS = ("", "0.0.0.0", "::")
_LARGEST_PORT = 65_535
_LARGEST_BODY = 2**20
_LARGEST_UPLOAD = 2**27
_UPLOADS = "/api/artifacts/"
_UPLOAD_PARTS = 1_000
"""Values that a body of more than `_LARGEST_BODY` may hold: a file is one long text."""

_AT_ONCE = 2**16
_LONGEST_TARGET = 8_192
_JSON = "application/json"
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)

CONTENT_POLICY = "Content-Security-Policy"
_NO_FRAMES = "frame-ancestors 'none'"
_ARTIFACT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""An artifact may be any file that someone uploaded; opened as a page it may do nothing."""

_NOT_SENT = ("access-control-allow-origin", "x-powered-by")
"""Headers that would let pages of other sites read the answers."""


@dataclass(frozen=True)
class Refusal(Exception):
    """Why a request is not answered."""

    status: str
    reason: str


def guarded(application: WsgiApplication, host: str, *, read_only: bool = False) -> WsgiApplication:
    """Return an application that answers only requests that it should.

    Parameters
    ----------
    application
        What answers them.
    host
        Address or name that the server is bound to.
    read_only
        Whether every request that may change something is refused.
    """

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO", ""))

        def start(status: str, headers: Headers, *error: Any) -> Any:
            return start_response(status, _safe_headers(headers, path), *error)

        try:
            _check(environ, host, read_only)
        except Refusal as refusal:
            _discard_body(environ)
            return refuse(start, refusal.status, refusal.reason)
        # The applications behind it write tracebacks there.
        environ["wsgi.errors"] = io.StringIO()
        try:
            return application(environ, start)
        except Exception:
            return refuse(start, FAILED, "The dashboard could not answer this.")

    return answer


def refuse(start_response: Callable[..., Any], status: str, reason: str) -> list[bytes]:
    """Answer that a request is not allowed, in the form that Optuna Dashboard shows."""
    start_response(status, [("Content-Type", "application/json; charset=utf-8")])
    return [json.dumps({"reason": reason}).encode()]


def is_local(host: str) -> bool:
    """Whether only programs on this machine reach a server that is bound to a host."""
    return _as_name(host) in _LOCAL or _is_loopback(_as_name(host))


def split_authority(text: str) -> tuple[str, int | None]:
    """Split ``Host``, or the end of an ``Origin``, into a name in lower case and a port.

    Raises
    ------
    Refusal
        If it is neither name nor address with an optional port; one with user information is none.
    """
    match = _AUTHORITY.fullmatch(text)
    port = int(match[2]) if match is not None and match[2] else None
    if match is None or (port is not None and not 0 < port <= _LARGEST_PORT):
        raise Refusal(BAD_REQUEST, "The request names no valid host.")
    return _as_name(match[1]), port


def _check(environ: dict[str, Any], host: str, read_only: bool) -> None:
    """Refuse a request that is malformed, comes under a foreign name, or may not write.

    The body is read last: whoever is refused makes the server hold nothing.
    """
    _check_form(environ)
    authority = str(environ.get("HTTP_HOST", ""))
    name, port = split_authority(authority)
    if not _is_own(name, host):
        raise Refusal(FORBIDDEN, "This dashboard does not answer under this name.")
    if environ["REQUEST_METHOD"] not in _READING:
        _check_writer(environ, (name, port), read_only)
    _check_length(environ)
    _take_body(environ)


def _check_writer(environ: dict[str, Any], own: tuple[str, int | None], read_only: bool) -> None:
    """Refuse a change that comes from elsewhere, or where nothing may be changed."""
    if read_only:
        raise Refusal(FORBIDDEN, "This dashboard is read-only.")
    scheme, separator, origin = str(environ.get("HTTP_ORIGIN", "")).partition("://")
    if not separator or scheme not in ("http", "https"):
        raise Refusal(FORBIDDEN, "Changes are taken from pages of this dashboard only.")
    if split_authority(origin) != own:
        raise Refusal(FORBIDDEN, "Changes are not taken from pages of another site.")


def path_of(environ: dict[str, Any]) -> str:
    """Return the path of a request.

    Raises
    ------
    ValueError
        If it is not UTF-8, which the guard refuses.
    """
    return str(environ.get("PATH_INFO", "")).encode("latin-1").decode("utf-8")


def _check_form(environ: dict[str, Any]) -> None:
    """Refuse what no browser sends: it would make an application behind stumble."""
    try:
        path = path_of(environ)
    except ValueError:
        raise Refusal(BAD_REQUEST, "The request is malformed.") from None
    query = str(environ.get("QUERY_STRING", ""))
    if "\x00" in path or not path.startswith("/") or len(path) + len(query) > _LONGEST_TARGET:
        raise Refusal(BAD_REQUEST, "The address is malformed.")
    if re.search(r"(?:^|&)after=(?![0-9]{1,9}(?:&|$))", query):
        raise Refusal(BAD_REQUEST, "after must be a number of trials.")
    if _length(environ) < 0 or environ.get("HTTP_TRANSFER_ENCODING"):
        raise Refusal(BAD_REQUEST, "The length of the request is not valid.")
    if environ["REQUEST_METHOD"] not in (*_READING, "POST", "PUT", "DELETE", "PATCH"):
        raise Refusal(BAD_REQUEST, "The method is not known.")


def _check_length(environ: dict[str, Any]) -> None:
    """Refuse a body larger than the pages send: files are uploaded, all else is short."""
    uploads = environ["REQUEST_METHOD"] == "POST" and environ["PATH_INFO"].startswith(_UPLOADS)
    most = _LARGEST_UPLOAD if uploads else _LARGEST_BODY
    if _length(environ) > most:
        raise Refusal(TOO_LARGE, f"The request is larger than {most:,} bytes.")


def _length(environ: dict[str, Any]) -> int:
    """Return the length that a request states; -1 where it is no number."""
    text = str(environ.get("CONTENT_LENGTH") or "0")
    return int(text) if re.fullmatch("[0-9]{1,15}", text) else -1


def _take_body(environ: dict[str, Any]) -> None:
    """Read the body, and refuse one that is not the JSON object that the dashboard's pages send.

    Some requests of the pages have no body: that is an object in which nothing is stated.
    """
    length = _length(environ)
    body = environ["wsgi.input"].read(length) if length else b""
    content_type = str(environ.get("CONTENT_TYPE", ""))
    reads = environ["REQUEST_METHOD"] in _READING
    passed = b"" if reads else body or b"{}"
    environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(passed), str(len(passed))
    if body and not reads:
        _check_body(body, content_type)
    environ["CONTENT_TYPE"] = _JSON


def _check_body(body: bytes, content_type: str) -> None:
    """Refuse a body that is not one JSON object."""
    if content_type.partition(";")[0].strip().lower() != _JSON:
        raise Refusal(NO_JSON, "The body must be JSON, and say so.")
    if len(body) > _LARGEST_BODY:
        # Many values would take many times their bytes; the application reads the text itself.
        if sum(map(body.count, (b"{", b"[", b","))) > _UPLOAD_PARTS:
            raise Refusal(TOO_LARGE, "The request holds more than one file.")
        return
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(BAD_REQUEST, "The body is not valid JSON.") from None
    if not isinstance(content, dict):
        raise Refusal(BAD_REQUEST, "The body is not a JSON object.")


def _discard_body(environ: dict[str, Any]) -> None:
    """Take in what nobody will read: who still sends would not hear the answer."""
    left = min(_length(environ), _LARGEST_UPLOAD)
    while left > 0 and (part := environ["wsgi.input"].read(min(left, _AT_ONCE))):
        left -= len(part)


def _is_own(name: str, host: str) -> bool:
    """Whether a name is one of the server's.

    A server that listens everywhere is known under every address of the machine. Rebinding needs a
    name, not an address; of names only this machine's own is taken.
    """
    bound = _as_name(host)
    if name in _LOCAL or name == bound:
        return True
    if bound not in _WILDCARDS:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == socket.gethostname().lower()
    return True


def _as_name(host: str) -> str:
    """Return a host in lower case and without the brackets of an IPv6 address."""
    return host.lower().removeprefix("[").removesuffix("]")


def _is_loopback(host: str) -> bool:
    """Whether a host is an address that does not leave this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _safe_headers(headers: Headers, path: str) -> Headers:
    """Add what a browser must not do with an answer."""
    kept = [pair for pair in headers if pair[0].lower() not in (*_NOT_SENT, CONTENT_POLICY.lower())]
    policies = [value for name, value in headers if name.lower() == CONTENT_POLICY.lower()]
    if path.startswith("/artifacts/"):
        policies.append(_ARTIFACT_POLICY)
    policy = ";".join([*(policy.rstrip("; ") for policy in policies), _NO_FRAMES])
    return [
        *kept,
        (CONTENT_POLICY, policy),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "same-origin"),
    ]
