"""The server of our pages: it listens behind the guard, and answers with pages, JSON and scripts.

`phaze_opt.report.dashboard` and `phaze_opt.report.explore` are what it serves.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from phaze_opt.codec import to_json
from phaze_opt.errors import PhazeError
from phaze_opt.report.guard import CONTENT_POLICY, WsgiApplication, guarded
from phaze_opt.report.page import plotly_script, problem_page
from phaze_opt.report.templates import asset

OK, NOT_FOUND, WRONG = "200 OK", "404 Not Found", "500 Internal Server Error"

_PLOTLY = "plotly.js"
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_SLOWEST_S = 60


class PageServer(ThreadingMixIn, WSGIServer):
    """Answers several requests at once, and does not wait for open ones at the end."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _QuietHandler)

    def server_bind(self) -> None:
        """Bind without asking a name server for the name of the address.

        An address that connections of an ended server still hold for a minute is free.
        """
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    @property
    def address(self) -> str:
        """The address for a browser on this machine."""
        host = str(self.server_name)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: a browser that goes away is no error."""


class _QuietHandler(WSGIRequestHandler):
    """Writes no line per request, and does not wait for ever for one."""

    timeout = _SLOWEST_S

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


def listen(
    host: str, port: int, application: WsgiApplication, what: str, *, read_only: bool
) -> PageServer:
    """Return a guarded server that listens already; ``serve_forever`` answers.

    Parameters
    ----------
    host
        Address or name; an IPv6 address with brackets or without.
    port
        0 for any free one.
    application
        What answers.
    what
        Names it, for the error's sentence.
    read_only
        Refuse every request that may change something.

    Raises
    ------
    PhazeError
        If the address cannot be used.
    """
    bound = host.removeprefix("[").removesuffix("]")
    try:
        server = PageServer((bound, port))
    except OSError as error:
        raise PhazeError(
            f"The {what} cannot listen on {host}:{port}: {error.strerror or error}; "
            "choose another --port."
        ) from None
    server.set_app(guarded(application, bound, read_only=read_only))
    return server


def html_response(start_response: Callable[..., Any], status: str, page: str) -> list[bytes]:
    """Answer with a page of ours, which loads only what this server serves."""
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    start_response(
        status,
        [
            ("Content-Type", "text/html; charset=utf-8"),
            ("Cache-Control", "no-store"),
            (CONTENT_POLICY, policy),
        ],
    )
    return [page.encode()]


def json_response(start_response: Callable[..., Any], status: str, value: object) -> list[bytes]:
    """Answer with plain data; bytes are JSON already."""
    headers = [("Content-Type", "application/json; charset=utf-8"), ("Cache-Control", "no-store")]
    start_response(status, headers)
    return [value if isinstance(value, bytes) else to_json(value)]


def asset_response(
    start_response: Callable[..., Any], name: str, served: Collection[str]
) -> list[bytes]:
    """Answer with a script or a style sheet, if it is one of those that are served."""
    if name not in served:
        return html_response(start_response, NOT_FOUND, problem_page("There is no such page."))
    kind = _TYPES[name.rpartition(".")[2]]
    headers = [("Content-Type", kind), ("Cache-Control", "private, max-age=3600")]
    start_response(OK, headers)
    return [plotly_script() if name == _PLOTLY else asset(name)]
