"""Optuna Dashboard's pages, which answer with the same best design as ours.

They answer with 500 what they did not expect: a number that no study has, a body without a key or
with a value of another type. Here those are told apart from failures of their own.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from optuna.artifacts.exceptions import ArtifactNotFound
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial

from phaze_opt.errors import InputError, PhazeError
from phaze_opt.report.guard import WsgiApplication
from phaze_opt.report.spreadsheet import harmless_csv
from phaze_opt.store.artifacts import DatabaseArtifacts
from phaze_opt.store.failures import is_wrong_value
from phaze_opt.store.storage import Storage
from phaze_opt.store.trial_storage import RunningTrials
from phaze_opt.study.standing import find_best
from phaze_opt.study.study import load_study

_View = Callable[..., Any]

_PAGES = "/dashboard"
_OF_FILE = ("content-length", "last-modified", "etag", "accept-ranges")
_STYLE = (
    b"<style>main .MuiTypography-body1 { white-space: normal; overflow-wrap: anywhere; "
    b"flex-shrink: 0 }</style>"
)


class RankedTrials(RunningTrials):
    """Storage in which the order of designs chooses the best of equally fast trials."""

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        """Return the trial of the best design; Optuna's own choice for studies of other programs.

        Raises
        ------
        KeyError
            If there is no such study.
        ValueError
            If no trial is complete.
        """
        name = self.get_study_name_from_id(study_id)
        # What is wrong with the study is said on our page of it.
        with suppress(PhazeError):
            best = find_best(load_study(name, self._storage))
            if best is not None:
                return self.get_all_trials(study_id, deepcopy=False)[best.number]
        return super().get_best_trial(study_id)

    def as_storage(self) -> Storage:
        """Return the database with these trials, each of which is read once."""
        optuna: Any = self
        return replace(self._storage, optuna=optuna)


def optuna_pages(trials: RankedTrials, files: DatabaseArtifacts) -> WsgiApplication:
    """Return Optuna Dashboard as an application."""
    # Imported here: it brings a web framework along.
    make: Any = importlib.import_module("optuna_dashboard").wsgi
    application: Any = make(trials, artifact_store=files)
    application.install(_answering)
    pages: WsgiApplication = application

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        # Its pages ask for this header, which only browsers always send.
        environ.setdefault("HTTP_ACCEPT_ENCODING", "")
        if str(environ.get("PATH_INFO", "")).startswith(_PAGES):
            return _with_style(pages, environ, start_response)
        return pages(environ, start_response)

    return answer


def _with_style(
    pages: WsgiApplication, environ: dict[str, Any], start_response: Callable[..., Any]
) -> list[bytes]:
    """Answer with a page in which long attributes of a trial are broken into lines.

    It writes an attribute on one line, and the page is then as wide as the longest of them.
    """
    started: list[Any] = []
    # Whether it is the page that the browser has already, only its file would say.
    asked = {name: value for name, value in environ.items() if not name.startswith("HTTP_IF_")}
    parts = pages(asked, lambda *start: started.append(start))
    body = b"".join(parts)
    close = getattr(parts, "close", None)
    if close is not None:
        close()
    status, headers, *_ = started[-1]
    if environ["REQUEST_METHOD"] != "HEAD":
        body = body.replace(b"</head>", _STYLE + b"</head>", 1)
    left = [pair for pair in headers if pair[0].lower() not in _OF_FILE]
    start_response(status, [*left, ("Content-Length", str(len(body)))])
    return [body]


def _answering(callback: _View) -> _View:
    """Let a view say what is wrong with a request; a plug-in of the web framework."""
    bottle: Any = importlib.import_module("bottle")
    # Without what answers every exception with the same words.
    view = inspect.unwrap(callback)

    def answer(*arguments: Any, **named: Any) -> Any:
        if view is not callback:
            bottle.response.content_type = "application/json"
        try:
            _check_name(bottle.request.json)
            content = view(*arguments, **named)
        except bottle.HTTPResponse as response:
            status, reason = response.status_code, str(response.body)
        except Exception as error:
            status, reason = _meaning(error)
        else:
            is_table = "csv" in str(bottle.response.content_type)
            return harmless_csv(content) if is_table and isinstance(content, str) else content
        bottle.response.status = status
        return {"reason": reason}

    return answer


def _check_name(stated: Any) -> None:
    """Refuse a name that is no text: databases take it for one, or fail."""
    if isinstance(stated, dict) and not isinstance(stated.get("study_name", ""), str):
        raise TypeError


def _meaning(error: Exception) -> tuple[int, str]:
    """Return the status that an exception of a view stands for, and a sentence."""
    match error:
        case InputError():
            return 400, str(error)
        case UpdateFinishedTrialError():
            return 409, "The trial is finished, and cannot be changed."
        case KeyError() | OverflowError() | ArtifactNotFound():
            return 404, "There is no such study, trial or file."
        case AttributeError() | TypeError() | ValueError():
            return 400, "The request does not say what this address expects."
    if is_wrong_value(error):
        return 400, "The request holds a number or a text that the database cannot hold."
    return 500, "The dashboard could not answer this."
