"""The web server of the dashboard: Optuna Dashboard on a storage, local and guarded."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.simple_server import make_server as make_wsgi_server

from phaze_opt.errors import PhazeError
from phaze_opt.search.store.storage import Storage

WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_READING = ("GET", "HEAD", "OPTIONS")
_FORBIDDEN = "403 Forbidden"


class _Server(ThreadingMixIn, WSGIServer):
    """Answers requests side by side, and does not wait for them at the end."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    """Writes no line per request."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def make_server(storage: Storage, host: str, port: int, *, read_only: bool = False) -> WSGIServer:
    """Return a server that listens already; ``serve_forever`` answers.

    Parameters
    ----------
    port
        0 for any free one.
    read_only
        Refuse every request that may change something.

    Raises
    ------
    PhazeError
        If the address cannot be used.
    """
    application: WsgiApplication = importlib.import_module("optuna_dashboard").wsgi(storage.optuna)
    application = guarded(application, host, read_only=read_only)
    try:
        return make_wsgi_server(
            host, port, application, server_class=_Server, handler_class=_QuietHandler
        )
    except OSError as error:
        raise PhazeError(
            f"The dashboard cannot listen on {host}:{port}: {error.strerror or error}; "
            "choose another --port."
        ) from None


def guarded(application: WsgiApplication, host: str, *, read_only: bool) -> WsgiApplication:
    """Refuse what the dashboard itself does not: changes, if asked, and foreign host names.

    It has no login. A page of another site could make a browser talk to it under a name of its own
    (DNS rebinding); on a local address only local names are therefore answered.
    """
    local = ("localhost", "127.0.0.1", "[::1]", "::1")

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        asked = str(environ.get("HTTP_HOST", "")).rsplit(":", 1)[0]
        if host in local and asked not in (*local, ""):
            return _refuse(start_response, "This dashboard answers only under a local name.")
        if read_only and environ["REQUEST_METHOD"] not in _READING:
            return _refuse(start_response, "This dashboard is read-only.")
        return application(environ, start_response)

    return answer


def _refuse(start_response: Callable[..., Any], reason: str) -> Iterable[bytes]:
    """Answer that something is not allowed, in the form that the dashboard shows."""
    start_response(_FORBIDDEN, [("Content-Type", "application/json")])
    return [f'{{"reason": "{reason}"}}'.encode()]
