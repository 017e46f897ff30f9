"""The dashboard: a page of ours for every study, and Optuna Dashboard beside it, on one storage.

``/`` lists the studies, ``/study/NAME`` is the page of one, ``/state/NAME`` what that page asks for
while it is open, ``/phaze/…`` its script and style. Everything else is Optuna Dashboard's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote

from phaze_opt.errors import InputError, NotFoundError, PhazeError
from phaze_opt.report.guard import path_of
from phaze_opt.report.optuna_pages import RankedTrials, optuna_pages
from phaze_opt.report.page import problem_page, studies_page, study_page, study_state
from phaze_opt.report.server import (
    NOT_FOUND,
    OK,
    WRONG,
    PageServer,
    asset_response,
    html_response,
    json_response,
    listen,
)
from phaze_opt.report.study_view import LiveView, StudyView
from phaze_opt.store.artifacts import DatabaseArtifacts
from phaze_opt.store.failures import database_errors
from phaze_opt.store.publication import publication_mark
from phaze_opt.store.storage import Storage
from phaze_opt.store.studies import study_uids
from phaze_opt.store.ticket import TicketCounts
from phaze_opt.study.study import Study, list_summaries, load_study

_STUDY, _STATE, _ASSETS = "/study/", "/state/", "/phaze/"
_SCRIPTS = ("page.css", "page.js", "figures.js", "plotly.js")

Shown = TypeVar("Shown")

# Optuna Dashboard writes tracebacks of requests that it does not understand.
logging.getLogger("optuna_dashboard").addHandler(logging.NullHandler())


def make_server(
    storage: Storage,
    host: str,
    port: int,
    *,
    read_only: bool = False,
    first: str | None = None,
) -> PageServer:
    """Return a server that listens already; ``serve_forever`` answers.

    Parameters
    ----------
    storage
        Holds the studies.
    host
        Address or name; an IPv6 address with brackets or without.
    port
        0 for any free one.
    read_only
        Refuse every request that may change something.
    first
        Study that is read already now, so that its page comes at once.

    Raises
    ------
    PhazeError
        If the address cannot be used.
    """
    pages = Pages(storage)
    server = listen(host, port, pages, "dashboard", read_only=read_only)
    if first is not None:
        pages.read_ahead(first)
    return server


def address_of(server: PageServer, name: str | None = None) -> str:
    """Return the address of a server, or of its page of a study, for a browser on this machine."""
    return server.address + (
        "" if name is None else _STUDY.removeprefix("/") + quote(name, safe="")
    )


class Pages:
    """The application behind the guard.

    Finished trials are read once and kept (`RankedTrials` for Optuna Dashboard, `LiveView` for our
    pages), until a study is deleted: its number may then become that of another one.
    """

    def __init__(self, storage: Storage) -> None:
        self._given = storage
        self._lock = threading.Lock()
        self._uids: frozenset[str] = frozenset()
        self._open()

    def _open(self) -> None:
        """Begin to keep trials anew."""
        trials = RankedTrials(self._given)
        self._views: dict[tuple[str, str, int], tuple[threading.Lock, LiveView]] = {}
        self._optuna = optuna_pages(trials, DatabaseArtifacts(self._given))

    def read_ahead(self, name: str) -> None:
        """Read the trials of a study before someone asks for them."""
        # What is wrong with the study is said on its page.
        with suppress(PhazeError):
            self._shown(load_study(name, self._given), lambda view: None)

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer a request."""
        path = path_of(environ)
        if path.startswith(_ASSETS):
            return asset_response(start_response, path.removeprefix(_ASSETS), _SCRIPTS)
        own = path == "/" or path.startswith((_STUDY, _STATE))
        try:
            if own or path.startswith("/api/studies"):
                self._forget_deleted()
            if not own:
                return self._optuna(environ, start_response)
            if path.startswith(_STATE):
                return self._state(path.removeprefix(_STATE), environ, start_response)
            if path == "/":
                return html_response(start_response, OK, self._list())
            return html_response(start_response, OK, self._page(path.removeprefix(_STUDY)))
        except PhazeError as error:
            # A study of another program has no page of ours.
            absent = isinstance(error, NotFoundError | InputError)
            status = NOT_FOUND if absent else WRONG
            if path.startswith(_STATE):
                return json_response(start_response, status, {"reason": str(error)})
            return html_response(start_response, status, problem_page(str(error)))

    def _forget_deleted(self) -> None:
        """Keep no trials of a study that is gone."""
        with self._lock:
            uids = frozenset(uid for uid in study_uids(self._given).values() if uid is not None)
            if self._uids - uids:
                self._open()
            self._uids = uids

    def _list(self) -> str:
        """Return the page of all studies."""
        summaries, unreadable = list_summaries(self._given)
        return studies_page(self._given.shown, summaries, unreadable)

    def _page(self, name: str) -> str:
        """Return the page of a study."""
        study = load_study(name, self._given)
        key = _key(study, study.office().counts())
        address = _STATE + quote(name, safe="")
        return self._shown(study, lambda view: study_page(view, key, address))

    def _shown(self, study: Study, show: Callable[[StudyView], Shown]) -> Shown:
        """Show a study as it is now; its trials that were read before are not read again."""
        name = (study.uid, study.name, study.optuna_id)
        with self._lock:
            lock, live = self._views.setdefault(name, (threading.Lock(), LiveView(study)))
        with lock:
            return show(live.view())

    def _state(
        self, name: str, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer with what is new on the page of a study."""
        study = load_study(name, self._given)
        # Read before the state: at worst the page asks once too often.
        counts = study.office().counts()
        key = _key(study, counts)
        known = parse_qs(str(environ.get("QUERY_STRING", ""))).get("key", [""])[0]
        running = bool(counts.running)
        state: object = {"key": key, "running": running}
        if known != key:
            with database_errors(self._given.shown):
                state = self._shown(study, lambda view: study_state(view, key))
        return json_response(start_response, OK, state)


def _key(study: Study, counts: TicketCounts) -> str:
    """Name what a page shows of a study; another key means that something on it may be new."""
    stopping = study.office().stop_requested()
    parts = (counts.done, counts.left, counts.running, counts.failed, stopping)
    # What the end of a run adds to the best design is there once the study is written anew.
    written = publication_mark(study.storage, study.uid)
    return "-".join([*(str(int(part)) for part in parts), str(written)])
